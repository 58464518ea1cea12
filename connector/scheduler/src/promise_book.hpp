// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/client_hint.hpp"
#include "kvferry/cpu_tier/slots/tier_promises.hpp"

#include "block_groups.hpp"
#include "per_request.hpp"
#include "request_table.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvferry::connector {

/// What clients have promised the tier (TierPromises), by owner: the session that a request names,
/// or else the request itself. An owner has one promise; a new one replaces the old one. A promise
/// ends when its time is over (checked once per step), when its owner ends it, and when the cache
/// is reset. One thread at a time.
class PromiseBook {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  /// The tier and the groups outlive it. All promises together name at most `max_keys` keys. The
  /// promises that end next make room for new ones, and a promise that is too long is refused. 0:
  /// every hint is refused.
  PromiseBook(cpu_tier::Tier& tier, const BlockGroups& groups, Clock clock, std::size_t max_keys)
      : tier_(tier), groups_(groups), clock_(std::move(clock)), max_keys_(max_keys) {}

  /// A request has arrived with these hints, and its keys are up to date. Hints about its own
  /// blocks take effect when it ends, except kPrefetch.
  void on_request(const Request& request, std::string_view session,
                  std::span<const ClientHint> hints);
  /// Whether a hint takes effect when the request ends. Then its keys have to be up to date.
  [[nodiscard]] bool waits_for(const Request& request) const {
    return wishes_.of(request).at_end.has_value();
  }
  void on_finished(const Request& request);
  /// Ends the promises whose time is over. To be called once per step.
  void expire();
  /// Ends all promises.
  void clear();

  struct Counts {
    std::array<std::uint64_t, kNumHintActions>
        done{};                        ///< Hints that were followed, by HintAction.
    std::uint64_t refused = 0;         ///< Promises without room for their keys.
    std::uint64_t without_effect = 0;  ///< Hints for sessions without a promise.
    std::uint64_t expired = 0;         ///< Promises whose time was over.
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }
  [[nodiscard]] std::size_t size() const { return promises_.size(); }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Promise {
    GroupKeys keys;
    std::size_t num_keys = 0;
    TimePoint until;
  };
  using Promises = std::map<std::string, Promise, std::less<>>;
  /// What a request's hints ask for its own blocks.
  struct Wish {
    std::string owner;
    std::optional<ClientHint> at_end;
  };

  [[nodiscard]] TimePoint now() const {
    return clock_ ? clock_() : std::chrono::steady_clock::now();
  }
  void count(HintAction action) { ++counts_.done[static_cast<std::size_t>(action)]; }
  /// Follows a hint about another session, or one that takes effect at once.
  void do_now(const Request& request, std::string_view owner, const ClientHint& hint);
  /// From now on the owner's promise names these keys.
  void promise(std::string_view owner, const GroupKeys& keys, const ClientHint& hint);
  void end(Promises::iterator promise);
  /// Ends the owner's promise, if there is one.
  void end_of(std::string_view owner);
  [[nodiscard]] bool make_room(std::size_t num_keys, std::string_view for_owner);
  template <class Each>
  void for_each_group(const GroupKeys& keys, const Each& each) const;

  cpu_tier::TierPromises tier_;
  const BlockGroups& groups_;
  Clock clock_;
  std::size_t max_keys_;
  std::size_t num_keys_ = 0;
  Promises promises_;
  std::set<std::pair<TimePoint, std::string>> ends_;
  PerRequest<Wish> wishes_;
  Counts counts_;
};

}  // namespace kvferry::connector
