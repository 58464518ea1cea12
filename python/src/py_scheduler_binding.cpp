// SPDX-License-Identifier: Apache-2.0
#include "py_scheduler_binding.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/connector/scheduler/recorded_options.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/recorder/recorder.hpp"

#include "py_scheduler_engine.hpp"
#include "py_scheduler_options.hpp"
#include "py_tier_options.hpp"

#include <pybind11/stl.h>

#include <memory>
#include <string>
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
  if (tier) options.engine.shared_tier = &tier->directory();
  std::unique_ptr<recorder::Recorder> recorder;
  std::string recorder_error;
  if (!options.recorder_path.empty()) {
    const recorder::RecordedBy by{KVFERRY_VERSION, connector::kWireVersion,
                                  "model " + options.model + "\nstart " + options.start + "\n" +
                                      connector::config_text(options.engine)};
    try {
      recorder =
          std::make_unique<recorder::Recorder>(options.recorder_path, options.recorder_bytes, by);
    } catch (const ResourceError& error) {
      recorder_error = error.what();
    }
  }
  auto engine = std::make_unique<PySchedulerEngine>(std::move(options.engine), std::move(tier),
                                                    std::move(recorder));
  engine->set_recorder_error(std::move(recorder_error));
  return engine;
}

}  // namespace

void bind_scheduler_engine(py::module_& module) {
  py::class_<PySchedulerEngine>(
      module, "SchedulerEngine",
      "The scheduler side: decides what is stored, loaded, evicted and reported. One for each "
      "engine, called by the engine's scheduler thread.")
      .def(py::init(&make_scheduler_engine),
           "The keywords are the keys of the table in python/src/py_scheduler_options.cpp: the "
           "user's keys, and those that the connector computes. None means the default. Raises "
           "ResourceError, or a ConfigError that names a key that is unknown, missing or of the "
           "wrong type.")
      .def_property_readonly("recorder_error", &PySchedulerEngine::recorder_error,
                             "Why nothing is recorded although recorder_path was given, or empty. "
                             "The engine works without a recording.")
      .def("bind_pool", &PySchedulerEngine::bind_pool, py::arg("blocks"),
           "Takes the engine's KVCacheBlock objects, by block id. The backlog is checked against "
           "them.")
      .def("on_request", &PySchedulerEngine::on_request, py::arg("request_id"),
           py::arg("block_hashes"), py::arg("max_load_tokens") = py::none(),
           py::arg("max_store_tokens") = py::none(),
           "A request arrives, or its id is used again. The list is kept, and read as the engine "
           "extends it. A load for it brings at most `max_load_tokens`, and only blocks whose last "
           "token is among the first `max_store_tokens` are stored; None: no limit.")
      .def("on_hints", &PySchedulerEngine::on_hints, py::arg("request_id"), py::arg("session"),
           py::arg("hints"),
           "Takes the hints of a request that has just arrived. A hint has an action (retain, "
           "release, demote, prefetch), the seconds for which a promise lives, and a session; an "
           "empty session means the request's own blocks. `session`: the session of the request, "
           "or empty. Raises ConfigError for any other action.")
      .def(
          "lookup", &PySchedulerEngine::lookup, py::arg("request_id"), py::arg("block_hashes"),
          py::arg("num_local_tokens"), py::arg("num_tokens"),
          "Returns the number of tokens that can be loaded after the local ones, a multiple of the "
          "block. Holds nothing. None: ask again in the next step; another request loads them now, "
          "or loaded requests "
          "that wait behind this one are to run first.")
      .def("note_local", &PySchedulerEngine::note_local, py::arg("request_id"),
           py::arg("num_local_tokens"),
           "Notes the local tokens like lookup(), without a search: another connector's load would "
           "begin after them. False: ask again in the next step.")
      .def("on_blocks_invalid", &PySchedulerEngine::on_blocks_invalid, py::arg("blocks"),
           "Another connector failed to load these blocks. Call it before the fold() of the "
           "reports that came with them.")
      .def("on_allocated", &PySchedulerEngine::on_allocated, py::arg("request_id"),
           py::arg("block_hashes"), py::arg("blocks"), py::arg("num_external_tokens"),
           "The engine has allocated `blocks` (for each KV cache group, all KVCacheBlock objects "
           "of the request) and waits for the load. Raises ProtocolError.")
      .def("build_plan", &PySchedulerEngine::build_plan, py::arg("scheduler_output"),
           "Ends the step, and returns the encoded plan for every rank. Reads vLLM's "
           "SchedulerOutput, and keeps no reference to it. Raises a TimeoutError that names a lost "
           "rank.")
      .def("fold", &PySchedulerEngine::fold, py::arg("reports"),
           "Applies the ranks' encoded reports. Call it once for each step's output, with an empty "
           "list if there are no reports, because time-outs count outputs. Returns three lists: "
           "request ids whose load has ended, which the engine has to be told; request ids that "
           "ranks have reported but no request waits for, which the engine must not be told; and "
           "warnings for the user's log since the last call, in full sentences. Raises "
           "ProtocolError or TopologyError.")
      .def("on_finished", &PySchedulerEngine::on_finished, py::arg("request_id"),
           py::arg("num_tokens") = 0,
           "Releases everything that the request holds. `num_tokens`: tokens of the request that "
           "the engine knows; 0: not given. Idempotent.")
      .def("reset_cache", &PySchedulerEngine::reset_cache, "Empties the tier.")
      .def("change_weights", &PySchedulerEngine::change_weights, py::arg("weights"),
           py::arg("forget_old"),
           "Changes the model's weights, which are identified by a digest of their version; 0: "
           "they have no version. Blocks of the old weights are found again when those weights "
           "return; with `forget_old` they leave the tier. Loads in flight fail, and blocks that "
           "the engine has computed so far are not stored. Call it while no step is under way.")
      .def("resize", &PySchedulerEngine::resize, py::arg("num_chunks"),
           "Sets the number of chunks that the tier should have, within the ranks' memory. Each "
           "plan then takes some chunks into use or out of use.")
      .def(
          "tier_size", &PySchedulerEngine::tier_size,
          "Returns the size of the tier and its target, in chunks, with whether the next steps "
          "change it; the ranks that have not executed their orders yet; and why a rank could not.")
      .def("take_key_events", &PySchedulerEngine::take_key_events,
           "Returns the blocks that can be loaded since the last call, and those that cannot be "
           "loaded any more, in order: (whether it can be loaded, KV cache group, block hash). "
           "Empty without `key_events`.")
      .def(
          "take_tier_changes", &PySchedulerEngine::take_tier_changes, py::arg("most"),
          "Returns the blocks of a shared tier that can be loaded since the last call, and those "
          "that cannot be loaded any more, whichever engine stored them: (whether it can be "
          "loaded, KV cache group, block hash, slot). Two slots can hold the same hash. Returns "
          "about `most` changes at most; if there are fewer, every slot was checked. Empty without "
          "a shared tier. One thread at a time can call it, but not during or after close().")
      .def("is_busy", &PySchedulerEngine::is_busy,
           "Whether a store or a load is under way. A cheap call.")
      .def_property_readonly("num_slots", &PySchedulerEngine::num_slots,
                             "Slots of the tier that are ready on every rank, counted as if all "
                             "belonged to the first slab class.")
      .def_property_readonly(
          "max_slots", &PySchedulerEngine::max_slots,
          "Slots that the tier will have, counted in the same way: the configured number, until "
          "every rank has reported how many it will have.")
      .def("snapshot", &PySchedulerEngine::snapshot,
           "Returns all current values and counters, in blocks unless the name says otherwise.")
      .def("take_changes", &PySchedulerEngine::take_changes,
           "Returns the values of `snapshot()` that have changed since the last call. The first "
           "call returns all.")
      .def("close", &PySchedulerEngine::close, "Drops everything. Idempotent.");
}

}  // namespace kvferry::python
