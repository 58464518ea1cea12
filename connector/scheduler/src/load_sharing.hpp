// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include "load_book.hpp"
#include "per_request.hpp"
#include "prefix_search.hpp"
#include "request_table.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

namespace kvferry::connector {

/// Lets a request wait for another request's load of the same prefix. When that load has ended, the
/// engine's own cache has the prefix for all requests. A request waits once per turn, for a limited
/// time, and the loader's abort or failure ends the wait. No request waits for a request that
/// waits.
class LoadSharing {
 public:
  using Clock = std::chrono::steady_clock;

  /// `max_wait` 0: no request waits.
  LoadSharing(const LoadBook& loads, const BlockGroups& groups, std::chrono::nanoseconds max_wait,
              std::function<Clock::time_point()> now)
      : loads_(loads), groups_(groups), max_wait_(max_wait), now_(std::move(now)) {}

  /// The request's load of the positions [first, end) has begun.
  void on_begun(const Request& request, std::uint32_t first, std::uint32_t end);
  /// Whether to ask the request, with its present answer, again later.
  [[nodiscard]] bool must_wait(const Request& request, const LookupAnswer& answer);
  /// The request for whose load this one waits, since the last must_wait(); null: none.
  [[nodiscard]] const Request* awaited_by(const Request& request) {
    const Wait& wait = waits_.of(request);
    return wait.state == Wait::State::kWaiting ? loads_.waiting_request(wait.load) : nullptr;
  }
  /// The request's turn is over, or it is finished: it may wait once more.
  void end_turn(const Request& request) { waits_.drop(request); }
  [[nodiscard]] std::uint64_t num_waits() const { return num_waits_; }

 private:
  struct Load {
    TransferId transfer;
    std::uint32_t end = 0;
  };
  /// A request's wait for another request's load: one per turn.
  struct Wait {
    enum class State : std::uint8_t { kNone, kWaiting, kOver };
    State state = State::kNone;
    TransferId load;
    std::uint32_t first = 0;
    Clock::time_point since{};
  };
  struct KeyHash {
    std::size_t operator()(const cpu_tier::BlockKey& key) const { return key.mixed(); }
  };

  /// A load that brings at least half of what the request would load.
  [[nodiscard]] std::optional<TransferId> worth_waiting_for(const Request& request,
                                                            const LookupAnswer& answer) const;
  /// The key of the first kept group's block at a position.
  [[nodiscard]] const cpu_tier::BlockKey& key_at(const Request& request,
                                                 std::uint32_t position) const {
    const GroupId first = groups_.ids().front();
    return request.keys_of(first)[groups_.num_complete(first, position)];
  }
  [[nodiscard]] Clock::time_point now() const { return now_ ? now_() : Clock::now(); }

  const LoadBook& loads_;
  const BlockGroups& groups_;
  std::chrono::nanoseconds max_wait_;
  std::function<Clock::time_point()> now_;
  /// By the key of the first loaded block in the first group. Loads that have ended are removed
  /// when the map grows.
  std::unordered_map<cpu_tier::BlockKey, Load, KeyHash> begun_;
  PerRequest<Wait> waits_;
  std::uint64_t num_waits_ = 0;
};

}  // namespace kvferry::connector
