// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"

#include "py_durations.hpp"
#include "py_machine.hpp"
#include "py_object_client.hpp"
#include "py_scheduler_engine.hpp"
#include "py_text.hpp"
#include "py_tier.hpp"
#include "py_worker_engine.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvferry::python {
namespace {

using connector::WorkerEngine;

/// A path that an error names may be no UTF-8, of which a Python text is made.
template <class AnError>
void make_readable() {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const AnError& error) {
      // What a translator throws is left to the next one.
      throw AnError(std::string(readable(error.what())));
    }
  });
}

void bind_errors(py::module_& module) {
  // Translators are tried last registered first: the root comes first here.
  const auto root = py::register_exception<Error>(module, "Error", PyExc_RuntimeError);
  py::register_exception<ConfigError>(module, "ConfigError", root);
  py::register_exception<ResourceError>(module, "ResourceError", root);
  py::register_exception<TopologyError>(module, "TopologyError", root);
  py::register_exception<ProtocolError>(module, "ProtocolError", root);
  py::register_exception<DeviceError>(module, "DeviceError", root);
  py::register_exception<kvferry::TimeoutError>(module, "TimeoutError", root);
  make_readable<ConfigError>();
  make_readable<ResourceError>();
}

/// Tells this engine's plans from those of any other, also after a restart.
connector::DomainId random_domain() {
  std::random_device source;
  return connector::DomainId(static_cast<std::uint32_t>(source()));
}

void expect_pairs(const char* what, std::size_t size, const char* other, std::size_t other_size) {
  if (size == other_size) return;
  throw ConfigError(std::string(what) + " has " + std::to_string(size) + " entries and " + other +
                    " has " + std::to_string(other_size) + "; expected as many");
}

void bind_slab_geometry(py::module_& module) {
  module.def(
      "slab_geometry",
      [](std::uint64_t tier_bytes, const std::vector<std::vector<std::uint64_t>>& slot_bytes) {
        const cpu_tier::SlabGeometry geometry = cpu_tier::geometry_of_ranks(tier_bytes, slot_bytes);
        return std::pair(geometry.num_chunks, geometry.slots_per_chunk);
      },
      py::arg("tier_bytes"), py::arg("slot_bytes"),
      "How a tier of `tier_bytes` on each rank is divided for blocks of `slot_bytes`, by slab "
      "class "
      "and rank: (chunks, slots of each class in a chunk), the same on all ranks. Raises "
      "ConfigError.");
}

void bind_scheduler_engine(py::module_& module) {
  py::class_<PySchedulerEngine>(module, "SchedulerEngine",
                                "The scheduler side: decides what is stored, loaded, evicted and "
                                "reported. One per engine, called by its "
                                "scheduler's thread.")
      .def(
          py::init([](std::uint32_t world_size, std::uint32_t block_tokens,
                      std::uint32_t num_blocks,
                      const std::vector<std::vector<std::uint64_t>>& slot_bytes,
                      const std::vector<std::uint32_t>& slots_per_chunk, std::uint32_t max_chunks,
                      const std::vector<std::pair<std::uint32_t, std::uint32_t>>& replicas,
                      const py::object& shared_tier, std::uint64_t name_space, std::uint32_t weight,
                      std::uint32_t most_chunks, double grace_s, const std::string& eviction,
                      const std::string& admission, float max_awaited_share, bool key_events,
                      const std::vector<std::pair<std::string, std::uint32_t>>& group_reaches,
                      const std::vector<std::uint32_t>& group_classes, double max_load_wait_s,
                      double rank_timeout_s, double load_timeout_s, bool store_later_turns) {
            connector::SchedulerOptions options;
            options.domain = random_domain();
            options.world_size = world_size;
            options.block_tokens = block_tokens;
            options.num_blocks = num_blocks;
            expect_pairs("slot_bytes", slot_bytes.size(), "slots_per_chunk",
                         slots_per_chunk.size());
            for (std::size_t i = 0; i < slot_bytes.size(); ++i) {
              options.classes.push_back({slots_per_chunk[i], slot_bytes[i]});
            }
            options.max_chunks = max_chunks;
            for (const auto& [size, index] : replicas) options.replicas.push_back({size, index});
            options.tier = {cpu_tier::eviction_from(eviction), cpu_tier::admission_from(admission),
                            max_awaited_share, key_events};
            options.groups.clear();
            expect_pairs("group_reaches", group_reaches.size(), "group_classes",
                         group_classes.size());
            for (std::size_t i = 0; i < group_reaches.size(); ++i) {
              const auto& [kind, tokens] = group_reaches[i];
              options.groups.push_back(
                  {connector::TokenReach::named(kind, tokens), SlabClassId(group_classes[i])});
            }
            options.max_load_wait = seconds_of("max_load_wait_s", max_load_wait_s);
            options.rank_timeout = seconds_of("rank_timeout_s", rank_timeout_s);
            options.load_timeout = seconds_of("load_timeout_s", load_timeout_s);
            options.later_turns = store_later_turns ? connector::LaterTurns::kStored
                                                    : connector::LaterTurns::kNotStored;
            std::unique_ptr<cpu_tier::JoinedTier> tier;
            if (const auto wish = shared_tier_wish(shared_tier)) {
              tier =
                  cpu_tier::JoinedTier::join(wish->tier, {.name = wish->instance,
                                                          .name_space = name_space,
                                                          .weight = weight,
                                                          .most_chunks = most_chunks,
                                                          .grace = seconds_of("grace_s", grace_s)});
            }
            return std::make_unique<PySchedulerEngine>(std::move(options), std::move(tier));
          }),
          py::kw_only(), py::arg("world_size"), py::arg("block_tokens"), py::arg("num_blocks"),
          py::arg("slot_bytes"), py::arg("slots_per_chunk"), py::arg("max_chunks"),
          py::arg("replicas"), py::arg("shared_tier") = py::none(), py::arg("name_space") = 0,
          py::arg("weight") = 1, py::arg("most_chunks") = 0, py::arg("grace_s") = 30,
          py::arg("eviction"), py::arg("admission"), py::arg("max_awaited_share"),
          py::arg("key_events"), py::arg("group_reaches"), py::arg("group_classes"),
          py::arg("max_load_wait_s"), py::arg("rank_timeout_s"), py::arg("load_timeout_s"),
          py::arg("store_later_turns"),
          "`block_tokens`: tokens of a block and of a hash. `num_blocks`: of the GPU pool. "
          "`slot_bytes`: packed bytes of a block, by slab class (the largest first) and rank. "
          "`slots_per_chunk`: by slab class. `max_chunks`: of the tier. `replicas`: of "
          "each rank, how many ranks share one arena with it, and which of them it is. "
          "`shared_tier`: None, or as a WorkerEngine's, divided as shared_tier_shape() says; "
          "`name_space`: of all that the bytes of a block depend on, as far as this side knows it "
          "(the ranks add their `probe`): only engines of one find each other's blocks; `weight`: "
          "of the memory that is this engine's part; `most_chunks`: 0 "
          "for "
          "all; `grace_s`: how long a copy may go on whose process is gone. `eviction`: "
          "'lru', 'arc' or 'adaptive'; `admission`: 'always', 'second_offer' or 'adaptive': what "
          "the tier keeps and stores. `max_awaited_share`: of its slots, kept for queued requests. "
          "`key_events`: whether take_key_events() tells anything. "
          "`group_reaches`: of each KV cache group, which tokens a token sees: ('all', 0), "
          "('window', tokens), ('chunk', tokens), or ('state', drafts), where the last `drafts` "
          "tokens "
          "of a step may be taken back. "
          "`group_classes`: of each KV cache group, the slab class of its blocks. "
          "`max_load_wait_s`: how long a request waits for another one's load of the same prefix "
          "at "
          "most; 0: not at all. "
          "`rank_timeout_s`: a rank that is silent for longer, while the engine steps, is lost. "
          "`load_timeout_s`: a load that some rank has not begun by then fails. "
          "`store_later_turns`: "
          "whether what a streaming session computes behind its first turn is stored. Raises "
          "ConfigError.")
      .def("bind_pool", &PySchedulerEngine::bind_pool, py::arg("blocks"),
           "The engine's KVCacheBlock objects by block id, by which the backlog is checked.")
      .def("on_request", &PySchedulerEngine::on_request, py::arg("request_id"),
           py::arg("block_hashes"),
           "A request arrives, or its id is used again. The list is kept and read as the engine "
           "extends it.")
      .def("lookup", &PySchedulerEngine::lookup, py::arg("request_id"), py::arg("block_hashes"),
           py::arg("num_local_tokens"), py::arg("num_tokens"),
           "Tokens that can be loaded beyond the local ones, a multiple of the block. Holds "
           "nothing. None: another request loads them now; ask again in the next step.")
      .def("note_local", &PySchedulerEngine::note_local, py::arg("request_id"),
           py::arg("num_local_tokens"),
           "lookup() without a question: where a load of another connector would begin.")
      .def("on_blocks_invalid", &PySchedulerEngine::on_blocks_invalid, py::arg("blocks"),
           "Another connector failed to load these blocks. To be called before the fold() of the "
           "reports that came with them.")
      .def(
          "on_allocated", &PySchedulerEngine::on_allocated, py::arg("request_id"),
          py::arg("block_hashes"), py::arg("blocks"), py::arg("num_external_tokens"),
          "The engine allocated `blocks` (for each KV cache group, all KVCacheBlock objects of the "
          "request) and waits for the load. Raises ProtocolError.")
      .def("build_plan", &PySchedulerEngine::build_plan, py::arg("scheduler_output"),
           "Ends the step: the encoded plan for every rank. Reads the vLLM SchedulerOutput, keeps "
           "nothing of it. Raises TimeoutError naming a rank that is lost.")
      .def("fold", &PySchedulerEngine::fold, py::arg("reports"),
           "Applies the ranks' encoded reports, once for each step's output, with an empty list if "
           "it "
           "has none: time-outs count outputs. Returns (request ids whose load has ended, to be "
           "told to the engine; request ids that ranks have announced and nobody waits for, not to "
           "be told). Raises ProtocolError or TopologyError.")
      .def("on_finished", &PySchedulerEngine::on_finished, py::arg("request_id"),
           py::arg("num_tokens") = 0,
           "Releases everything of the request. `num_tokens`: those that the engine knows of it; 0 "
           "says nothing. Idempotent.")
      .def("reset_cache", &PySchedulerEngine::reset_cache, "Empties the tier.")
      .def("take_key_events", &PySchedulerEngine::take_key_events,
           "What can be loaded since the last call, and what cannot any more, in order: (whether "
           "it can, KV cache group, block hash). Empty without `key_events`.")
      .def("is_busy", &PySchedulerEngine::is_busy, "Whether a store or a load is under way. Cheap.")
      .def_property_readonly("num_slots", &PySchedulerEngine::num_slots,
                             "Slots of the tier that are ready on every rank, if all were of the "
                             "first slab class.")
      .def("snapshot", &PySchedulerEngine::snapshot,
           "All levels and counters, in blocks unless the name says otherwise.")
      .def("close", &PySchedulerEngine::close, "Drops everything. Idempotent.");
}

std::span<const std::byte> view(const py::bytes& bytes) {
  const std::string_view text = bytes;
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void bind_worker_engine(py::module_& module) {
  module.def("backends", &backends,
             "For each back end why it cannot be had in this process, in one line; empty if it "
             "can.");
  py::class_<WorkerEngine>(module, "WorkerEngine",
                           "The worker side of one rank: executes plans and reports. Called by the "
                           "engine's worker thread.")
      .def(
          py::init([](std::string backend, std::uint32_t device_ordinal, std::string driver_library,
                      std::uint32_t rank, std::uint32_t world_size, std::uint32_t num_blocks,
                      std::vector<std::vector<PyFragment>> fragments, std::uint32_t num_chunks,
                      std::vector<std::uint32_t> slots_per_chunk,
                      std::optional<std::uint32_t> numa_node, std::string pages,
                      std::uint64_t pinned_piece_bytes, std::uint64_t pinning_bandwidth_limit,
                      bool allow_smaller_tier, std::string budget_group,
                      std::uint32_t num_local_arenas, std::string replica_group,
                      std::uint32_t num_replicas, std::uint32_t replica_index,
                      py::object shared_tier, std::uint64_t probe, std::uint64_t staging_bytes,
                      std::uint64_t load_staging_bytes, std::uint64_t max_in_flight_bytes,
                      std::uint64_t store_bandwidth_limit, std::string copy_path,
                      double transfer_timeout_s, py::object host_link) {
            return make_worker_engine({.backend = std::move(backend),
                                       .device_ordinal = device_ordinal,
                                       .driver_library = std::move(driver_library),
                                       .rank = rank,
                                       .world_size = world_size,
                                       .num_blocks = num_blocks,
                                       .fragments = std::move(fragments),
                                       .num_chunks = num_chunks,
                                       .slots_per_chunk = std::move(slots_per_chunk),
                                       .numa_node = numa_node,
                                       .pages = std::move(pages),
                                       .pinned_piece_bytes = pinned_piece_bytes,
                                       .pinning_bandwidth_limit = pinning_bandwidth_limit,
                                       .allow_smaller_tier = allow_smaller_tier,
                                       .budget_group = std::move(budget_group),
                                       .num_local_arenas = num_local_arenas,
                                       .replica_group = std::move(replica_group),
                                       .num_replicas = num_replicas,
                                       .replica_index = replica_index,
                                       .shared_tier = std::move(shared_tier),
                                       .probe = probe,
                                       .staging_bytes = staging_bytes,
                                       .load_staging_bytes = load_staging_bytes,
                                       .max_in_flight_bytes = max_in_flight_bytes,
                                       .store_bandwidth_limit = store_bandwidth_limit,
                                       .copy_path = std::move(copy_path),
                                       .transfer_timeout_s = transfer_timeout_s,
                                       .host_link = std::move(host_link)});
          }),
          py::kw_only(), py::arg("backend"), py::arg("device_ordinal") = 0,
          py::arg("driver_library") = "", py::arg("rank"), py::arg("world_size"),
          py::arg("num_blocks"), py::arg("fragments"), py::arg("num_chunks"),
          py::arg("slots_per_chunk"), py::arg("numa_node") = py::none(), py::arg("pages") = "auto",
          py::arg("pinned_piece_bytes") = cpu_tier::ArenaOptions().pinned_piece_bytes,
          py::arg("pinning_bandwidth_limit") = 0, py::arg("allow_smaller_tier") = false,
          py::arg("budget_group") = "", py::arg("num_local_arenas") = 1,
          py::arg("replica_group") = "", py::arg("num_replicas") = 1, py::arg("replica_index") = 0,
          py::arg("shared_tier") = py::none(), py::arg("probe") = 0, py::arg("staging_bytes"),
          py::arg("load_staging_bytes") = 0, py::arg("max_in_flight_bytes"),
          py::arg("store_bandwidth_limit") = 0, py::arg("copy_path") = "auto",
          py::arg("transfer_timeout_s"), py::arg("host_link") = py::none(),
          "`backend`: a key of backends(). `device_ordinal`: as the process numbers the vendor's "
          "devices. `driver_library`: of the vendor's driver; empty for the system's. `fragments`: "
          "(address, block stride in bytes, bytes) in layer order, by slab class; their memory "
          "outlives this. `num_chunks`: of this rank's arena, of which a piece is pinned here and "
          "the rest by a thread. `slots_per_chunk`: by slab class. `numa_node`: None for the one "
          "next to the device. `pages`: 'auto', 'normal', "
          "'transparent' or 'huge'. "
          "`pinning_bandwidth_limit`: 0 for no limit. `allow_smaller_tier`: go on with what can be "
          "had. "
          "`budget_group`: the same for all ranks whose `num_local_arenas` arenas share this "
          "node's memory, of which the first checks the budget for all. `replica_group`: the same "
          "for the `num_replicas` ranks of this node that hold the same bytes and share one arena, "
          "of which this is number `replica_index`; the first makes it, and the others wait for "
          "that, for a minute at most. `shared_tier`: None, or a dict of path, capacity_bytes (of "
          "all ranks), num_ranks, instance (unique for every start of an engine) and, if wished, "
          "chunk_bytes and keep: the file that has the arena; `num_chunks` is as "
          "shared_tier_shape() says then. "
          "`probe`: digest of how the bytes of a block lie on this rank and of all else that only "
          "the rank sees of them: only engines whose ranks all have the same ones find each "
          "other's "
          "blocks. "
          "`staging_bytes`, "
          "`load_staging_bytes`: device memory of the rings of stores and loads. "
          "`store_bandwidth_limit`: 0 for no limit. `copy_path`: 'auto', or the path of every "
          "load. `host_link`: of the host back end. Raises ConfigError, ResourceError, "
          "DeviceError, TopologyError or TimeoutError.")
      .def_property_readonly("device", &WorkerEngine::device_description,
                             "Back end, name, architecture and driver of the device.")
      .def("copy_paths", &WorkerEngine::copy_paths_text,
           "How copies cross the link by their shape, as far as it is known now, in a few lines.")
      .def_property_readonly("slot_bytes", &WorkerEngine::slot_bytes,
                             "Of the first slab class, as the slots that the next two count.")
      .def_property_readonly("num_slots", &WorkerEngine::num_slots, "Slots that are ready now.")
      .def_property_readonly("max_slots", &WorkerEngine::max_slots, "Slots that will be ready.")
      .def("arena", &WorkerEngine::arena_text,
           "What was obtained of the host memory so far, in one line.")
      .def("arena_warnings", &WorkerEngine::arena_warnings,
           "What the user is to be warned of about the host memory, a line each.")
      .def(
          "arena_figures",
          [](const WorkerEngine& engine) {
            const cpu_tier::ArenaReport& report = engine.arena_report();
            std::map<std::string, double> out;
            out["huge_page_ratio"] = report.huge_page_share;
            if (report.node) out["numa_node"] = *report.node;
            if (report.share_on_node) out["on_node_ratio"] = *report.share_on_node;
            return out;
          },
          "The same as numbers, as of the start or the end of the arena's growth; unknown ones "
          "are left out.")
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
      .def("pump", &WorkerEngine::pump, py::call_guard<py::gil_scoped_release>(), py::arg("stream"),
           "Gathers what is ready and did not fit before.")
      .def(
          "is_busy",
          [](const WorkerEngine& engine) {
            const transfer::TransferStats now = engine.stats();
            return now.queued_bytes + now.in_flight_bytes > 0;
          },
          "Whether bytes are on the link or wait for it. Cheap.")
      .def("waiting", &WorkerEngine::waiting, "Whether pump() has anything to try.")
      .def("save", &WorkerEngine::save, py::arg("stream"), py::call_guard<py::gil_scoped_release>(),
           "Gathers what the step completed, behind the forward.")
      .def("collect", &WorkerEngine::collect,
           "Takes note of what ended. Returns the request ids whose load this rank has to announce "
           "as ended and failed, each once. Raises TimeoutError.")
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
            out["load_staging_used_bytes"] = stats.load_staging_used_bytes;
            out["load_staging_size_bytes"] = stats.load_staging_size_bytes;
            out["quarantined_blocks"] = stats.quarantined_blocks;
            out["queued_bytes"] = stats.queued_bytes;
            out["in_flight_bytes"] = stats.in_flight_bytes;
            out["num_slots"] = engine.num_slots();
            out["max_slots"] = engine.max_slots();
            return out;
          },
          "Counters since the start and levels of now.")
      .def(
          "take_timings",
          [](WorkerEngine& engine) {
            using Seconds = std::chrono::duration<double>;
            std::map<std::string, std::vector<double>> out;
            for (const connector::TransferTiming& timing : engine.take_timings()) {
              const std::string kind =
                  timing.kind == transfer::TransferKind::kStore ? "store" : "load";
              out["queue_seconds/" + kind].push_back(Seconds(timing.queue_time).count());
              out["device_seconds/" + kind].push_back(Seconds(timing.device_time).count());
            }
            return out;
          },
          "How long the transfers took that were seen to succeed since the last call, by "
          "'queue_seconds' (until the first copy) or 'device_seconds', '/', and 'store' or 'load'; "
          "a figure each.")
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
  kvferry::python::bind_slab_geometry(module);
  kvferry::python::bind_scheduler_engine(module);
  kvferry::python::bind_worker_engine(module);
  kvferry::python::bind_object_client(module);
  kvferry::python::bind_machine(module);
  kvferry::python::bind_tier(module);
}
