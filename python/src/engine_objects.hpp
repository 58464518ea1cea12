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
[[nodiscard]] std::uint32_t uint32_of(py::handle number);

}  // namespace kvferry::python
