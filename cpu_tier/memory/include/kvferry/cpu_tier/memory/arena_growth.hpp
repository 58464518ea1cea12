// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

namespace kvferry::cpu_tier {

struct GrowthOptions {
  /// Most bytes per second; 0: as they come.
  std::uint64_t pinning_bandwidth_limit = 0;
};

/// Makes the rest of an arena ready on a thread of its own (G9): in doubling steps up to the
/// largest registration while nobody serves, later piece by piece with pauses. The arena outlives
/// it and is grown by nobody else. Thread-safe.
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
  /// Whether no more slots will become ready: all are, it failed, or it was closed.
  [[nodiscard]] bool ended() const;
  /// Why it ended before all slots were ready; empty if it did not.
  [[nodiscard]] std::string failure() const;
  /// What was obtained by its end; unset: it goes on, or was closed. Reads nothing.
  [[nodiscard]] std::optional<ArenaReport> last_report() const;
  /// Stops within a chunk's population or a registration, and waits for that. Idempotent.
  void close();

 private:
  void grow(const std::stop_token& stop);
  /// Sleeps until the pace allows the next step; `took` was spent on `bytes`.
  void pause(const std::stop_token& stop, std::uint64_t bytes, std::chrono::nanoseconds took);
  [[nodiscard]] bool gentle() const;

  Arena& arena_;
  const GrowthOptions options_;
  mutable Mutex mutex_;
  CondVar stopped_;
  bool gentle_ KVFERRY_GUARDED_BY(mutex_) = false;
  bool ended_ KVFERRY_GUARDED_BY(mutex_) = false;
  std::string failure_ KVFERRY_GUARDED_BY(mutex_);
  std::optional<ArenaReport> last_report_ KVFERRY_GUARDED_BY(mutex_);
  /// Last: it ends before what it uses.
  std::jthread thread_;
};

}  // namespace kvferry::cpu_tier
