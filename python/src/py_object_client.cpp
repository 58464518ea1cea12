// SPDX-License-Identifier: Apache-2.0
#include "py_object_client.hpp"

#include "kvferry/lmcache/object_client.hpp"

#include "py_buffers.hpp"
#include "py_durations.hpp"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <chrono>
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

using lmcache::ObjectClient;
using Strings = py::typing::List<py::str>;
using Buffers = py::typing::List<py::object>;
using PyCompletion = std::tuple<std::uint64_t, bool, std::string, std::optional<std::vector<bool>>>;

std::unique_ptr<ObjectClient> make_client(
    std::uint64_t capacity_bytes, std::optional<std::uint32_t> numa_node, const std::string& pages,
    const std::string& eviction, std::uint32_t num_workers,
    const std::optional<std::string>& shared_path, bool shared_keep, std::uint32_t shared_weight,
    std::uint64_t shared_bytes_limit, std::uint64_t shared_chunk_bytes, double grace_s) {
  lmcache::MemoryOptions options;
  options.capacity_bytes = capacity_bytes;
  options.numa_node = numa_node;
  if (pages != "auto") options.pages = cpu_tier::page_kind_from(pages);
  if (shared_path) {
    options.shared = {.path = *shared_path,
                      .chunk_bytes = shared_chunk_bytes,
                      .at_exit = shared_keep ? cpu_tier::AtExit::kKeep : cpu_tier::AtExit::kRemove,
                      .weight = shared_weight,
                      .bytes_limit = shared_bytes_limit,
                      .grace = seconds_of("grace_s", grace_s)};
  }
  const cpu_tier::Eviction policy = cpu_tier::eviction_from(eviction);
  // The first chunk is populated, and processes are asked what they claim.
  const py::gil_scoped_release unlocked;
  return std::make_unique<ObjectClient>(
      std::make_unique<lmcache::ObjectStore>(lmcache::make_memory(options), policy), num_workers);
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
                           "An object store in host memory as LMCache drives a native client. Each "
                           "batch that was accepted has exactly one completion. Thread-safe.")
      .def(py::init(&make_client), py::kw_only(), py::arg("capacity_bytes"),
           py::arg("numa_node") = py::none(), py::arg("pages") = "auto",
           py::arg("eviction") = "adaptive", py::arg("num_workers") = 0,
           py::arg("shared_path") = py::none(), py::arg("shared_keep") = true,
           py::arg("shared_weight") = 1, py::arg("shared_bytes_limit") = 0,
           py::arg("shared_chunk_bytes") = 0, py::arg("grace_s") = 30,
           "`capacity_bytes`: of host memory, at most. `numa_node`: None for wherever the kernel "
           "puts it. `pages`: 'auto', 'normal', 'transparent' or 'huge'. `eviction`: 'lru', 'arc' "
           "or "
           "'adaptive'. `num_workers`: threads that copy; 0 for all that pay. `shared_path`: a "
           "file of shared memory, of `capacity_bytes` for all that name it; None for memory that "
           "goes with the process. `shared_keep`: whether it stays behind the last of them; "
           "`shared_weight`: of the memory that is this one's part; `shared_bytes_limit`: of it, "
           "at most, 0 for all; `shared_chunk_bytes`: that change hands at a time, 0 for those of "
           "a file that is there; `grace_s`: how long a copy may go on whose process is gone. "
           "Raises ConfigError or ResourceError.")
      .def("event_fd", &ObjectClient::event_fd,
           "A file descriptor that is readable while there are completions.")
      .def("submit_batch_set", &submit_set, py::arg("keys"), py::arg("buffers"),
           "Stores all values, or none; returns the batch's id. The buffers, any contiguous ones, "
           "stay as they are until the completion. Raises Error after close().")
      .def("submit_batch_get", &submit_get, py::arg("keys"), py::arg("buffers"),
           "Copies into each buffer the value that is held under its key with exactly its size; "
           "returns the batch's id. Raises Error after close().")
      .def("submit_batch_exists", &submit_keys<&ObjectClient::submit_exists>, py::arg("keys"),
           "Asks which keys are held; returns the batch's id. Raises Error after close().")
      .def("submit_batch_delete", &submit_keys<&ObjectClient::submit_delete>, py::arg("keys"),
           "Forgets keys; returns the batch's id. Raises Error after close().")
      .def(
          "drain_completions", &drain,
          "Takes what has completed: tuples (id, ok, error, for each key whether it was loaded, is "
          "there, was there; None of a set).")
      .def("close", &close,
           "Ends what is under way; nobody touches a buffer afterwards. Completions can still be "
           "drained. Idempotent.")
      .def("snapshot", &snapshot, "Levels and counters.")
      .def_property_readonly("num_workers", &ObjectClient::num_workers)
      .def(
          "memory", [](ObjectClient& client) { return client.store().memory().description(); },
          "What memory was obtained, in a line.", py::call_guard<py::gil_scoped_release>())
      .def(
          "warning", [](ObjectClient& client) { return client.store().memory().warning(); },
          "What its user is to be told; usually nothing.",
          py::call_guard<py::gil_scoped_release>());
}

}  // namespace kvferry::python
