// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "py_scheduler_engine.hpp"
#include "py_worker_engine.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <random>
#include <span>
#include <string_view>

namespace kvferry::python {
namespace {

using connector::WorkerEngine;

void bind_errors(py::module_& module) {
  // Translators are tried last registered first: the root comes first here.
  const auto root = py::register_exception<Error>(module, "Error", PyExc_RuntimeError);
  py::register_exception<ConfigError>(module, "ConfigError", root);
  py::register_exception<ResourceError>(module, "ResourceError", root);
  py::register_exception<TopologyError>(module, "TopologyError", root);
  py::register_exception<ProtocolError>(module, "ProtocolError", root);
  py::register_exception<DeviceError>(module, "DeviceError", root);
  py::register_exception<kvferry::TimeoutError>(module, "TimeoutError", root);
}

/// Tells this engine's plans from those of any other, also after a restart.
connector::DomainId random_domain() {
  std::random_device source;
  return connector::DomainId(static_cast<std::uint32_t>(source()));
}

void bind_scheduler_engine(py::module_& module) {
  py::class_<PySchedulerEngine>(module, "SchedulerEngine",
                                "The scheduler side: decides what is stored, loaded, evicted and "
                                "reported. One per engine, called by its "
                                "scheduler's thread.")
      .def(py::init([](std::uint32_t world_size, std::uint32_t block_tokens,
                       std::uint32_t num_blocks, std::vector<std::uint64_t> slot_bytes,
                       std::uint32_t max_slots) {
             return std::make_unique<PySchedulerEngine>(
                 connector::SchedulerOptions{random_domain(), world_size, block_tokens, num_blocks,
                                             std::move(slot_bytes), max_slots});
           }),
           py::kw_only(), py::arg("world_size"), py::arg("block_tokens"), py::arg("num_blocks"),
           py::arg("slot_bytes"), py::arg("max_slots"),
           "`block_tokens`: tokens of a block and of a hash. `num_blocks`: of the GPU pool. "
           "`slot_bytes`: packed bytes "
           "of a block, by rank. `max_slots`: of the tier. Raises ConfigError.")
      .def("bind_pool", &PySchedulerEngine::bind_pool, py::arg("blocks"),
           "The engine's KVCacheBlock objects by block id, by which the backlog is checked.")
      .def("on_request", &PySchedulerEngine::on_request, py::arg("request_id"),
           py::arg("block_hashes"),
           "A request arrives, or its id is used again. The list is kept and read as the engine "
           "extends it.")
      .def("lookup", &PySchedulerEngine::lookup, py::arg("request_id"), py::arg("block_hashes"),
           py::arg("num_local_tokens"), py::arg("num_tokens"),
           "Tokens that can be loaded beyond the local ones, a multiple of the block. Holds "
           "nothing.")
      .def("on_allocated", &PySchedulerEngine::on_allocated, py::arg("request_id"),
           py::arg("block_hashes"), py::arg("blocks"), py::arg("num_external_tokens"),
           "The engine allocated `blocks` (all KVCacheBlock objects of the request) and waits for "
           "the load.")
      .def("build_plan", &PySchedulerEngine::build_plan, py::arg("scheduler_output"),
           "Ends the step: the encoded plan for every rank. Reads the vLLM SchedulerOutput, keeps "
           "nothing of it.")
      .def("fold", &PySchedulerEngine::fold, py::arg("reports"),
           "Applies the ranks' encoded reports. Returns the request ids whose load report is "
           "stale. Raises "
           "ProtocolError or TopologyError.")
      .def("on_finished", &PySchedulerEngine::on_finished, py::arg("request_id"),
           "Releases everything of the request. Idempotent.")
      .def("reset_cache", &PySchedulerEngine::reset_cache, "Empties the tier.")
      .def("snapshot", &PySchedulerEngine::snapshot,
           "All levels and counters, in blocks unless the name says otherwise.")
      .def("close", &PySchedulerEngine::close, "Drops everything. Idempotent.");
}

std::span<const std::byte> view(const py::bytes& bytes) {
  const std::string_view text = bytes;
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void bind_worker_engine(py::module_& module) {
  py::class_<WorkerEngine>(module, "WorkerEngine",
                           "The worker side of one rank: executes plans and reports. Called by the "
                           "engine's worker thread.")
      .def(py::init(
               [](std::string backend, std::uint32_t rank, std::uint32_t world_size,
                  std::uint32_t num_blocks,
                  std::vector<std::tuple<std::uintptr_t, std::uint64_t, std::uint64_t>> fragments,
                  std::uint32_t num_slots, std::uint64_t staging_bytes,
                  std::uint64_t max_in_flight_bytes, double transfer_timeout_s,
                  py::object host_link) {
                 return make_worker_engine({std::move(backend), rank, world_size, num_blocks,
                                            std::move(fragments), num_slots, staging_bytes,
                                            max_in_flight_bytes, transfer_timeout_s,
                                            std::move(host_link)});
               }),
           py::kw_only(), py::arg("backend"), py::arg("rank"), py::arg("world_size"),
           py::arg("num_blocks"), py::arg("fragments"), py::arg("num_slots"),
           py::arg("staging_bytes"), py::arg("max_in_flight_bytes"), py::arg("transfer_timeout_s"),
           py::arg("host_link") = py::none(),
           "`fragments`: (address, block stride in bytes, bytes) in layer order; their memory "
           "outlives this. `num_slots`: "
           "of this rank's arena, which is pinned here. Raises ConfigError, ResourceError or "
           "DeviceError.")
      .def_property_readonly("slot_bytes", &WorkerEngine::slot_bytes)
      .def_property_readonly("num_slots", &WorkerEngine::num_slots)
      .def(
          "bind",
          [](WorkerEngine& engine, const py::bytes& plan, std::uintptr_t stream) {
            const std::span<const std::byte> bytes = view(plan);
            py::gil_scoped_release unlocked;
            engine.bind(bytes, stream);
          },
          py::arg("plan"), py::arg("stream"),
          "Takes the step's plan over, before the forward. `stream`: the compute stream's native "
          "handle. Raises "
          "ProtocolError.")
      .def(
          "pump",
          [](WorkerEngine& engine, std::uintptr_t stream) {
            if (!engine.waiting()) return;
            py::gil_scoped_release unlocked;
            engine.pump(stream);
          },
          py::arg("stream"), "Gathers what is ready and did not fit before.")
      .def("save", &WorkerEngine::save, py::arg("stream"), py::call_guard<py::gil_scoped_release>(),
           "Gathers what the step completed, behind the forward.")
      .def(
          "collect",
          [](WorkerEngine& engine) {
            connector::EndedLoads loads = engine.collect();
            return py::make_tuple(std::move(loads.ended), std::move(loads.failed));
          },
          "(request ids whose load ended, those of them that failed), each load once. Raises "
          "TimeoutError.")
      .def(
          "take_report", [](WorkerEngine& engine) { return py::bytes(engine.take_report()); },
          "The encoded report of everything since the last call; empty when there is nothing to "
          "say.")
      .def(
          "stats",
          [](const WorkerEngine& engine) {
            const transfer::TransferStats stats = engine.stats();
            Figures out;
            out["stored_bytes"] = stats.stored_bytes;
            out["loaded_bytes"] = stats.loaded_bytes;
            out["stored_blocks"] = stats.stored_blocks;
            out["loaded_blocks"] = stats.loaded_blocks;
            out["failed_transfers"] = stats.failed_transfers;
            out["cancelled_transfers"] = stats.cancelled_transfers;
            out["ring_used_bytes"] = stats.ring_used_bytes;
            out["ring_size_bytes"] = stats.ring_size_bytes;
            out["queued_bytes"] = stats.queued_bytes;
            out["in_flight_bytes"] = stats.in_flight_bytes;
            return out;
          },
          "Counters since the start and levels of now.")
      .def("close", &WorkerEngine::close, py::call_guard<py::gil_scoped_release>(),
           "Refuses new work and waits for what runs. Idempotent. Raises TimeoutError.")
      .def(
          "unsafe_copy_slot",
          [](WorkerEngine& engine, std::uint32_t source, std::uint32_t to) {
            if (source >= engine.num_slots() || to >= engine.num_slots()) {
              throw py::index_error("a slot beyond the arena's " +
                                    std::to_string(engine.num_slots()));
            }
            engine.unsafe_copy_slot(SlotId(source), SlotId(to));
          },
          py::arg("source"), py::arg("to"),
          "For tests: overwrites the bytes of slot `to`, so that a wrong byte can be shown to be "
          "noticed.");
}

}  // namespace
}  // namespace kvferry::python

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of kvferry.";
  module.attr("__version__") = KVFERRY_VERSION;
  kvferry::python::bind_errors(module);
  kvferry::python::bind_scheduler_engine(module);
  kvferry::python::bind_worker_engine(module);
}
