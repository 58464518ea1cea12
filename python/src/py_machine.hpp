// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace kvferry::python {

/// Functions for `kvferry doctor` that report the machine's properties and limits. They only read.
void bind_machine(pybind11::module_& module);

}  // namespace kvferry::python
