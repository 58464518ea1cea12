// SPDX-License-Identifier: Apache-2.0
#include "lane_watch.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>

namespace kvferry::transfer {

void LaneWatch::look(Clock::time_point now) {
  if (last_look_) {
    seen_ += std::clamp<std::chrono::nanoseconds>(now - *last_look_, std::chrono::nanoseconds(0),
                                                  kMostPerLook);
  }
  last_look_ = now;
}

void LaneWatch::begin(TransferKind kind, TransferId transfer) {
  Lane& lane = of(kind);
  if (lane.submitted.empty()) lane.moved = seen_;
  lane.submitted.push_back(transfer);
}

void LaneWatch::end(TransferKind kind, TransferId transfer) {
  Lane& lane = of(kind);
  // Mostly the first: a stream runs in order.
  const auto found = std::find(lane.submitted.begin(), lane.submitted.end(), transfer);
  KVFERRY_CHECK(found != lane.submitted.end(), "a piece ended that was not submitted");
  lane.submitted.erase(found);
  lane.moved = seen_;
}

std::optional<OverdueTransfer> LaneWatch::stalled(std::chrono::nanoseconds bound) const {
  std::optional<OverdueTransfer> longest;
  for (const TransferKind kind : {TransferKind::kStore, TransferKind::kLoad}) {
    const Lane& lane = lanes_.at(static_cast<std::size_t>(kind));
    if (lane.submitted.empty()) continue;
    const std::chrono::nanoseconds age = seen_ - lane.moved;
    if (age <= bound || (longest && longest->age >= age)) continue;
    longest = OverdueTransfer{
        .transfer = lane.submitted.front(), .kind = kind, .stall = Stall::kLink, .age = age};
  }
  return longest;
}

std::optional<std::chrono::nanoseconds> LaneWatch::in_driver() const {
  if (!in_driver_) return std::nullopt;
  return seen_ - entered_;
}

}  // namespace kvferry::transfer
