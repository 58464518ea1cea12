// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace kvferry::python {

/// Recordings of engines (recorder/): how they are read.
void bind_recording(pybind11::module_& module);

}  // namespace kvferry::python
