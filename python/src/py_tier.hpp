// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace kvferry::python {

/// Functions about the shared tiers of this machine, for `kvferry tier`, and about how tiers are
/// divided.
void bind_tier(pybind11::module_& module);

}  // namespace kvferry::python
