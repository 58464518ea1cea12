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

/// Adds the exception class of `AnError`, with its docstring.
template <class AnError>
py::object add(py::module_& module, const char* name, py::handle base, const char* doc) {
  py::object made = py::register_exception<AnError>(module, name, base);
  made.attr("__doc__") = doc;
  return made;
}

}  // namespace

void bind_errors(py::module_& module) {
  // The translator that was registered last is tried first, so the root is registered first.
  const py::object root =
      add<Error>(module, "Error", PyExc_RuntimeError,
                 "The root of all errors of kvferry: the environment or the caller is at fault.");
  add<ConfigError>(module, "ConfigError", root, "A configuration value that cannot be used.");
  add<ResourceError>(module, "ResourceError", root,
                     "The machine has too little of a resource (memory, a limit).");
  add<TopologyError>(module, "TopologyError", root,
                     "Two sides disagree about world size, rank, layout or version. The message "
                     "names both.");
  add<ProtocolError>(module, "ProtocolError", root,
                     "A plan or report that cannot be decoded, or does not fit the state it "
                     "meets.");
  add<DeviceError>(module, "DeviceError", root, "A device call failed.");
  add<kvferry::TimeoutError>(module, "TimeoutError", root, "A wait reached its time limit.");
  add<recorder::RecordingError>(module, "RecordingError", root,
                                "A file that is no recording, or is damaged, or was made by "
                                "another version.");
  make_readable<ConfigError>();
  make_readable<ResourceError>();
  make_readable<recorder::RecordingError>();
}

}  // namespace kvferry::python
