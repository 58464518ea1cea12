// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"
#include "kvferry/cpu_tier/slots/tier_moves.hpp"
#include "kvferry/recorder/recorder.hpp"

#include "block_groups.hpp"
#include "call_journal.hpp"
#include "prefix_search.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::connector {

/// Records what the scheduler side decides, if there is a recorder (recorder/event.hpp defines the
/// events). Without one every function returns at once. One thread at a time.
class DecisionJournal {
 public:
  /// `to` may be null; otherwise it outlives this object.
  explicit DecisionJournal(recorder::Recorder* to) : to_(to) {}

  [[nodiscard]] bool is_on() const { return to_ != nullptr; }

  // ---- lookups and loads ----

  /// A lookup found nothing, without a question to the tier.
  void found_nothing(const Request* request);
  /// The request is to ask again: loaded requests behind it come first (LoadedQueue).
  void put_off(const Request& request);
  /// `tokens`: nothing if the request is to ask again, because it waits for `awaited` or for ranks.
  void found(const Request& request, const LookupAnswer& answer,
             std::optional<std::uint32_t> tokens, const Request* awaited);
  /// Why the answer is not longer.
  void missing(const Request& request, const BlockGroups& groups, const LookupAnswer& answer,
               WeightsId weights);
  void load_begun(const Request& request, std::uint32_t first, std::uint32_t end, bool has_lease);
  void load_ended(RequestId request, TransferId load, recorder::LoadFate fate);
  void told(RequestId request) { request_event(recorder::EventKind::kTold, request); }
  void stale(RequestId request) { request_event(recorder::EventKind::kStale, request); }

  // ---- stores ----

  void skipped(recorder::Skip why, RequestId request, std::span<const cpu_tier::BlockKey> keys);
  void store_ended(TransferId store, std::size_t num_stored, std::size_t num_skipped, bool failed);
  void aborted(std::span<const TransferId> stores);

  // ---- plans and the tier ----

  void planned(const StepPlan& plan);
  /// Which keys came and left since the last call.
  void moved(cpu_tier::Tier& tier);

 private:
  void request_event(recorder::EventKind kind, RequestId request) {
    if (to_ != nullptr) to_->put(kind, recorder::kNoFlags, number_of(request));
  }
  void put_moves(SlabClassId of, std::span<const cpu_tier::KeyMove> moves);

  recorder::Recorder* const to_;
  std::vector<cpu_tier::KeyMove> moves_;
};

}  // namespace kvferry::connector
