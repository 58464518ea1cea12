// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace kvferry::cpu_tier {

struct GrowthOptions {
  /// Most bytes per second; 0: no limit.
  std::uint64_t pinning_bandwidth_limit = 0;
};

/// Whether to return pieces of an arena to the machine, or to make them ready again.
enum class ArenaChange : std::uint8_t { kRetire, kRestore };

/// An order about whole pieces of an arena. It can be empty.
struct ArenaOrder {
  ArenaChange change = ArenaChange::kRetire;
  ChunkRange chunks;
};

/// Makes the rest of an arena ready on its own thread (G9). While the engine does not serve, the
/// steps double up to the largest registration. Afterwards it proceeds piece by piece with pauses.
/// The same thread retires and restores pieces in the order of the given orders; orders come before
/// growth. The arena outlives it, and no other code grows the arena. Thread-safe, except close()
/// and the destructor, which one thread calls.
class ArenaGrowth {
 public:
  explicit ArenaGrowth(Arena& arena, const GrowthOptions& options = {});
  /// Calls close().
  ~ArenaGrowth();
  ArenaGrowth(const ArenaGrowth&) = delete;
  ArenaGrowth& operator=(const ArenaGrowth&) = delete;

  /// Call this when the engine begins to serve. From then on it makes one piece ready at a time,
  /// followed by a pause of three times that duration, because a registration can delay kernel
  /// launches.
  void go_gently();
  /// Gives an order for an arena that can be resized. Two orders under way must not name the same
  /// piece, unless the later one undoes the earlier one.
  void order(ArenaOrder order);
  /// Results of the orders that ended since the last call, in the order in which they were given:
  /// the reason for a failure, or nothing. A failed order has changed nothing. No order ends after
  /// close().
  [[nodiscard]] std::vector<std::string> take_ends();
  /// Whether no more of the first chunks will become ready: all are ready, the growth failed, or it
  /// was closed.
  [[nodiscard]] bool ended() const;
  /// Why the growth failed; empty if it did not fail.
  [[nodiscard]] std::string failure() const;
  /// The report at the end of the growth; unset: it continues, or was closed. This function does no
  /// I/O.
  [[nodiscard]] std::optional<ArenaReport> last_report() const;
  /// Stops the thread and waits for it: at most the time to populate a chunk, to make one
  /// registration, or to retire the pieces of one order. Idempotent.
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  void work(const std::stop_token& stop);
  /// Makes one step. Returns how many bytes became ready; 0: no more will.
  [[nodiscard]] std::uint64_t grow(const std::stop_token& stop);
  void end_growth(const std::stop_token& stop, std::string failure);
  /// Waits for the next order until the rate limit allows it. Returns nothing if it was stopped, or
  /// if it is `growing` and the rate limit allows the next step.
  [[nodiscard]] std::optional<ArenaOrder> wait(const std::stop_token& stop, bool growing);
  void obey(const ArenaOrder& order, const std::stop_token& stop);
  /// Records that a step took `took` and made this many bytes ready, and sets the time of the next
  /// step.
  void set_pace(std::uint64_t bytes, std::chrono::nanoseconds took);
  [[nodiscard]] bool gentle() const;

  Arena& arena_;
  const GrowthOptions options_;
  mutable Mutex mutex_;
  CondVar woken_;
  bool gentle_ KVFERRY_GUARDED_BY(mutex_) = false;
  bool ended_ KVFERRY_GUARDED_BY(mutex_) = false;
  std::string failure_ KVFERRY_GUARDED_BY(mutex_);
  std::optional<ArenaReport> last_report_ KVFERRY_GUARDED_BY(mutex_);
  std::deque<ArenaOrder> orders_ KVFERRY_GUARDED_BY(mutex_);
  std::vector<std::string> ends_ KVFERRY_GUARDED_BY(mutex_);
  // Used only by the thread:
  std::uint64_t step_bytes_ =
      1;                   ///< A first step of one piece, so that something is ready at once.
  Clock::time_point due_;  ///< For steps that make more memory ready.
  Clock::time_point retirement_due_;  ///< The bandwidth limit does not delay retirements.
  /// Last member: the thread ends before the members that it uses.
  std::jthread thread_;
};

}  // namespace kvferry::cpu_tier
