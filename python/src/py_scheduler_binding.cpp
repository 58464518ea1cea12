// SPDX-License-Identifier: Apache-2.0
#include "py_scheduler_binding.hpp"

#include "kvferry/cpu_tier/peers/joined_tier.hpp"

#include "py_scheduler_engine.hpp"
#include "py_scheduler_options.hpp"
#include "py_tier_options.hpp"

#include <pybind11/stl.h>

#include <memory>
#include <utility>

namespace kvferry::python {
namespace {

std::unique_ptr<PySchedulerEngine> make_scheduler_engine(const py::KWArgs<py::object>& given) {
  PySchedulerOptions options = read_scheduler_options(given);
  std::unique_ptr<cpu_tier::JoinedTier> tier;
  if (const auto wish = shared_tier_wish(options.shared, options.engine.world_size)) {
    options.identity.name = wish->instance;
    tier = cpu_tier::JoinedTier::join(wish->tier, options.identity);
  }
  return std::make_unique<PySchedulerEngine>(std::move(options.engine), std::move(tier));
}

}  // namespace

void bind_scheduler_engine(py::module_& module) {
  py::class_<PySchedulerEngine>(module, "SchedulerEngine",
                                "The scheduler side: decides what is stored, loaded, evicted and "
                                "reported. One per engine, called by its "
                                "scheduler's thread.")
      .def(py::init(&make_scheduler_engine),
           "The keywords are the keys of the table in python/src/py_scheduler_options.cpp: the "
           "user's, and what the connector works out. One that is None has its default. Raises "
           "ConfigError naming a key that is unknown, missing or of another type, and "
           "ResourceError.")
      .def("bind_pool", &PySchedulerEngine::bind_pool, py::arg("blocks"),
           "The engine's KVCacheBlock objects by block id, by which the backlog is checked.")
      .def("on_request", &PySchedulerEngine::on_request, py::arg("request_id"),
           py::arg("block_hashes"), py::arg("max_load_tokens") = py::none(),
           py::arg("max_store_tokens") = py::none(),
           "A request arrives, or its id is used again. The list is kept and read as the engine "
           "extends it. A load of it brings `max_load_tokens` at most, and its blocks are stored "
           "that end with one of its first `max_store_tokens`; None: no limit.")
      .def("on_hints", &PySchedulerEngine::on_hints, py::arg("request_id"), py::arg("session"),
           py::arg("hints"),
           "What the client of a request that has just arrived says of blocks: for each hint the "
           "action (retain, release, demote, prefetch), the seconds that a promise lives, and "
           "whose blocks, a session or empty: the request's own. `session`: to which the request "
           "belongs, or empty. Raises ConfigError for another action.")
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
      .def(
          "change_weights", &PySchedulerEngine::change_weights, py::arg("weights"),
          py::arg("forget_old"),
          "The model has other weights from here on, by a digest of their name; 0: nobody names "
          "them. Blocks of the old ones are found when these come back, or with `forget_old` leave "
          "the tier. Loads in flight fail, and what the engine has computed so far is not stored. "
          "No step is under way.")
      .def("resize", &PySchedulerEngine::resize, py::arg("num_chunks"),
           "From now on the tier is to have so many chunks, as far as the ranks' memory goes: each "
           "plan takes some out of use or into it.")
      .def("tier_size", &PySchedulerEngine::tier_size,
           "How large the tier is and is to be, in chunks, and whether that changes in the next "
           "steps; the ranks that have not done what they were told; why one could not.")
      .def("take_key_events", &PySchedulerEngine::take_key_events,
           "What can be loaded since the last call, and what cannot any more, in order: (whether "
           "it can, KV cache group, block hash). Empty without `key_events`.")
      .def("take_tier_changes", &PySchedulerEngine::take_tier_changes, py::arg("most"),
           "What can be loaded of a shared tier since the last call, and what cannot any more, "
           "whichever engine stored it: (whether it can, KV cache group, block hash, slot). Two "
           "slots may hold one hash. About `most` at most; fewer: every slot was looked at. Empty "
           "without a shared tier. Any one thread, but not during or after close().")
      .def("is_busy", &PySchedulerEngine::is_busy, "Whether a store or a load is under way. Cheap.")
      .def_property_readonly("num_slots", &PySchedulerEngine::num_slots,
                             "Slots of the tier that are ready on every rank, if all were of the "
                             "first slab class.")
      .def_property_readonly("max_slots", &PySchedulerEngine::max_slots,
                             "The same of those that will be: as told, until every rank has said "
                             "how many it will have.")
      .def("take_warnings", &PySchedulerEngine::take_warnings,
           "What the user should read in the log, since the last call; in full sentences.")
      .def("snapshot", &PySchedulerEngine::snapshot,
           "All levels and counters, in blocks unless the name says otherwise.")
      .def("close", &PySchedulerEngine::close, "Drops everything. Idempotent.");
}

}  // namespace kvferry::python
