// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/engine_view.hpp"

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

/// Reading vLLM's own Python objects at C speed. Every call needs the GIL; nothing of the engine's
/// is changed.
namespace kvferry::python {

namespace py = pybind11;

/// Objects fetched ahead of their turn: enough to hide the memory's latency.
inline constexpr Py_ssize_t kAhead = 8;

/// Reads one attribute of many objects of one class. For a class with __slots__ (vLLM's
/// KVCacheBlock) the slot is read through its member descriptor's offset, which takes nanoseconds;
/// anything else goes through getattr.
class AttributeReader {
 public:
  /// `sample` is one of the objects.
  AttributeReader(py::handle sample, const char* slot_name, const char* attribute_name);
  AttributeReader() = default;

  /// The attribute, a new reference; throws py::error_already_set if it is missing.
  [[nodiscard]] py::object read(py::handle object) const;
  /// The same, borrowed, if it lies in a slot and is there; else null.
  [[nodiscard]] PyObject* in_slot(PyObject* object) const {
    if (slot_offset_ == 0 || Py_TYPE(object) != type_) return nullptr;
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + slot_offset_);
  }

 private:
  PyTypeObject* type_ = nullptr;
  std::ptrdiff_t slot_offset_ = 0;  ///< 0: no slot.
  py::object attribute_name_;
};

/// A request's `block_hashes` list.
class PyBlockHashes : public connector::BlockHashes {
 public:
  explicit PyBlockHashes(py::list hashes) : hashes_(std::move(hashes)) {}
  [[nodiscard]] std::size_t size() const override {
    return static_cast<std::size_t>(PyList_GET_SIZE(hashes_.ptr()));
  }
  [[nodiscard]] std::span<const std::byte> hash(std::size_t index) const override;

 private:
  py::list hashes_;
};

/// vLLM's BlockPool, as its list of KVCacheBlock objects, by block id.
class PyBlockPool : public connector::BlockPool {
 public:
  explicit PyBlockPool(py::list blocks);
  [[nodiscard]] bool holds(BlockId block, const cpu_tier::BlockKey& key) const override;
  void mark_held(std::span<const BlockId> blocks, std::span<const cpu_tier::BlockKey> keys,
                 std::span<std::uint8_t> held) const override;
  [[nodiscard]] std::optional<cpu_tier::BlockKey> key(BlockId block) const override;

 private:
  /// The hash of a block and its group, as vLLM has them: bytes, or None.
  [[nodiscard]] py::object hash_of(BlockId block) const;

  py::list blocks_;
  AttributeReader block_hash_;
};

/// The characters of a str; valid while the object lives.
[[nodiscard]] std::string_view text_of(py::handle text);
/// A Python int that has to be an unsigned 32-bit number.
[[nodiscard]] std::uint32_t uint32_of_any(py::handle number);
/// The same; fast for an int of one digit, as block ids are.
[[nodiscard]] inline std::uint32_t uint32_of(py::handle number) {
  if (PyLong_CheckExact(number.ptr())) {
    const auto* digits = reinterpret_cast<const PyLongObject*>(number.ptr());
#if PY_VERSION_HEX >= 0x030C0000
    if (PyUnstable_Long_IsCompact(digits) != 0) {
      const Py_ssize_t value = PyUnstable_Long_CompactValue(digits);
      if (value >= 0) return static_cast<std::uint32_t>(value);
    }
#else
    if (Py_SIZE(digits) == 1) return digits->ob_digit[0];
    if (Py_SIZE(digits) == 0) return 0;
#endif
  }
  return uint32_of_any(number);
}

}  // namespace kvferry::python
