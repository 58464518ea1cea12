// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "piece.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace kvferry::transfer {

/// The pieces that wait for the link, loads ahead of stores, and the bytes in flight that keep them
/// waiting. Not thread-safe: TransferTable guards it.
class CopyQueue {
 public:
  explicit CopyQueue(std::uint64_t max_in_flight_bytes)
      : max_in_flight_bytes_(max_in_flight_bytes) {}

  void push(Piece piece);
  /// The next piece whose direction has room, or has nothing in flight; in flight from here on.
  [[nodiscard]] std::optional<Piece> take();
  /// `piece`, taken before, is in flight no more.
  void finish(const Piece& piece);
  /// Takes the waiting pieces of a transfer out.
  [[nodiscard]] std::vector<Piece> remove(TransferKind kind, TransferId transfer);

  [[nodiscard]] std::uint64_t queued_bytes() const;
  [[nodiscard]] std::uint64_t in_flight_bytes() const;

 private:
  struct Direction {
    std::deque<Piece> waiting;
    std::uint64_t in_flight_bytes = 0;
    std::uint64_t in_flight_pieces = 0;
  };

  [[nodiscard]] Direction& of(TransferKind kind) {
    return kind == TransferKind::kLoad ? loads_ : stores_;
  }
  [[nodiscard]] std::optional<Piece> take_from(Direction& direction);

  const std::uint64_t max_in_flight_bytes_;
  Direction loads_;
  Direction stores_;
};

}  // namespace kvferry::transfer
