// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace kvferry::python {

/// SchedulerEngine, as Python sees it.
void bind_scheduler_engine(pybind11::module_& module);

}  // namespace kvferry::python
