// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

/// Access to the memory of Python's strings and buffers. Every call needs the GIL.
namespace kvferry::python {

namespace py = pybind11;

enum class Access { kRead, kWrite };

/// The memory of a list's buffer objects. While this object lives, they cannot be resized or freed.
/// It can be destroyed without the GIL, which it then takes.
class PyBuffers {
 public:
  /// Throws the exception of an object that is not a contiguous buffer, or not writable.
  PyBuffers(const py::list& objects, Access access);
  ~PyBuffers();
  PyBuffers(const PyBuffers&) = delete;
  PyBuffers& operator=(const PyBuffers&) = delete;

  [[nodiscard]] std::vector<std::span<const std::byte>> readable() const;
  [[nodiscard]] std::vector<std::span<std::byte>> writable() const;

 private:
  void release() noexcept;

  std::vector<Py_buffer> views_;
};

/// The UTF-8 text of a list's strings. It keeps the strings alive.
class PyKeys {
 public:
  /// Throws TypeError if an element is not a string, and UnicodeEncodeError.
  explicit PyKeys(const py::list& strings);
  [[nodiscard]] std::span<const std::string_view> views() const { return views_; }

 private:
  std::vector<py::object> strings_;
  std::vector<std::string_view> views_;
};

}  // namespace kvferry::python
