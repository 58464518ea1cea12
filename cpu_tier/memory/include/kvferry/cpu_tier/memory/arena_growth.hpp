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
  /// Most bytes per second; 0: as they come.
  std::uint64_t pinning_bandwidth_limit = 0;
};

/// Whether pieces of an arena are to be given back to the machine, or made ready again.
enum class ArenaChange : std::uint8_t { kRetire, kRestore };

/// What is to be done with whole pieces of an arena, or with none.
struct ArenaOrder {
  ArenaChange change = ArenaChange::kRetire;
  ChunkRange chunks;
};

/// Makes the rest of an arena ready on a thread of its own (G9): in doubling steps up to the
/// largest registration while nobody serves, later piece by piece with pauses. The same thread
/// gives pieces back and makes them ready again, in the order of its orders, which come before
/// growth. The arena outlives it and is grown by nobody else. Thread-safe.
class ArenaGrowth {
 public:
  explicit ArenaGrowth(Arena& arena, const GrowthOptions& options = {});
  /// close().
  ~ArenaGrowth();
  ArenaGrowth(const ArenaGrowth&) = delete;
  ArenaGrowth& operator=(const ArenaGrowth&) = delete;

  /// An engine serves from now on: one piece at a time, and three times as long a pause behind it,
  /// because a registration can hold up launches.
  void go_gently();
  /// Of an arena that can be resized. No two orders that are under way name the same piece unless
  /// the later one undoes the earlier.
  void order(ArenaOrder order);
  /// How the orders ended that did since the last call, in their order: why one failed, or nothing.
  /// One that failed has changed nothing. None ends after close().
  [[nodiscard]] std::vector<std::string> take_ends();
  /// Whether the first chunks will not become more: all are ready, it failed, or it was closed.
  [[nodiscard]] bool ended() const;
  /// Why it ended before all slots were ready; empty if it did not.
  [[nodiscard]] std::string failure() const;
  /// What was obtained by its end; unset: it goes on, or was closed. Reads nothing.
  [[nodiscard]] std::optional<ArenaReport> last_report() const;
  /// Stops within a chunk's population or a registration, and waits for that. Idempotent.
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  void work(const std::stop_token& stop);
  /// One step: how many bytes became ready. 0: no more will.
  [[nodiscard]] std::uint64_t grow(const std::stop_token& stop);
  void end_growth(const std::stop_token& stop, std::string failure);
  /// The next order, when the pace allows it. Nothing: it was stopped, or `growing` and the pace
  /// allows the next step.
  [[nodiscard]] std::optional<ArenaOrder> wait(const std::stop_token& stop, bool growing);
  void obey(const ArenaOrder& order, const std::stop_token& stop);
  /// `took` was spent, and so many bytes became ready by it: when the pace allows what comes next.
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
  // Of the thread alone:
  std::uint64_t step_bytes_ =
      1;                   ///< A first step of one piece, so that something is ready at once.
  Clock::time_point due_;  ///< Of what makes more memory ready.
  Clock::time_point retirement_due_;  ///< No limit on what becomes ready delays it.
  /// Last: it ends before what it uses.
  std::jthread thread_;
};

}  // namespace kvferry::cpu_tier
