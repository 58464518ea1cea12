// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace kvferry::python {

/// WorkerEngine, as Python sees it, and the back ends that it can have.
void bind_worker_engine(pybind11::module_& module);

}  // namespace kvferry::python
