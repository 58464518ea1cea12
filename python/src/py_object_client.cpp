// SPDX-License-Identifier: Apache-2.0
#include "py_object_client.hpp"

#include "kvferry/lmcache/object_client.hpp"

#include "py_buffers.hpp"
#include "py_options.hpp"
#include "py_tier_options.hpp"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvferry::python {
namespace {

using lmcache::MemoryOptions;
using lmcache::ObjectClient;
using lmcache::SharedMemoryOptions;
using Strings = py::typing::List<py::str>;
using Buffers = py::typing::List<py::object>;
using PyCompletion = std::tuple<std::uint64_t, bool, std::string, std::optional<std::vector<bool>>>;

/// All options of a Python ObjectClient.
struct PyClientOptions {
  lmcache::MemoryOptions memory;
  /// With an empty path the memory belongs to this client only.
  lmcache::SharedMemoryOptions shared;
  cpu_tier::Eviction eviction = cpu_tier::Eviction::kAdaptive;
  /// Number of copy threads; 0: chosen by the machine's processors.
  std::uint32_t num_workers = 0;
  lmcache::Verification verify = lmcache::Verification::kAll;
};

lmcache::Verification verification(const OptionValue& value) {
  return value.text() == "off" ? lmcache::Verification::kOff : lmcache::Verification::kAll;
}

template <auto Member>
void set_memory(PyClientOptions& options, const OptionValue& value) {
  set_field<&PyClientOptions::memory, Member>(options, value);
}
template <auto Member>
void set_shared(PyClientOptions& options, const OptionValue& value) {
  set_field<&PyClientOptions::shared, Member>(options, value);
}

constexpr OptionKey<PyClientOptions> kKeys[] = {
    {"capacity", set_memory<&MemoryOptions::capacity_bytes>, Presence::kRequired},
    {"numa_node", set_memory<&MemoryOptions::numa_node>},
    {"huge_pages", set_field_by<page_kind, &PyClientOptions::memory, &MemoryOptions::pages>},
    {"num_workers", set_field<&PyClientOptions::num_workers>},
    {"eviction", set_field_by<eviction, &PyClientOptions::eviction>},
    {"verify", set_field_by<verification, &PyClientOptions::verify>},
    {"shared_path", set_shared<&SharedMemoryOptions::path>},
    {"shared_keep", set_field_by<at_exit, &PyClientOptions::shared, &SharedMemoryOptions::at_exit>},
    {"shared_weight", set_shared<&SharedMemoryOptions::weight>},
    {"shared_bytes_limit", set_shared<&SharedMemoryOptions::bytes_limit>},
    {"shared_chunk_bytes", set_shared<&SharedMemoryOptions::chunk_bytes>},
    {"grace_s", set_shared<&SharedMemoryOptions::grace>},
};

std::unique_ptr<ObjectClient> make_client(const py::KWArgs<py::object>& given) {
  auto options = read_options<PyClientOptions>("ObjectClient", kKeys, given);
  if (!options.shared.path.empty()) options.memory.shared = std::move(options.shared);
  // This populates the first memory, and reads the claims of other processes.
  const py::gil_scoped_release unlocked;
  return std::make_unique<ObjectClient>(std::make_unique<lmcache::ObjectStore>(
                                            lmcache::make_memory(options.memory), options.eviction),
                                        options.num_workers, options.verify);
}

void check_counts(const py::list& keys, const py::list& buffers) {
  if (keys.size() == buffers.size()) return;
  throw py::value_error(std::to_string(keys.size()) + " keys and " +
                        std::to_string(buffers.size()) + " buffers: one for each is expected");
}

std::uint64_t submit_set(ObjectClient& client, const Strings& keys, const Buffers& buffers) {
  check_counts(keys, buffers);
  const PyKeys names(keys);
  auto held = std::make_shared<PyBuffers>(buffers, Access::kRead);
  const auto values = held->readable();
  const py::gil_scoped_release unlocked;
  return client.submit_set(names.views(), values, std::move(held)).value();
}

std::uint64_t submit_get(ObjectClient& client, const Strings& keys, const Buffers& buffers) {
  check_counts(keys, buffers);
  const PyKeys names(keys);
  auto held = std::make_shared<PyBuffers>(buffers, Access::kWrite);
  const auto places = held->writable();
  const py::gil_scoped_release unlocked;
  return client.submit_get(names.views(), places, std::move(held)).value();
}

template <auto Submit>
std::uint64_t submit_keys(ObjectClient& client, const Strings& keys) {
  const PyKeys names(keys);
  const py::gil_scoped_release unlocked;
  return (client.*Submit)(names.views()).value();
}

std::vector<PyCompletion> drain(ObjectClient& client) {
  std::vector<lmcache::Completion> completions;
  std::vector<PyCompletion> result;
  const py::gil_scoped_release unlocked;
  completions = client.drain();
  result.reserve(completions.size());
  for (lmcache::Completion& completion : completions) {
    result.emplace_back(completion.id.value(), completion.ok, std::move(completion.error),
                        std::move(completion.found));
  }
  return result;
}

void close(ObjectClient& client) {
  std::vector<std::shared_ptr<void>> keepers;
  {
    const py::gil_scoped_release unlocked;
    client.close();
    keepers = client.take_keepers();
  }
  keepers.clear();
}

std::map<std::string, std::uint64_t> snapshot(const ObjectClient& client) {
  lmcache::ClientSnapshot now;
  {
    const py::gil_scoped_release unlocked;
    now = client.snapshot();
  }
  std::map<std::string, std::uint64_t> counts;
  counts["num_objects"] = now.store.num_objects;
  counts["num_objects_of_others"] = now.store.num_objects_of_others;
  counts["used_bytes"] = now.store.slot_bytes;
  counts["chunk_bytes"] = now.store.chunk_bytes;
  counts["ready_bytes"] = now.store.ready_bytes;
  counts["num_size_classes"] = now.store.num_size_classes;
  counts["num_stored_total"] = now.store.num_stored_total;
  counts["num_evicted_total"] = now.store.num_evicted_total;
  counts["num_refused_total"] = now.store.num_refused_total;
  counts["num_damaged_total"] = now.store.num_damaged_total;
  counts["num_hits_total"] = now.num_hits_total;
  counts["num_misses_total"] = now.num_misses_total;
  counts["stored_bytes_total"] = now.stored_bytes_total;
  counts["loaded_bytes_total"] = now.loaded_bytes_total;
  counts["num_failed_total"] = now.num_failed_total;
  counts["num_open"] = now.num_open;
  return counts;
}

}  // namespace

void bind_object_client(py::module_& module) {
  py::class_<ObjectClient>(module, "ObjectClient",
                           "An object store in host memory, with the interface of LMCache's native "
                           "clients. Each accepted batch has exactly one completion. Thread-safe.")
      .def(py::init(&make_client),
           "The keywords are the keys of the table in python/src/py_object_client.cpp: the user's "
           "keys, and `grace_s`, the seconds for which a copy can continue after its process has "
           "ended. None means the default. Raises ResourceError, or a ConfigError that names a key "
           "that is unknown, missing or of the wrong type.")
      .def("event_fd", &ObjectClient::event_fd,
           "A file descriptor that is readable while there are completions.")
      .def("submit_batch_set", &submit_set, py::arg("keys"), py::arg("buffers"),
           "Stores all values, or none; returns the batch's id. The buffers can be any contiguous "
           "ones, and must not change until the completion. Raises Error after close().")
      .def("submit_batch_get", &submit_get, py::arg("keys"), py::arg("buffers"),
           "Copies into each buffer the value that is held under its key with exactly its size; "
           "returns the batch's id. A value that is not what was stored is a miss, and its buffer "
           "is undefined. Raises Error after close().")
      .def("submit_batch_exists", &submit_keys<&ObjectClient::submit_exists>, py::arg("keys"),
           "Checks which keys are held; returns the batch's id. Raises Error after close().")
      .def("submit_batch_delete", &submit_keys<&ObjectClient::submit_delete>, py::arg("keys"),
           "Forgets keys; returns the batch's id. Raises Error after close().")
      .def("drain_completions", &drain,
           "Takes the completions: tuples (id, ok, error, flags). There is a flag for each key: "
           "whether it was loaded (get), is held (exists) or was held (delete); None for a set.")
      .def("close", &close,
           "Ends the work under way. Afterwards no thread touches a buffer. Completions can still "
           "be drained. Idempotent.")
      .def("snapshot", &snapshot, "Returns current values and counters.")
      .def_property_readonly("num_workers", &ObjectClient::num_workers)
      .def(
          "memory", [](ObjectClient& client) { return client.store().memory().description(); },
          "Describes the memory that was obtained, in one line.",
          py::call_guard<py::gil_scoped_release>())
      .def(
          "warning", [](ObjectClient& client) { return client.store().memory().warning(); },
          "Returns a warning for the user; usually empty.",
          py::call_guard<py::gil_scoped_release>())
      .def(
          "take_warnings", [](ObjectClient& client) { return client.store().take_warnings(); },
          "Takes the lines about values that were found damaged since the last call.",
          py::call_guard<py::gil_scoped_release>());
}

}  // namespace kvferry::python
