// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/client_hint.hpp"
#include "kvferry/connector/scheduler/engine_step.hpp"
#include "kvferry/connector/scheduler/engine_view.hpp"
#include "kvferry/connector/wire/recorded_plan.hpp"
#include "kvferry/recorder/recorder.hpp"

#include "block_groups.hpp"
#include "request_table.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvferry::connector {

/// The number of a request in a recording; 0 for none.
[[nodiscard]] inline std::uint32_t number_of(const Request* request) {
  return request == nullptr ? 0 : number_of(request->id);
}

/// Records the calls of the scheduler side and what they read outside, if there is a recorder
/// (recorder/event.hpp defines the events). Each call is recorded before it does anything. Without
/// a recorder every function returns at once, except scheduled(), which is called only with one.
/// One thread at a time.
class CallJournal {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Clock = std::function<TimePoint()>;

  /// `to` may be null; otherwise it outlives this object. The engine has this many KV cache groups.
  CallJournal(recorder::Recorder* to, Clock clock, std::size_t num_groups);
  ~CallJournal();
  CallJournal(const CallJournal&) = delete;
  CallJournal& operator=(const CallJournal&) = delete;

  [[nodiscard]] bool is_on() const { return to_ != nullptr; }
  /// The clock of the scheduler side: it is read once in each call, and stands still within one.
  [[nodiscard]] TimePoint now();

  // ---- calls ----

  void request(RequestId next, std::string_view engine_id, const RequestLimits& limits);
  void hints(const Request* request, std::string_view session, std::span<const ClientHint> hints);
  void lookup(const Request* request, std::uint32_t num_local, std::uint32_t num_tokens);
  void allocated(const Request* request, GroupBlocks tables, std::uint32_t num_external);
  void local(const Request* request, std::uint32_t num_local);
  void blocks_invalid(std::span<const BlockId> blocks);
  void preempted(const Request* request);
  void scheduled(Request* request, TableUpdate update, GroupBlocks blocks,
                 const StepTokens& tokens) {
    // What most calls are: a request that decodes.
    if (request != nullptr && blocks.empty() && update == TableUpdate::kAppend &&
        tokens.num_drafts == 0 && tokens.num_prompt == 0 && !request->had_drafts) {
      is_stamped_ = false;
      to_->put(recorder::EventKind::kScheduled, recorder::kNoFlags, number_of(request->id),
               recorder::halves(tokens.num_computed, tokens.num_scheduled));
      return;
    }
    scheduled_with(request, update, blocks, tokens);
  }
  void state(const Request* request, GroupId group, BlockId block, std::uint32_t num_tokens);
  void plan(PlanSeq next);
  void fold(std::span<const std::span<const std::byte>> reports);
  void finished(const Request* request, std::uint32_t num_tokens);
  void reset();
  void weights(WeightsId to, bool forgets);
  void tended();
  /// A call without a time and a request.
  void simple(recorder::EventKind kind, std::uint32_t number = 0);
  /// The call throws this.
  void threw(const std::exception& error);
  /// What was under way then: at most max_text_bytes().
  void books(std::string_view text);
  [[nodiscard]] std::size_t max_text_bytes() const {
    return to_ == nullptr ? 0 : (to_->max_words() - 1) * sizeof(std::uint64_t);
  }

  // ---- answers ----

  /// The request's hashes from position `before` on were read.
  void hashes(const Request& request, const BlockGroups& groups, WeightsId weights,
              std::uint32_t before);
  /// The pool as the scheduler side reads it.
  [[nodiscard]] BlockPool* watched(BlockPool* pool);

 private:
  class WatchedPool;

  [[nodiscard]] std::uint64_t stamp();
  void scheduled_with(Request* request, TableUpdate update, GroupBlocks blocks,
                      const StepTokens& tokens);
  void hashes_of(const Request& request, GroupId group, std::uint32_t length, WeightsId weights,
                 std::size_t first);

  recorder::Recorder* const to_;
  const Clock clock_;
  const std::size_t num_groups_;
  TimePoint now_;
  bool is_stamped_ = false;
  std::unique_ptr<WatchedPool> pool_;
};

}  // namespace kvferry::connector
