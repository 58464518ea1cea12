// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/arena.hpp"
#include "kvferry/gpu/device.hpp"

#include "piece.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::transfer {

/// A piece that no device touches any more.
struct EndedPiece {
  Piece piece;
  std::string failure;  ///< Empty: every byte arrived.
  std::chrono::nanoseconds device_time{0};
};

/// One direction of the link: a stream and what was submitted to it. Used by the transfer thread
/// only.
class CopyLane {
 public:
  CopyLane(gpu::Device& device, const cpu_tier::Arena& arena, gpu::CopyDirection direction);
  ~CopyLane();
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  /// Submits the piece's copies behind `piece.after`. Never throws DeviceError: a piece that the
  /// device refuses comes back from reap() like every other.
  void submit(Piece piece);
  /// The pieces that ended, in order of submission. Waits for nothing.
  [[nodiscard]] std::vector<EndedPiece> reap();
  [[nodiscard]] bool busy() const { return !in_flight_.empty(); }

 private:
  struct InFlight {
    Piece piece;
    std::unique_ptr<gpu::Event> begin;
    std::unique_ptr<gpu::Event> end;
    std::string failure;     ///< Of the submission.
    bool submitted = false;  ///< At least one copy is in the stream.
    bool recorded = false;   ///< `end` marks the end of all of them.
  };

  void enqueue(InFlight& work);
  [[nodiscard]] bool ended(const InFlight& work);

  gpu::Device& device_;
  const cpu_tier::Arena& arena_;
  const gpu::CopyDirection direction_;
  std::unique_ptr<gpu::Stream> stream_;
  std::deque<InFlight> in_flight_;
};

}  // namespace kvferry::transfer
