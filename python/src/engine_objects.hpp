// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/engine_view.hpp"

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

/// Reads vLLM's own Python objects at C speed. Every call needs the GIL. None changes an object of
/// the engine.
namespace kvferry::python {

namespace py = pybind11;

/// Number of objects that are prefetched: enough to hide the latency of memory.
inline constexpr Py_ssize_t kAhead = 8;

/// Reads one attribute of many objects of one class. If the class has __slots__ (vLLM's
/// KVCacheBlock), it reads the slot at its member descriptor's offset, which takes nanoseconds.
/// Otherwise it uses getattr.
class AttributeReader {
 public:
  /// `sample` is one of the objects.
  AttributeReader(py::handle sample, const char* slot_name, const char* attribute_name);
  AttributeReader() = default;

  /// Returns a new reference to the attribute. Throws py::error_already_set if it is missing.
  [[nodiscard]] py::object read(py::handle object) const;
  /// Returns a borrowed reference if the attribute is in a slot and is set; else null.
  [[nodiscard]] PyObject* in_slot(PyObject* object) const {
    if (slot_offset_ == 0 || Py_TYPE(object) != type_) return nullptr;
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + slot_offset_);
  }

 private:
  PyTypeObject* type_ = nullptr;
  std::ptrdiff_t slot_offset_ = 0;  ///< 0: the attribute is not in a slot.
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
  void read(std::size_t first, std::size_t step,
            std::span<std::span<const std::byte>> hashes) const override;

 private:
  py::list hashes_;
};

/// vLLM's BlockPool: its list of KVCacheBlock objects, by block id.
class PyBlockPool : public connector::BlockPool {
 public:
  explicit PyBlockPool(py::list blocks);
  [[nodiscard]] bool holds(BlockId block, const cpu_tier::BlockKey& key) const override;
  void mark_held(std::span<const BlockId> blocks, std::span<const cpu_tier::BlockKey> keys,
                 std::span<std::uint8_t> held) const override;
  [[nodiscard]] std::optional<cpu_tier::BlockKey> key(BlockId block) const override;

 private:
  /// The hash of a block with its group, in vLLM's form: bytes, or None.
  [[nodiscard]] py::object hash_of(BlockId block) const;

  py::list blocks_;
  AttributeReader block_hash_;
};

/// The characters of a str; valid while the object lives.
[[nodiscard]] std::string_view text_of(py::handle text);
/// Reads a Python int that has to be an unsigned 32-bit number.
[[nodiscard]] std::uint32_t uint32_of_any(py::handle number);
/// The same, but fast for an int of one digit, as block ids are.
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
