// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/cpu_tier/peers/tier_contents.hpp"
#include "kvferry/recorder/recorder.hpp"

#include "engine_objects.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvferry::python {

/// Python's `list[bytes]`, `list[Any]` and `dict[str, int]` in signatures.
using BytesList = py::typing::List<py::bytes>;
using ObjectList = py::typing::List<py::object>;
using Figures = py::typing::Dict<py::str, py::int_>;

/// A SchedulerEngine that reads vLLM's own objects: one call for each hook, and no Python code for
/// each block or request.
class PySchedulerEngine {
 public:
  /// `tier`: the joined tier that engines share, which the options name too; null: the engine has
  /// its own tier. `recorder`: null: nothing is recorded.
  explicit PySchedulerEngine(connector::SchedulerOptions options,
                             std::unique_ptr<cpu_tier::JoinedTier> tier = nullptr,
                             std::unique_ptr<recorder::Recorder> recorder = nullptr);

  void bind_pool(ObjectList blocks);
  void on_request(const py::str& request_id, BytesList block_hashes,
                  std::optional<std::uint32_t> max_load_tokens,
                  std::optional<std::uint32_t> max_store_tokens);
  void on_hints(const py::str& request_id, const std::string& session,
                const std::vector<std::tuple<std::string, double, std::string>>& hints);
  std::optional<std::uint32_t> lookup(const py::str& request_id, const BytesList& block_hashes,
                                      std::uint32_t num_local_tokens, std::uint32_t num_tokens);
  bool note_local(const py::str& request_id, std::uint32_t num_local_tokens);
  void on_blocks_invalid(const py::typing::Iterable<py::int_>& blocks);
  void on_allocated(const py::str& request_id, const BytesList& block_hashes,
                    const py::typing::Tuple<py::object, py::ellipsis>& blocks,
                    std::uint32_t num_external_tokens);
  py::bytes build_plan(py::handle scheduler_output);
  /// Ended loads, stale ones, and warnings.
  using Folded =
      std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<std::string>>;
  Folded fold(const BytesList& reports);
  void on_finished(const py::str& request_id, std::uint32_t num_tokens);
  void reset_cache();
  void change_weights(std::uint64_t weights, bool forget_old);
  std::vector<std::tuple<bool, std::uint32_t, py::bytes>> take_key_events();
  std::vector<std::tuple<bool, std::uint32_t, py::bytes, std::uint64_t>> take_tier_changes(
      std::size_t most);
  [[nodiscard]] Figures snapshot() const;
  /// The figures of snapshot() that have changed since the last call; at first all.
  [[nodiscard]] Figures take_changes();
  void resize(std::uint32_t num_chunks);
  [[nodiscard]] std::tuple<Figures, std::vector<std::uint32_t>, std::string> tier_size() const;
  [[nodiscard]] std::uint32_t num_slots() const;
  [[nodiscard]] std::uint32_t max_slots() const;
  [[nodiscard]] bool is_busy() const;
  [[nodiscard]] const std::string& recorder_error() const { return recorder_error_; }
  void set_recorder_error(std::string why) { recorder_error_ = std::move(why); }
  void close();

 private:
  /// Calls `visit(name, value)` for each figure of snapshot(), always in the same order.
  template <class Visit>
  void visit_figures(Visit visit) const;
  connector::SchedulerEngine& engine();
  [[nodiscard]] const connector::SchedulerEngine& engine() const;
  /// Announces a request id that the engine has not announced (its version lacks the hook).
  void announce(std::string_view engine_id, const BytesList& block_hashes);
  void take_scheduled(py::handle request_id, connector::TableUpdate update, py::handle block_ids,
                      py::handle num_computed_tokens, py::handle num_scheduled_tokens,
                      py::handle drafts, std::uint32_t num_prompt_tokens = 0);
  /// Reads where the step leaves recurrent states.
  void take_states(py::handle scheduler_output);

  /// Reads the block lists of each KV cache group into tables_.
  void take_block_ids(const py::tuple& groups);
  void take_blocks(const py::tuple& groups);
  /// tables_, in the core's form.
  std::span<const std::span<const BlockId>> tables(std::size_t num_groups);

  std::unique_ptr<PyBlockPool> pool_;
  std::unique_ptr<cpu_tier::JoinedTier> tier_;
  std::unique_ptr<recorder::Recorder> recorder_;
  std::string recorder_error_;
  std::optional<cpu_tier::TierContents>
      contents_;                            ///< The contents of `tier_`, made at the first request.
  std::atomic<std::uint64_t> weights_ = 0;  ///< For take_tier_changes(), on any thread.
  std::unique_ptr<connector::SchedulerEngine> engine_;
  /// The figures as of the last take_changes(), in the order of visit_figures().
  std::vector<std::uint64_t> told_;
  AttributeReader block_id_;
  bool has_block_id_ = false;
  // Scratch, kept for its capacity.
  std::vector<std::vector<BlockId>> tables_;
  std::vector<std::span<const BlockId>> views_;
};

}  // namespace kvferry::python
