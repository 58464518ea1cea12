// SPDX-License-Identifier: Apache-2.0
#include "py_scheduler_engine.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/connector/scheduler/scheduler_figures.hpp"

#include <span>
#include <utility>

namespace kvferry::python {
namespace {

py::object attribute(py::handle object, const char* name) {
  PyObject* value = PyObject_GetAttrString(object.ptr(), name);
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

/// The number of drafts among a request's tokens in the step.
std::uint32_t num_drafts(py::handle request_id, py::handle drafts) {
  if (PyDict_GET_SIZE(drafts.ptr()) == 0) return 0;
  PyObject* its = PyDict_GetItemWithError(drafts.ptr(), request_id.ptr());
  if (its == nullptr) {
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return 0;
  }
  const Py_ssize_t size = PyObject_Size(its);
  if (size < 0) throw py::error_already_set();
  return static_cast<std::uint32_t>(size);
}

std::span<const std::byte> bytes_of(py::handle object) {
  if (!PyBytes_Check(object.ptr())) throw py::type_error("a report has to be bytes");
  return {reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(object.ptr())),
          static_cast<std::size_t>(PyBytes_GET_SIZE(object.ptr()))};
}

py::bytes hash_of(const cpu_tier::BlockKey& key) {
  return {reinterpret_cast<const char*>(key.hash.data()), key.hash_bytes};
}

}  // namespace

PySchedulerEngine::PySchedulerEngine(connector::SchedulerOptions options,
                                     std::unique_ptr<cpu_tier::JoinedTier> tier,
                                     std::unique_ptr<recorder::Recorder> recorder)
    : tier_(std::move(tier)), recorder_(std::move(recorder)), weights_(options.weights.value()) {
  options.recorder = recorder_.get();
  engine_ = std::make_unique<connector::SchedulerEngine>(std::move(options));
}

connector::SchedulerEngine& PySchedulerEngine::engine() {
  if (!engine_) throw Error("this SchedulerEngine is closed");
  return *engine_;
}

const connector::SchedulerEngine& PySchedulerEngine::engine() const {
  if (!engine_) throw Error("this SchedulerEngine is closed");
  return *engine_;
}

void PySchedulerEngine::bind_pool(ObjectList blocks) {
  auto pool = std::make_unique<PyBlockPool>(std::move(blocks));
  engine().set_pool(pool.get());
  pool_ = std::move(pool);
}

void PySchedulerEngine::on_request(const py::str& request_id, BytesList block_hashes,
                                   std::optional<std::uint32_t> max_load_tokens,
                                   std::optional<std::uint32_t> max_store_tokens) {
  constexpr std::uint32_t kNone = connector::RequestLimits::kNone;
  engine().on_request(text_of(request_id), std::make_shared<PyBlockHashes>(std::move(block_hashes)),
                      {max_load_tokens.value_or(kNone), max_store_tokens.value_or(kNone)});
}

void PySchedulerEngine::on_hints(
    const py::str& request_id, const std::string& session,
    const std::vector<std::tuple<std::string, double, std::string>>& hints) {
  std::vector<connector::ClientHint> said;
  for (const auto& [action, seconds, whose] : hints) {
    const std::chrono::duration<double> time_to_live(seconds);
    said.push_back({connector::hint_action_from(action),
                    std::chrono::duration_cast<std::chrono::nanoseconds>(time_to_live), whose});
  }
  engine().on_hints(text_of(request_id), session, said);
}

void PySchedulerEngine::announce(std::string_view engine_id, const BytesList& block_hashes) {
  if (!engine().knows(engine_id)) {
    engine().on_request(engine_id, std::make_shared<PyBlockHashes>(block_hashes));
  }
}

std::optional<std::uint32_t> PySchedulerEngine::lookup(const py::str& request_id,
                                                       const BytesList& block_hashes,
                                                       std::uint32_t num_local_tokens,
                                                       std::uint32_t num_tokens) {
  const std::string_view engine_id = text_of(request_id);
  announce(engine_id, block_hashes);
  return engine().lookup(engine_id, num_local_tokens, num_tokens);
}

bool PySchedulerEngine::note_local(const py::str& request_id, std::uint32_t num_local_tokens) {
  return engine().note_local(text_of(request_id), num_local_tokens);
}

void PySchedulerEngine::on_blocks_invalid(const py::typing::Iterable<py::int_>& blocks) {
  std::vector<BlockId> ids;
  for (const py::handle block : blocks) ids.emplace_back(uint32_of(block));
  engine().on_blocks_invalid(ids);
}

std::span<const std::span<const BlockId>> PySchedulerEngine::tables(std::size_t num_groups) {
  views_.assign(tables_.begin(), tables_.begin() + static_cast<std::ptrdiff_t>(num_groups));
  return views_;
}

void PySchedulerEngine::take_blocks(const py::tuple& groups) {
  if (tables_.size() < groups.size()) tables_.resize(groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    std::vector<BlockId>& table = tables_[group];
    table.clear();
    const auto sequence = py::reinterpret_steal<py::object>(PySequence_Fast(
        groups[group].ptr(), "blocks has to hold a sequence of KVCacheBlock objects per group"));
    if (!sequence) throw py::error_already_set();
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence.ptr());
    PyObject** items = PySequence_Fast_ITEMS(sequence.ptr());
    if (!has_block_id_ && size > 0) {
      block_id_ = AttributeReader(items[0], "block_id", "block_id");
      has_block_id_ = true;
    }
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (i + kAhead < size) __builtin_prefetch(items[i + kAhead]);
      PyObject* id = block_id_.in_slot(items[i]);
      table.emplace_back(id != nullptr ? uint32_of(id) : uint32_of(block_id_.read(items[i])));
    }
  }
}

void PySchedulerEngine::take_block_ids(const py::tuple& groups) {
  if (tables_.size() < groups.size()) tables_.resize(groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    std::vector<BlockId>& table = tables_[group];
    table.clear();
    PyObject* ids = PyTuple_GET_ITEM(groups.ptr(), static_cast<Py_ssize_t>(group));
    if (!PyList_Check(ids)) throw py::type_error("block ids have to be a list of ints per group");
    const Py_ssize_t size = PyList_GET_SIZE(ids);
    for (Py_ssize_t i = 0; i < size; ++i) {
      // The int objects are scattered in the heap, mostly outside the caches.
      if (i + kAhead < size) __builtin_prefetch(PyList_GET_ITEM(ids, i + kAhead));
      table.emplace_back(uint32_of(PyList_GET_ITEM(ids, i)));
    }
  }
}

void PySchedulerEngine::on_allocated(const py::str& request_id, const BytesList& block_hashes,
                                     const py::typing::Tuple<py::object, py::ellipsis>& blocks,
                                     std::uint32_t num_external_tokens) {
  if (num_external_tokens == 0) return;
  const std::string_view engine_id = text_of(request_id);
  announce(engine_id, block_hashes);
  take_blocks(blocks);
  engine().on_allocated(engine_id, tables(blocks.size()), num_external_tokens);
}

void PySchedulerEngine::take_scheduled(py::handle request_id, connector::TableUpdate update,
                                       py::handle block_ids, py::handle num_computed_tokens,
                                       py::handle num_scheduled_tokens, py::handle drafts,
                                       std::uint32_t num_prompt_tokens) {
  const std::string_view engine_id = text_of(request_id);
  PyObject* scheduled = PyDict_GetItemWithError(num_scheduled_tokens.ptr(), request_id.ptr());
  if (scheduled == nullptr) {
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    throw ProtocolError("request " + std::string(engine_id) +
                        " is in the step without a number of scheduled tokens");
  }
  std::size_t num_groups = 0;
  if (!block_ids.is_none()) {
    const auto groups = py::reinterpret_borrow<py::tuple>(block_ids);
    take_block_ids(groups);
    num_groups = groups.size();
  }
  const connector::StepTokens tokens{uint32_of(num_computed_tokens), uint32_of(scheduled),
                                     num_drafts(request_id, drafts), num_prompt_tokens};
  engine().on_scheduled(engine_id, update, tables(num_groups), tokens);
}

void PySchedulerEngine::take_states(py::handle scheduler_output) {
  const py::object block_state = attribute(scheduler_output, "kv_connector_block_state");
  if (block_state.is_none()) return;
  const py::dict of_requests = attribute(block_state, "boundary_state_offloads");
  for (const auto& [request_id, states] : of_requests) {
    for (const py::handle state : states) {
      const auto [group, block, num_tokens] =
          state.cast<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>>();
      engine().on_state(text_of(request_id), GroupId(group), BlockId(block), num_tokens);
    }
  }
}

py::bytes PySchedulerEngine::build_plan(py::handle scheduler_output) {
  const py::object preempted = attribute(scheduler_output, "preempted_req_ids");
  if (!preempted.is_none()) {
    for (const py::handle request_id : preempted) engine().on_preempted(text_of(request_id));
  }
  const py::object scheduled = attribute(scheduler_output, "num_scheduled_tokens");
  const py::object drafts = attribute(scheduler_output, "scheduled_spec_decode_tokens");
  for (const py::handle request : attribute(scheduler_output, "scheduled_new_reqs")) {
    take_scheduled(attribute(request, "req_id"), connector::TableUpdate::kReplace,
                   attribute(request, "block_ids"), attribute(request, "num_computed_tokens"),
                   scheduled, drafts, uint32_of(attribute(request, "prompt_len")));
  }
  const py::object cached = attribute(scheduler_output, "scheduled_cached_reqs");
  const py::list request_ids = attribute(cached, "req_ids");
  if (!request_ids.empty()) {
    const py::list block_ids = attribute(cached, "new_block_ids");
    const py::list computed = attribute(cached, "num_computed_tokens");
    const py::set resumed = attribute(cached, "resumed_req_ids");
    for (std::size_t i = 0; i < request_ids.size(); ++i) {
      const py::object request_id = request_ids[i];
      const bool replace = !resumed.empty() && resumed.contains(request_id);
      take_scheduled(request_id,
                     replace ? connector::TableUpdate::kReplace : connector::TableUpdate::kAppend,
                     block_ids[i], computed[i], scheduled, drafts);
    }
  }
  take_states(scheduler_output);
  return py::bytes(engine().finish_plan());
}

PySchedulerEngine::Folded PySchedulerEngine::fold(const BytesList& reports) {
  std::vector<std::span<const std::byte>> encoded;
  for (const py::handle report : reports) encoded.push_back(bytes_of(report));
  connector::FoldResult result = engine().fold(encoded);
  return {std::move(result.ended), std::move(result.stale), engine().take_warnings()};
}

void PySchedulerEngine::on_finished(const py::str& request_id, std::uint32_t num_tokens) {
  engine().on_finished(text_of(request_id), num_tokens);
}

void PySchedulerEngine::reset_cache() { engine().reset_cache(); }

void PySchedulerEngine::change_weights(std::uint64_t weights, bool forget_old) {
  engine().change_weights(WeightsId(weights), forget_old ? connector::OldBlocks::kForgotten
                                                         : connector::OldBlocks::kKept);
  weights_ = weights;
}

std::vector<std::tuple<bool, std::uint32_t, py::bytes>> PySchedulerEngine::take_key_events() {
  std::vector<std::tuple<bool, std::uint32_t, py::bytes>> out;
  for (const cpu_tier::KeyEvent& event : engine().take_key_events()) {
    out.emplace_back(event.readable, event.key.group, hash_of(event.key));
  }
  return out;
}

std::vector<std::tuple<bool, std::uint32_t, py::bytes, std::uint64_t>>
PySchedulerEngine::take_tier_changes(std::size_t most) {
  std::vector<std::tuple<bool, std::uint32_t, py::bytes, std::uint64_t>> out;
  if (!tier_) return out;
  if (!contents_) contents_.emplace(tier_->directory().records());
  std::vector<cpu_tier::ContentChange> changes;
  {
    const py::gil_scoped_release unlocked;
    changes = contents_->take_changes(most, WeightsId(weights_));
  }
  for (const cpu_tier::ContentChange& change : changes) {
    out.emplace_back(change.readable, change.key.group, hash_of(change.key), change.slot);
  }
  return out;
}

std::uint32_t PySchedulerEngine::num_slots() const { return engine().num_slots(); }

std::uint32_t PySchedulerEngine::max_slots() const { return engine().max_slots(); }

bool PySchedulerEngine::is_busy() const { return engine().is_busy(); }

template <class Visit>
void PySchedulerEngine::visit_figures(Visit visit) const {
  connector::visit_figures(engine().snapshot(), engine().max_slots(), visit);
}

Figures PySchedulerEngine::snapshot() const {
  Figures out;
  visit_figures([&](const auto& name, std::uint64_t value) { out[py::str(name)] = value; });
  return out;
}

Figures PySchedulerEngine::take_changes() {
  Figures out;
  std::size_t at = 0;
  visit_figures([&](const auto& name, std::uint64_t value) {
    const bool is_new = at == told_.size();
    if (is_new) told_.push_back(value);
    if (std::exchange(told_[at++], value) != value || is_new) out[py::str(name)] = value;
  });
  return out;
}

void PySchedulerEngine::resize(std::uint32_t num_chunks) { engine().resize(num_chunks); }

std::tuple<Figures, std::vector<std::uint32_t>, std::string> PySchedulerEngine::tier_size() const {
  const connector::TierSize now = engine().tier_size();
  Figures out;
  out["num_chunks"] = now.num_chunks;
  out["target_chunks"] = now.target_chunks;
  out["max_chunks"] = now.max_chunks;
  out["chunks_per_run"] = now.chunks_per_run;
  out["num_retiring"] = now.num_retiring;
  out["num_restoring"] = now.num_restoring;
  out["is_blocked"] = static_cast<int>(now.is_blocked);
  out["is_at_work"] = static_cast<int>(now.is_at_work);
  std::vector<std::uint32_t> silent_ranks;
  for (const RankId rank : now.silent_ranks) silent_ranks.push_back(rank.value());
  return {std::move(out), std::move(silent_ranks), now.failure};
}

void PySchedulerEngine::close() {
  contents_.reset();
  engine_.reset();
  recorder_.reset();
  tier_.reset();
  pool_.reset();
}

}  // namespace kvferry::python
