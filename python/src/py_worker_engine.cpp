// SPDX-License-Identifier: Apache-2.0
#include "py_worker_engine.hpp"

#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/gpu/backend_table.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "py_worker_options.hpp"

#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kvferry::python {
namespace {

namespace py = pybind11;

using connector::WorkerEngine;
using Figures = std::map<std::string, double>;
using Counts = std::map<std::string, std::uint64_t>;
using Timings = std::map<std::string, std::vector<double>>;

std::unique_ptr<gpu::Device> make_device(const PyWorkerOptions& options) {
  const gpu::BackendRow& backend = gpu::backend_from(options.backend);
  if (backend.kind == gpu::BackendKind::kHost) return gpu::make_host_device(options.host_link);
  return backend.make_device(options.device_ordinal, {.library = options.driver_library});
}

using ClassFragments = std::vector<std::vector<PyFragment>>;

std::vector<gpu::BlockGeometry> geometries_of(const ClassFragments& classes,
                                              std::uint32_t num_blocks) {
  std::vector<gpu::BlockGeometry> geometries;
  geometries.reserve(classes.size());
  for (const std::vector<PyFragment>& of_class : classes) {
    std::vector<gpu::Fragment> fragments;
    fragments.reserve(of_class.size());
    for (const auto& [address, stride_bytes, bytes] : of_class) {
      fragments.push_back({address, stride_bytes, bytes});
    }
    geometries.push_back(gpu::make_block_geometry(std::move(fragments), num_blocks));
  }
  return geometries;
}

/// A forked child has none of the engine's threads, and must not touch its device: there, the
/// engine stays as it is.
struct DeleteInOwnProcess {
  ::pid_t owner = ::getpid();
  void operator()(WorkerEngine* engine) const {
    if (::getpid() == owner) std::default_delete<WorkerEngine>()(engine);
  }
};
using OwnWorkerEngine = std::unique_ptr<WorkerEngine, DeleteInOwnProcess>;

OwnWorkerEngine make_worker_engine(const py::KWArgs<py::object>& given) {
  const PyWorkerOptions options = read_worker_options(given);
  std::vector<gpu::BlockGeometry> geometries = geometries_of(options.fragments, options.num_blocks);
  std::unique_ptr<gpu::Device> device = make_device(options);
  // Populating the arena takes seconds, and the engine's other threads run meanwhile.
  const py::gil_scoped_release unlocked;
  auto engine =
      std::make_unique<WorkerEngine>(std::move(device), std::move(geometries), options.engine);
  return OwnWorkerEngine(engine.release());
}

Figures arena_figures(const WorkerEngine& engine) {
  const cpu_tier::ArenaReport& report = engine.arena_report();
  Figures out;
  out["huge_page_ratio"] = report.huge_page_share;
  if (report.node) out["numa_node"] = *report.node;
  if (report.share_on_node) out["on_node_ratio"] = *report.share_on_node;
  return out;
}

void bind_plan(WorkerEngine& engine, const py::bytes& plan, std::uintptr_t stream) {
  const std::string_view bytes = plan;
  const py::gil_scoped_release unlocked;
  engine.bind(std::as_bytes(std::span(bytes)), stream);
}

bool is_busy(const WorkerEngine& engine) {
  const transfer::TransferStats now = engine.stats();
  return now.queued_bytes + now.in_flight_bytes > 0;
}

Counts stats_of(const WorkerEngine& engine) {
  const transfer::TransferStats stats = engine.stats();
  return {{"stored_bytes", stats.stored_bytes},
          {"loaded_bytes", stats.loaded_bytes},
          {"stored_blocks", stats.stored_blocks},
          {"loaded_blocks", stats.loaded_blocks},
          {"failed_transfers", stats.failed_transfers},
          {"cancelled_transfers", stats.cancelled_transfers},
          {"ring_used_bytes", stats.ring_used_bytes},
          {"ring_size_bytes", stats.ring_size_bytes},
          {"load_staging_used_bytes", stats.load_staging_used_bytes},
          {"load_staging_size_bytes", stats.load_staging_size_bytes},
          {"quarantined_blocks", stats.quarantined_blocks},
          {"queued_bytes", stats.queued_bytes},
          {"in_flight_bytes", stats.in_flight_bytes},
          {"num_slots", engine.num_slots()},
          {"max_slots", engine.max_slots()}};
}

Timings take_timings(WorkerEngine& engine) {
  using Seconds = std::chrono::duration<double>;
  Timings out;
  for (const connector::TransferTiming& timing : engine.take_timings()) {
    const std::string kind = timing.kind == transfer::TransferKind::kStore ? "store" : "load";
    out["queue_seconds/" + kind].push_back(Seconds(timing.queue_time).count());
    out["device_seconds/" + kind].push_back(Seconds(timing.device_time).count());
  }
  return out;
}

void wake(WorkerEngine& engine, const ClassFragments& fragments, std::uint32_t num_blocks) {
  std::vector<gpu::BlockGeometry> geometries = geometries_of(fragments, num_blocks);
  const py::gil_scoped_release unlocked;
  engine.wake(std::move(geometries));
}

void copy_slot(WorkerEngine& engine, std::uint32_t source, std::uint32_t to) {
  if (source >= engine.num_slots() || to >= engine.num_slots()) {
    throw py::index_error("a slot beyond the arena's " + std::to_string(engine.num_slots()));
  }
  engine.unsafe_copy_slot(SlotId(source), SlotId(to));
}

}  // namespace

void bind_worker_engine(py::module_& module) {
  py::class_<WorkerEngine, OwnWorkerEngine>(
      module, "WorkerEngine",
      "The worker side of one rank: executes plans, and reports. Called by "
      "the engine's worker thread.")
      .def(py::init(&make_worker_engine),
           "The keywords are the keys of the table in python/src/py_worker_options.cpp: the user's "
           "keys, and those that the connector computes. None means the default. Raises "
           "ResourceError, DeviceError, TopologyError, TimeoutError, or a ConfigError that names a "
           "key that is unknown, missing or of the wrong type.")
      .def_property_readonly("device", &WorkerEngine::device_description,
                             "Back end, name, architecture and driver of the device.")
      .def("copy_paths", &WorkerEngine::copy_paths_text,
           "Describes by which path copies of each shape cross the link, as far as known now, in a "
           "few lines.")
      .def_property_readonly(
          "slot_bytes", &WorkerEngine::slot_bytes,
          "Bytes of a slot of the first slab class; num_slots and max_slots count such slots.")
      .def_property_readonly("num_slots", &WorkerEngine::num_slots, "Slots that are ready now.")
      .def_property_readonly("max_slots", &WorkerEngine::max_slots, "Slots that will be ready.")
      .def("arena", &WorkerEngine::arena_text,
           "Describes the host memory that was obtained so far, in one line.")
      .def("arena_warnings", &WorkerEngine::arena_warnings,
           "Returns warnings for the user about the host memory, one line each.")
      .def("arena_figures", &arena_figures,
           "Returns the same as numbers, from the start or the end of the arena's growth. Unknown "
           "numbers are left out.")
      .def("bind", &bind_plan, py::arg("plan"), py::arg("stream"),
           "Takes over the step's plan, before the forward pass. `stream`: the native handle of "
           "the compute stream. Raises ProtocolError.")
      .def("pump", &WorkerEngine::pump, py::call_guard<py::gil_scoped_release>(), py::arg("stream"),
           "Gathers blocks that are ready and did not fit before.")
      .def("is_busy", &is_busy, "Whether bytes are on the link or wait for it. A cheap call.")
      .def("waiting", &WorkerEngine::waiting, "Whether pump() has anything to do.")
      .def("save", &WorkerEngine::save, py::arg("stream"), py::call_guard<py::gil_scoped_release>(),
           "Gathers the blocks that the step completed, after the forward pass.")
      .def("collect", &WorkerEngine::collect,
           "Collects the transfers that have ended. Returns the ids of requests whose load this "
           "rank has to report to the engine as ended and failed, each once. Raises TimeoutError.")
      .def(
          "take_report", [](WorkerEngine& engine) { return py::bytes(engine.take_report()); },
          "Returns the encoded report of everything since the last call; empty if there is nothing "
          "to report.")
      .def("stats", &stats_of, "Returns counters since the start, and current values.")
      .def("take_timings", &take_timings,
           "Returns the times of the transfers that succeeded since the last call, one for each "
           "transfer. A key is 'queue_seconds' (until the first copy) or 'device_seconds', '/', "
           "and 'store' or 'load'.")
      .def("sleep", &WorkerEngine::sleep, py::call_guard<py::gil_scoped_release>(),
           "Waits until no copy touches the KV cache, and frees the device memory. Idempotent. "
           "Raises TimeoutError or DeviceError; then it is not asleep.")
      .def_property_readonly("is_asleep", &WorkerEngine::is_asleep,
                             "Whether it is asleep: from sleep() to wake().")
      .def("wake", &wake, py::arg("fragments"), py::arg("num_blocks"),
           "Allocates device memory again for the KV cache, which can have other addresses now. "
           "Does nothing if it is not asleep. Raises ConfigError, ResourceError or DeviceError; "
           "then it stays asleep.")
      .def("close", &WorkerEngine::close, py::call_guard<py::gil_scoped_release>(),
           "Refuses new work, and waits for the work under way. Idempotent. Raises TimeoutError.")
      .def("unsafe_copy_slot", &copy_slot, py::arg("source"), py::arg("to"),
           "For tests: overwrites the bytes of slot `to`, to show that wrong bytes are noticed.");
}

}  // namespace kvferry::python
