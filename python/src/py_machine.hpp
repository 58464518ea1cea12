// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace kvferry::python {

/// What this machine allows and has, for `kvferry doctor`: reads only.
void bind_machine(pybind11::module_& module);

}  // namespace kvferry::python
