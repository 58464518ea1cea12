// SPDX-License-Identifier: Apache-2.0
#include "py_errors.hpp"
#include "py_machine.hpp"
#include "py_object_client.hpp"
#include "py_recording.hpp"
#include "py_scheduler_binding.hpp"
#include "py_tier.hpp"
#include "py_worker_engine.hpp"

#include <pybind11/pybind11.h>

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of kvferry.";
  module.attr("__version__") = KVFERRY_VERSION;
  kvferry::python::bind_errors(module);
  kvferry::python::bind_scheduler_engine(module);
  kvferry::python::bind_worker_engine(module);
  kvferry::python::bind_object_client(module);
  kvferry::python::bind_machine(module);
  kvferry::python::bind_tier(module);
  kvferry::python::bind_recording(module);
}
