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
/// in a driver call. Not thread-safe: TransferTable guards it.
///
/// Time counts only if this process sees it pass, by look(): the transfer thread calls it, and so
/// do callers that ask. Between two looks at most kMostPerLook counts. So a process that was
/// stopped (a frozen cgroup, a debugger, SIGSTOP) reports no stall when it continues.
///
/// A direction is stalled while the oldest piece that it has submitted does not end. Younger pieces
/// that end prove nothing, because they may run on another stream. Pieces in the queue do not
/// count, nor does a wait for the compute stream: the engine itself waits for that stream in every
/// step, with its own bound.
class LaneWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::nanoseconds kMostPerLook = std::chrono::milliseconds(100);

  /// Notes that a thread is awake at `now`. The time never decreases.
  void look(Clock::time_point now);

  /// Notes that a piece of the transfer was submitted. Returns the number that end() takes.
  [[nodiscard]] std::uint64_t begin(TransferKind kind, TransferId transfer);
  /// Notes that the piece ended. If it was the oldest of its direction, the time of the next one
  /// begins.
  void end(TransferKind kind, std::uint64_t piece);
  /// Notes that the oldest piece of the direction waits for the compute stream.
  void hold(TransferKind kind) { of(kind).moved = seen_; }
  /// Notes that the transfer thread enters the driver, or comes back from it.
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
    /// The pieces that have not ended, oldest first.
    std::deque<Submitted> submitted;
    std::chrono::nanoseconds moved{0};  ///< `seen_` when it last moved.
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
