// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace kvferry::transfer {

/// How long each direction of the link has moved nothing, and how long the transfer thread has been
/// in the driver. Not thread-safe: TransferTable guards it.
///
/// Time counts only as far as it was seen to pass: by the transfer thread, and by callers who ask.
/// Between two looks kMostPerLook counts at most, so that a process which was stopped (a frozen
/// cgroup, a debugger, SIGSTOP) has lost nothing when it goes on.
///
/// A direction is stalled while the oldest piece that it has submitted does not end. Younger pieces
/// that end say nothing: they may run on another stream. What waits in the queue is not its
/// concern, nor is a wait for the compute stream: the engine awaits that stream itself, in every
/// step, with a bound of its own.
class LaneWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::nanoseconds kMostPerLook = std::chrono::milliseconds(100);

  /// Somebody is awake and looks. The time does not run backwards.
  void look(Clock::time_point now);

  /// A piece of the transfer goes to its direction. Returns the number by which end() names it.
  [[nodiscard]] std::uint64_t begin(TransferKind kind, TransferId transfer);
  /// The piece ended. If it was the oldest of its direction, the next one's time begins.
  void end(TransferKind kind, std::uint64_t piece);
  /// The oldest piece of the direction waits for the compute stream.
  void hold(TransferKind kind) { of(kind).moved = seen_; }
  /// The transfer thread goes to the driver, or comes back from it.
  void enter_driver() {
    in_driver_ = true;
    entered_ = seen_;
  }
  void leave_driver() { in_driver_ = false; }

  /// The transfer of the oldest piece of a direction that has been stalled for longer than `bound`.
  [[nodiscard]] std::optional<OverdueTransfer> stalled(std::chrono::nanoseconds bound) const;
  /// How long the transfer thread has been in the driver; nothing if it is not.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> in_driver() const;

 private:
  struct Lane {
    struct Submitted {
      std::uint64_t piece = 0;
      TransferId transfer;
    };
    /// What has not ended; oldest first.
    std::deque<Submitted> submitted;
    std::chrono::nanoseconds moved{0};  ///< `seen_` of then.
  };
  [[nodiscard]] Lane& of(TransferKind kind) { return lanes_.at(static_cast<std::size_t>(kind)); }

  std::chrono::nanoseconds seen_{0};
  std::optional<Clock::time_point> last_look_;
  std::array<Lane, 2> lanes_;
  std::uint64_t last_piece_ = 0;
  bool in_driver_ = false;
  std::chrono::nanoseconds entered_{0};
};

}  // namespace kvferry::transfer
