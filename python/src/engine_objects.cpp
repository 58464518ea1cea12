// SPDX-License-Identifier: Apache-2.0
#include "engine_objects.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <structmember.h>

namespace kvferry::python {
namespace {

/// In vLLM the content hash is followed by the group id, 4 bytes big-endian
/// (make_block_hash_with_group_id).
constexpr std::size_t kGroupBytes = 4;

std::uint32_t group_behind(const unsigned char* bytes) {
  return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) |
         (std::uint32_t{bytes[2]} << 8) | bytes[3];
}

/// The bytes of one of the engine's hashes.
std::span<const std::byte> bytes_of(PyObject* hash) {
  if (!PyBytes_Check(hash)) {
    throw ConfigError(std::string("a block hash of the engine is a ") + Py_TYPE(hash)->tp_name +
                      ", kvferry takes bytes: this vLLM version is not supported");
  }
  return {reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(hash)),
          static_cast<std::size_t>(PyBytes_GET_SIZE(hash))};
}

}  // namespace

AttributeReader::AttributeReader(py::handle sample, const char* slot_name,
                                 const char* attribute_name)
    : type_(Py_TYPE(sample.ptr())), attribute_name_(py::str(attribute_name)) {
  const auto slot = py::reinterpret_steal<py::object>(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type_), slot_name));
  if (!slot) {
    PyErr_Clear();
    return;
  }
  if (Py_TYPE(slot.ptr()) != &PyMemberDescr_Type) return;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(slot.ptr())->d_member;
  if (member->type == T_OBJECT_EX) slot_offset_ = member->offset;
}

py::object AttributeReader::read(py::handle object) const {
  if (PyObject* value = in_slot(object.ptr())) return py::reinterpret_borrow<py::object>(value);
  PyObject* value = PyObject_GetAttr(object.ptr(), attribute_name_.ptr());
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

std::span<const std::byte> PyBlockHashes::hash(std::size_t index) const {
  return bytes_of(PyList_GET_ITEM(hashes_.ptr(), static_cast<Py_ssize_t>(index)));
}

void PyBlockHashes::read(std::size_t first, std::size_t step,
                         std::span<std::span<const std::byte>> hashes) const {
  PyObject* const* items = PySequence_Fast_ITEMS(hashes_.ptr()) + first;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    // The last byte of a hash can be on another cache line than the object's head.
    const std::size_t ahead = std::min(i + std::size_t{kAhead}, hashes.size() - 1);
    const auto* object = reinterpret_cast<const char*>(items[ahead * step]);
    __builtin_prefetch(object);
    __builtin_prefetch(object + offsetof(PyBytesObject, ob_sval) +
                       cpu_tier::BlockKey::kMaxHashBytes - 1);
    hashes[i] = bytes_of(items[i * step]);
  }
}

PyBlockPool::PyBlockPool(py::list blocks) : blocks_(std::move(blocks)) {
  if (blocks_.empty()) throw ConfigError("the engine's block pool is empty");
  block_hash_ = AttributeReader(blocks_[0], "_block_hash", "block_hash");
}

py::object PyBlockPool::hash_of(BlockId block) const {
  if (block.value() >= static_cast<std::size_t>(PyList_GET_SIZE(blocks_.ptr()))) return py::none();
  return block_hash_.read(PyList_GET_ITEM(blocks_.ptr(), static_cast<Py_ssize_t>(block.value())));
}

bool PyBlockPool::holds(BlockId block, const cpu_tier::BlockKey& key) const {
  return this->key(block) == key;
}

void PyBlockPool::mark_held(std::span<const BlockId> blocks,
                            std::span<const cpu_tier::BlockKey> keys,
                            std::span<std::uint8_t> held) const {
  const auto size = static_cast<std::size_t>(PyList_GET_SIZE(blocks_.ptr()));
  PyObject* const* objects = PySequence_Fast_ITEMS(blocks_.ptr());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::size_t ahead = blocks[std::min(i + std::size_t{kAhead}, blocks.size() - 1)].value();
    if (ahead < size) __builtin_prefetch(objects[ahead]);
    // The engine retains few blocks of a window; the others have no hash.
    const std::size_t block = blocks[i].value();
    if (block >= size || block_hash_.in_slot(objects[block]) == Py_None) continue;
    if (holds(blocks[i], keys[i])) held[i] = 1;
  }
}

std::optional<cpu_tier::BlockKey> PyBlockPool::key(BlockId block) const {
  const py::object held = hash_of(block);
  if (!PyBytes_Check(held.ptr())) return std::nullopt;
  const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(held.ptr()));
  if (size <= kGroupBytes || size - kGroupBytes > cpu_tier::BlockKey::kMaxHashBytes) {
    return std::nullopt;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(held.ptr()));
  const auto* group = reinterpret_cast<const unsigned char*>(bytes + (size - kGroupBytes));
  return cpu_tier::BlockKey::make({bytes, size - kGroupBytes}, GroupId(group_behind(group)),
                                  weights());
}

std::string_view text_of(py::handle text) {
  Py_ssize_t size = 0;
  const char* chars = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (chars == nullptr) throw py::error_already_set();
  return {chars, static_cast<std::size_t>(size)};
}

std::uint32_t uint32_of_any(py::handle number) {
  const unsigned long value = PyLong_AsUnsignedLong(number.ptr());
  if (value == static_cast<unsigned long>(-1) && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  if (value > std::numeric_limits<std::uint32_t>::max()) {
    throw py::value_error(std::to_string(value) + " does not fit 32 bits");
  }
  return static_cast<std::uint32_t>(value);
}

}  // namespace kvferry::python
