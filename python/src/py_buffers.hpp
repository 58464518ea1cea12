// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

/// Python's strings and buffers as memory. Every call needs the GIL.
namespace kvferry::python {

namespace py = pybind11;

enum class Access { kRead, kWrite };

/// The memory of a list's buffer objects, which nobody can resize or free while this lives. May be
/// destroyed without the GIL, which it takes then.
class PyBuffers {
 public:
  /// Throws what the objects raise that are no contiguous buffers, or not writable.
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

/// The UTF-8 text of a list's strings, which live as long as this.
class PyKeys {
 public:
  /// Throws TypeError for what is no string, and UnicodeEncodeError.
  explicit PyKeys(const py::list& strings);
  [[nodiscard]] std::span<const std::string_view> views() const { return views_; }

 private:
  std::vector<py::object> strings_;
  std::vector<std::string_view> views_;
};

}  // namespace kvferry::python
