// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace kvferry::python {

/// The Python class WorkerEngine, and its back ends.
void bind_worker_engine(pybind11::module_& module);

}  // namespace kvferry::python
