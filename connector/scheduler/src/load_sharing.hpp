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

/// Lets a request wait for another one's load of the same prefix, which the engine's own cache has
/// for everybody when it has ended. One wait for each turn of a request, bounded in time, and ended
/// by the loader's abort or failure: no request waits for one that waits.
class LoadSharing {
 public:
  using Clock = std::chrono::steady_clock;

  /// `max_wait` 0: no request waits.
  LoadSharing(const LoadBook& loads, const BlockGroups& groups, std::chrono::nanoseconds max_wait,
              std::function<Clock::time_point()> now)
      : loads_(loads), groups_(groups), max_wait_(max_wait), now_(std::move(now)) {}

  /// The request's load of the positions [first, end) has begun.
  void on_begun(const Request& request, std::uint32_t first, std::uint32_t end);
  /// Whether the request, with its answer of now, is to be asked again later.
  [[nodiscard]] bool must_wait(const Request& request, const LookupAnswer& answer);
  /// Its turn is over, or it is finished: it may wait once more.
  void end_turn(const Request& request) { waits_.drop(request); }
  [[nodiscard]] std::uint64_t num_waits() const { return num_waits_; }

 private:
  struct Load {
    TransferId transfer;
    std::uint32_t end = 0;
  };
  /// A request's wait for another one's load: one for each turn.
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

  /// A load that brings half or more of what the request would load.
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
  /// By the first block that is loaded, in the first group; those that have ended leave when the
  /// map grows.
  std::unordered_map<cpu_tier::BlockKey, Load, KeyHash> begun_;
  PerRequest<Wait> waits_;
  std::uint64_t num_waits_ = 0;
};

}  // namespace kvferry::connector
