// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

namespace kvferry::python {

/// Makes a Python text from bytes that may not be UTF-8, such as a path or the content of a damaged
/// file. Other bytes are written as \xff. Needs the GIL.
inline pybind11::str readable(std::string_view text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (decoded == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(decoded);
}

}  // namespace kvferry::python
