// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "piece.hpp"
#include "store_pacer.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace kvferry::transfer {

/// The pieces that wait for the link, loads before stores, and what they wait for: room among the
/// bytes in flight and, for stores, their rate. Not thread-safe: TransferTable guards it.
class CopyQueue {
 public:
  CopyQueue(std::uint64_t max_in_flight_bytes, std::uint64_t store_bandwidth_limit)
      : max_in_flight_bytes_(max_in_flight_bytes), pacer_(store_bandwidth_limit) {}

  void push(Piece piece);
  /// Takes the next piece whose direction has room, or has nothing in flight; a store also has to
  /// be due at the stores' rate. The piece counts as in flight from then on.
  [[nodiscard]] std::optional<Piece> take(StorePacer::Time now);
  /// How long after `now` only the pacing holds a store back; nothing if it holds back none.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> paced_for(StorePacer::Time now) const;
  /// Counts `piece`, which take() returned, as no longer in flight.
  void finish(const Piece& piece);
  /// Removes the waiting pieces of a transfer.
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
  /// Whether the first waiting piece of the direction may go.
  [[nodiscard]] bool has_room(const Direction& direction) const;
  [[nodiscard]] static std::optional<Piece> take_from(Direction& direction);

  const std::uint64_t max_in_flight_bytes_;
  StorePacer pacer_;
  Direction loads_;
  Direction stores_;
};

}  // namespace kvferry::transfer
