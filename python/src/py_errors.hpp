// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace kvferry::python {

/// Registers the core's exceptions in Python, with the same tree.
void bind_errors(pybind11::module_& module);

}  // namespace kvferry::python
