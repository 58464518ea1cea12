// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace kvferry::python {

namespace py = pybind11;

/// The class ObjectClient, with the methods of LMCache's native clients.
void bind_object_client(py::module_& module);

}  // namespace kvferry::python
