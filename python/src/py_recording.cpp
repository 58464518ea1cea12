// SPDX-License-Identifier: Apache-2.0
#include "py_recording.hpp"

#include "kvferry/connector/replay/replay.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/recorder/recording.hpp"

#include "py_text.hpp"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvferry::python {
namespace {

namespace py = pybind11;
using recorder::Recording;
using recorder::RecordingFile;

/// What Python reads of an event: position, kind, flags, number, words.
using EventTuple = std::tuple<std::uint64_t, std::string, std::uint32_t, std::uint32_t,
                              std::vector<std::uint64_t>>;

py::typing::Dict<py::str, py::object> head_of(const RecordingFile& file) {
  const recorder::RecordingHead& head = file.head();
  py::typing::Dict<py::str, py::object> of;
  of["version"] = head.version;
  of["wire_version"] = head.wire_version;
  of["boot_id"] = head.boot_id;
  of["pid"] = head.pid;
  of["wall_ns"] = head.wall.count();
  of["steady_ns"] = head.steady.count();
  of["ring_bytes"] = head.ring_bytes;
  of["config"] = head.config;
  return of;
}

std::pair<std::uint64_t, std::vector<EventTuple>> read(const RecordingFile& file,
                                                       std::uint64_t from) {
  const Recording recording = file.read(from);
  std::vector<EventTuple> events;
  for (const recorder::Event& event : recording) {
    events.emplace_back(event.position, recorder::name_of(event.kind()), event.head.flags(),
                        event.number(),
                        std::vector<std::uint64_t>(event.words.begin(), event.words.end()));
  }
  return {recording.end_position(), std::move(events)};
}

using DifferenceTuple = std::tuple<std::uint64_t, std::string, std::string, std::string>;

std::tuple<std::uint64_t, std::uint64_t, std::optional<DifferenceTuple>, std::optional<std::string>>
replay_file(const std::string& path) {
  const connector::ReplayResult result = connector::replay(Recording::from_file(path));
  std::optional<DifferenceTuple> difference;
  if (result.difference) {
    difference.emplace(result.difference->position, result.difference->call,
                       result.difference->recorded, result.difference->replayed);
  }
  return {result.num_calls, result.num_events, std::move(difference), result.last_error};
}

std::vector<std::uint64_t> recorded_keys(const std::vector<std::uint64_t>& hashes,
                                         std::uint16_t hash_bytes, std::uint16_t group,
                                         std::uint64_t weights) {
  std::vector<std::uint64_t> keys;
  keys.reserve(hashes.size());
  for (const std::uint64_t hash : hashes) {
    keys.push_back(
        cpu_tier::BlockKey::mixed_of(hash, hash_bytes, GroupId(group), WeightsId(weights)));
  }
  return keys;
}

}  // namespace

void bind_recording(py::module_& module) {
  py::class_<RecordingFile>(module, "RecordingFile",
                            "A recording of a scheduler side, which may be written meanwhile.")
      .def(py::init<const std::string&>(), py::arg("path"),
           "Raises RecordingError for a file that is no recording, and ResourceError if it cannot "
           "be read.")
      .def_property_readonly("head", &head_of,
                             "What the recording says about its making, with the engine's "
                             "configuration as a text.")
      .def("read", &read, py::arg("position") = 0,
           "Returns the position after the last event, and the events from a position on that are "
           "left: for each its position, its kind, flags, number and words "
           "(recorder/include/kvferry/recorder/event.hpp). The first one begins after `position` "
           "if the writer was faster.");
  module.def("recorded_keys", &recorded_keys, py::arg("hashes"), py::arg("hash_bytes"),
             py::arg("group"), py::arg("weights"),
             "Returns, for each word of a 'hashes' event, the key of its block in a KV cache group "
             "under these weights, as other events name it.");
  module.def("replay_recording", &replay_file, py::arg("path"),
             "Makes the recorded calls again, of a new scheduler side. Returns the number of calls "
             "and of equal events; the first difference as its position, its call, what was "
             "recorded and what was replayed, or None; and the error in which the last call "
             "ended, or None. Raises RecordingError if the recording cannot be replayed.");
}

}  // namespace kvferry::python
