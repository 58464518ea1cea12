// SPDX-License-Identifier: Apache-2.0
#include "copy_queue.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace kvferry::transfer {

void CopyQueue::push(Piece piece) { of(piece.kind).waiting.push_back(std::move(piece)); }

std::optional<Piece> CopyQueue::take(StorePacer::Time now) {
  if (has_room(loads_)) return take_from(loads_);
  if (!has_room(stores_) || !pacer_.may_start(now)) return std::nullopt;
  pacer_.start(stores_.waiting.front().bytes, now);
  return take_from(stores_);
}

std::optional<std::chrono::nanoseconds> CopyQueue::paced_for(StorePacer::Time now) const {
  if (!has_room(stores_) || pacer_.may_start(now)) return std::nullopt;
  return pacer_.next() - now;
}

bool CopyQueue::has_room(const Direction& direction) const {
  if (direction.waiting.empty()) return false;
  return direction.in_flight_pieces == 0 ||
         direction.in_flight_bytes + direction.waiting.front().bytes <= max_in_flight_bytes_;
}

std::optional<Piece> CopyQueue::take_from(Direction& direction) {
  std::optional<Piece> piece = std::move(direction.waiting.front());
  direction.waiting.pop_front();
  direction.in_flight_bytes += piece->bytes;
  ++direction.in_flight_pieces;
  return piece;
}

void CopyQueue::finish(const Piece& piece) {
  Direction& direction = of(piece.kind);
  direction.in_flight_bytes -= piece.bytes;
  --direction.in_flight_pieces;
}

std::vector<Piece> CopyQueue::remove(TransferKind kind, TransferId transfer) {
  std::deque<Piece>& waiting = of(kind).waiting;
  const auto kept =
      std::stable_partition(waiting.begin(), waiting.end(),
                            [transfer](const Piece& piece) { return piece.transfer != transfer; });
  std::vector<Piece> removed(std::make_move_iterator(kept), std::make_move_iterator(waiting.end()));
  waiting.erase(kept, waiting.end());
  return removed;
}

std::uint64_t CopyQueue::queued_bytes() const {
  const auto add = [](std::uint64_t sum, const Piece& piece) { return sum + piece.bytes; };
  const std::uint64_t loads =
      std::accumulate(loads_.waiting.begin(), loads_.waiting.end(), std::uint64_t{0}, add);
  return std::accumulate(stores_.waiting.begin(), stores_.waiting.end(), loads, add);
}

std::uint64_t CopyQueue::in_flight_bytes() const {
  return loads_.in_flight_bytes + stores_.in_flight_bytes;
}

}  // namespace kvferry::transfer
