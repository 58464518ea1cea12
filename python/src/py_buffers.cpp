// SPDX-License-Identifier: Apache-2.0
#include "py_buffers.hpp"

#include <string>

namespace kvferry::python {

PyBuffers::PyBuffers(const py::list& objects, Access access) {
  const int flags = access == Access::kWrite ? PyBUF_WRITABLE : PyBUF_SIMPLE;
  views_.reserve(objects.size());
  for (const py::handle object : objects) {
    Py_buffer& view = views_.emplace_back();
    if (PyObject_GetBuffer(object.ptr(), &view, flags) == 0) continue;
    views_.pop_back();
    release();
    throw py::error_already_set();
  }
}

PyBuffers::~PyBuffers() {
  const py::gil_scoped_acquire locked;
  release();
}

void PyBuffers::release() noexcept {
  for (Py_buffer& view : views_) PyBuffer_Release(&view);
  views_.clear();
}

std::vector<std::span<const std::byte>> PyBuffers::readable() const {
  std::vector<std::span<const std::byte>> spans;
  spans.reserve(views_.size());
  for (const Py_buffer& view : views_) {
    spans.emplace_back(static_cast<const std::byte*>(view.buf), static_cast<std::size_t>(view.len));
  }
  return spans;
}

std::vector<std::span<std::byte>> PyBuffers::writable() const {
  std::vector<std::span<std::byte>> spans;
  spans.reserve(views_.size());
  for (const Py_buffer& view : views_) {
    spans.emplace_back(static_cast<std::byte*>(view.buf), static_cast<std::size_t>(view.len));
  }
  return spans;
}

PyKeys::PyKeys(const py::list& strings) {
  strings_.reserve(strings.size());
  views_.reserve(strings.size());
  for (const py::handle string : strings) {
    if (!PyUnicode_Check(string.ptr())) {
      throw py::type_error("a key is a " + std::string(Py_TYPE(string.ptr())->tp_name) +
                           "; LMCache's keys are strings");
    }
    Py_ssize_t length = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(string.ptr(), &length);
    if (text == nullptr) throw py::error_already_set();
    strings_.push_back(py::reinterpret_borrow<py::object>(string));
    views_.emplace_back(text, static_cast<std::size_t>(length));
  }
}

}  // namespace kvferry::python
