// SPDX-License-Identifier: Apache-2.0
#include "py_recording.hpp"

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/replay/replay.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/recorder/recorder.hpp"
#include "kvferry/recorder/recording.hpp"
#include "kvferry/recorder/saved_recording.hpp"

#include "indexed_recording.hpp"
#include "py_text.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvferry::python {
namespace {

namespace py = pybind11;
using recorder::Event;
using recorder::EventKind;
using recorder::Recorder;
using recorder::Recording;
using recorder::RecordingFile;

/// An event with words of its own.
struct OwnEvent {
  std::uint64_t position;
  std::string kind;
  std::uint8_t flags;
  std::uint32_t number;
  std::vector<std::uint64_t> words;
};

OwnEvent own(const Event& event) {
  return {event.position,
          recorder::name_of(event.kind()),
          event.head.flags(),
          event.number(),
          {event.words.begin(), event.words.end()}};
}

std::unordered_set<EventKind> kinds_of(const std::vector<std::string>& names) {
  std::map<std::string, EventKind> by_name;
  for (std::uint32_t i = 0; i < recorder::kMaxKinds; ++i) {
    const auto kind = static_cast<EventKind>(i);
    by_name.emplace(recorder::name_of(kind), kind);
  }
  std::unordered_set<EventKind> kinds;
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) throw py::value_error("no kind of event is called " + name);
    kinds.insert(found->second);
  }
  return kinds;
}

std::vector<OwnEvent> select(const IndexedRecording& from,
                             const std::optional<std::vector<std::string>>& names,
                             std::optional<std::uint32_t> number) {
  const std::unordered_set<EventKind> kinds = kinds_of(names.value_or(std::vector<std::string>()));
  std::vector<OwnEvent> found;
  const auto take = [&](const auto& events) {
    for (const Event& event : events) {
      if (!names || kinds.contains(event.kind())) found.push_back(own(event));
    }
  };
  if (number) {
    take(from.with(*number));
  } else {
    take(from.events());
  }
  return found;
}

/// The same, of all requests, one after the other: a large recording as Python's objects takes a
/// hundred times its bytes.
class Chosen {
 public:
  Chosen(const Recording& from, const std::vector<std::string>& names)
      : at_(from.begin()), end_(from.end()), kinds_(kinds_of(names)) {}

  OwnEvent next() {
    while (at_ != end_) {
      const Event event = *at_++;
      if (kinds_.contains(event.kind())) return own(event);
    }
    throw py::stop_iteration();
  }

 private:
  Recording::Iterator at_;
  Recording::Iterator end_;
  std::unordered_set<EventKind> kinds_;
};

std::vector<OwnEvent> about(const IndexedRecording& from, std::uint64_t key) {
  std::vector<OwnEvent> found;
  for (const auto& [event, store] : from.about(key)) {
    // What else the event says is about other keys, too, and can be long.
    OwnEvent one{
        event.position, recorder::name_of(event.kind()), event.head.flags(), event.number(), {}};
    if (store) one.words = {*store};
    found.push_back(std::move(one));
  }
  return found;
}

std::vector<std::uint64_t> times(const IndexedRecording& from,
                                 const std::vector<std::uint64_t>& positions) {
  std::vector<std::uint64_t> found;
  found.reserve(positions.size());
  for (const std::uint64_t position : positions) found.push_back(from.time_at(position));
  return found;
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

using DifferenceTuple = std::tuple<std::uint64_t, std::string, std::string, std::string>;

/// What a file says may be impossible, and must not stop this process.
connector::ReplayResult replay_apart(const std::string& path) {
  return connector::replay(Recording::from_file(path), {.where = connector::ReplayWhere::kInChild});
}

std::tuple<std::uint64_t, std::uint64_t, std::optional<DifferenceTuple>, std::optional<std::string>>
replay_file(const std::string& path) {
  const connector::ReplayResult result = replay_apart(path);
  std::optional<DifferenceTuple> difference;
  if (result.difference) {
    difference.emplace(result.difference->position, result.difference->call,
                       result.difference->recorded, result.difference->replayed);
  }
  return {result.num_calls, result.num_events, std::move(difference), result.last_error};
}

std::tuple<std::string, std::optional<std::string>> replayed_books(const std::string& path) {
  connector::ReplayResult result = replay_apart(path);
  if (result.difference) {
    throw recorder::RecordingError(
        "a replay decides otherwise than what is recorded after " +
        std::to_string(result.num_calls) +
        " calls, so its books are others; `kvferry replay` shows where (" + path + ")");
  }
  return {std::move(result.books), std::move(result.last_error)};
}

void save(const IndexedRecording& first, const std::string& path,
          const std::vector<IndexedRecording*>& others) {
  std::vector<const Recording*> parts{&first.events()};
  for (const IndexedRecording* one : others) parts.push_back(&one->events());
  recorder::save(parts, path);
}

/// The newest text of this kind, with its position.
std::optional<std::pair<std::uint64_t, py::str>> last_text(const IndexedRecording& from,
                                                           const std::string& name) {
  const std::unordered_set<EventKind> kinds = kinds_of({name});
  std::optional<std::pair<std::uint64_t, py::str>> found;
  for (const Event& event : from.events()) {
    if (!kinds.contains(event.kind())) continue;
    const auto bytes = std::as_bytes(event.words);
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    text.resize(std::min(text.find('\0'), text.size()));
    found.emplace(event.position, readable(text));
  }
  return found;
}

std::vector<std::string> texts(const IndexedRecording& indexed, std::size_t most) {
  const Recording& from = indexed.events();
  std::vector<std::string> lines;
  std::size_t num_events = 0;
  for (auto it = from.begin(); it != from.end(); ++it) ++num_events;
  std::size_t at = 0;
  for (const Event& event : from) {
    if (at++ + most >= num_events) lines.push_back(recorder::to_text(event));
  }
  return lines;
}

}  // namespace

void bind_recording(py::module_& module) {
  py::class_<Recorder, std::shared_ptr<Recorder>>(
      module, "Recorder", "The recording of a rank, which its WorkerEngine writes.")
      .def(
          py::init([](const std::string& path, std::uint64_t ring_bytes, std::string config) {
            return std::make_shared<Recorder>(
                path, ring_bytes,
                recorder::RecordedBy{KVFERRY_VERSION, connector::kWireVersion, std::move(config)});
          }),
          py::arg("path"), py::arg("ring_bytes"), py::arg("config"),
          "Makes the file. `config`: lines of text for who reads it. Raises ConfigError for a file "
          "that exists, ResourceError if there is no memory for it.");
  py::class_<OwnEvent>(module, "RecordedEvent", "An event of a recording.")
      .def_readonly("position", &OwnEvent::position,
                    "Words recorded before it, from the beginning.")
      .def_readonly("kind", &OwnEvent::kind)
      .def_readonly("flags", &OwnEvent::flags)
      .def_readonly("number", &OwnEvent::number)
      .def_readonly("words", &OwnEvent::words, "What it says, as recorder/event.hpp defines it.");
  py::class_<Chosen>(module, "RecordedEvents", "An iterator over events of a recording.")
      .def("__iter__", [](Chosen& self) -> Chosen& { return self; })
      .def("__next__", &Chosen::next);
  py::class_<IndexedRecording>(
      module, "Recording",
      "Events that were read from a recording: a copy, which nothing overwrites. Thread-safe.")
      .def_property_readonly(
          "begin", [](const IndexedRecording& of) { return of.events().begin_position(); },
          "Position of the first event; not 0: what came before was overwritten.")
      .def_property_readonly(
          "end", [](const IndexedRecording& of) { return of.events().end_position(); },
          "Where the next reading goes on.")
      .def("select", &select, py::arg("kinds") = py::none(), py::arg("number") = py::none(),
           py::call_guard<py::gil_scoped_release>(),
           "Returns the events of these kinds, and with this number, in their order; None: of all. "
           "Raises ValueError for a kind that does not exist.")
      .def(
          "each",
          [](const IndexedRecording& from, const std::vector<std::string>& kinds) {
            return Chosen(from.events(), kinds);
          },
          py::arg("kinds"), py::keep_alive<0, 1>(),
          "Iterates over the events of these kinds, in their order, of which Python holds one at a "
          "time. Raises ValueError for a kind that does not exist.")
      .def("about", &about, py::arg("key"), py::call_guard<py::gil_scoped_release>(),
           "Returns what became of a block, in its order. Kinds: store, skipped, left and came, "
           "which name the key; store ended and aborted of the key's stores. The only word is the "
           "store, if the event is about one.")
      .def(
          "times", &times, py::arg("positions"), py::call_guard<py::gil_scoped_release>(),
          "Returns the newest time (nanoseconds of the engine's steady clock) that was recorded up "
          "to each of the positions; 0: none.")
      .def("save", &save, py::arg("path"), py::arg("others") = std::vector<IndexedRecording*>(),
           py::call_guard<py::gil_scoped_release>(),
           "Writes it into a new file of the same format, which only this user can open, and the "
           "others behind it, as the file's next parts. Raises ConfigError for a file that exists, "
           "ResourceError if it cannot be written.")
      .def("last_text", &last_text, py::arg("kind"),
           "Returns position and text of the newest event of a kind that has a text (threw, broken "
           "invariant, books), or None. Raises ValueError for a kind that does not exist.")
      .def("texts", &texts, py::arg("most"), py::call_guard<py::gil_scoped_release>(),
           "Returns so many of the newest events, one line each.");
  module.def("replay_recording", &replay_file, py::arg("path"),
             "Makes the recorded calls again, of a new scheduler side. Returns the number of calls "
             "and of equal events; the first difference as its position, its call, what was "
             "recorded and what was replayed, or None; and the error in which the last call "
             "ended, or None. Raises RecordingError if the recording cannot be replayed.");
  module.def(
      "replayed_books", &replayed_books, py::arg("path"),
      "Replays the recording, and returns what was under way at its end (SchedulerEngine::books(), "
      "JSON; of a broken invariant, before the call that found it), and the error in which the "
      "last "
      "call ended, or None. Raises RecordingError if it cannot be replayed, or decides otherwise.");
  module.def("recorded_keys", &recorded_keys, py::arg("hashes"), py::arg("hash_bytes"),
             py::arg("group"), py::arg("weights"),
             "Returns, for each word of a 'hashes' event, the key of its block in a KV cache group "
             "under these weights, as other events name it.");
  py::class_<RecordingFile>(module, "RecordingFile",
                            "An open recording, which its engine may be writing.")
      .def(
          py::init<const std::string&, std::size_t>(), py::arg("path"), py::arg("part") = 0,
          "Opens one of the recordings in the file. Raises RecordingError for a file that is none, "
          "ResourceError if it cannot be read.")
      .def_property_readonly("has_next", &RecordingFile::has_next,
                             "Whether the file has a part after this one: a rank's recording.")
      .def(
          "read",
          [](const RecordingFile& of, std::uint64_t begin) {
            return std::make_unique<IndexedRecording>(of.read(begin));
          },
          py::arg("begin") = 0, py::call_guard<py::gil_scoped_release>(),
          "Reads the events from this position on, which is the end of an earlier reading. If the "
          "result begins later, the engine has overwritten what is between.")
      .def_property_readonly("version",
                             [](const RecordingFile& of) { return readable(of.head().version); })
      .def_property_readonly("pid", [](const RecordingFile& of) { return of.head().pid; })
      .def_property_readonly("boot_id",
                             [](const RecordingFile& of) { return readable(of.head().boot_id); })
      .def_property_readonly("config",
                             [](const RecordingFile& of) { return readable(of.head().config); })
      .def_property_readonly("ring_bytes",
                             [](const RecordingFile& of) { return of.head().ring_bytes; })
      .def_property_readonly(
          "wall_ns", [](const RecordingFile& of) { return of.head().wall.count(); },
          "When it began, since 1970.")
      .def_property_readonly(
          "steady_ns", [](const RecordingFile& of) { return of.head().steady.count(); },
          "The same moment by the clock of its events.");
}

}  // namespace kvferry::python
