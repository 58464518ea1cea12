// SPDX-License-Identifier: Apache-2.0
#include "py_errors.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/recorder/recording.hpp"

#include "py_text.hpp"

#include <exception>
#include <string>

namespace kvferry::python {
namespace {

namespace py = pybind11;

/// A path in an error message may not be UTF-8, so it is converted for the Python text.
template <class AnError>
void make_readable() {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const AnError& error) {
      // If a translator throws, the next one handles the exception.
      throw AnError(std::string(readable(error.what())));
    }
  });
}

}  // namespace

void bind_errors(py::module_& module) {
  // The translator that was registered last is tried first, so the root is registered first.
  const auto root = py::register_exception<Error>(module, "Error", PyExc_RuntimeError);
  py::register_exception<ConfigError>(module, "ConfigError", root);
  py::register_exception<ResourceError>(module, "ResourceError", root);
  py::register_exception<TopologyError>(module, "TopologyError", root);
  py::register_exception<ProtocolError>(module, "ProtocolError", root);
  py::register_exception<DeviceError>(module, "DeviceError", root);
  py::register_exception<kvferry::TimeoutError>(module, "TimeoutError", root);
  py::register_exception<recorder::RecordingError>(module, "RecordingError", root);
  make_readable<ConfigError>();
  make_readable<ResourceError>();
  make_readable<recorder::RecordingError>();
}

}  // namespace kvferry::python
