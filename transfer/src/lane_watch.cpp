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

std::uint64_t LaneWatch::begin(TransferKind kind, TransferId transfer) {
  Lane& lane = of(kind);
  if (lane.submitted.empty()) lane.moved = seen_;
  lane.submitted.push_back({++last_piece_, transfer});
  return last_piece_;
}

void LaneWatch::end(TransferKind kind, std::uint64_t piece) {
  Lane& lane = of(kind);
  const auto found =
      std::find_if(lane.submitted.begin(), lane.submitted.end(),
                   [piece](const Lane::Submitted& one) { return one.piece == piece; });
  KVFERRY_CHECK(found != lane.submitted.end(), "a piece that was not submitted has ended");
  if (found == lane.submitted.begin()) lane.moved = seen_;
  lane.submitted.erase(found);
}

std::optional<OverdueTransfer> LaneWatch::stalled(std::chrono::nanoseconds bound) const {
  std::optional<OverdueTransfer> longest;
  for (const TransferKind kind : {TransferKind::kStore, TransferKind::kLoad}) {
    const Lane& lane = lanes_.at(static_cast<std::size_t>(kind));
    if (lane.submitted.empty()) continue;
    const std::chrono::nanoseconds age = seen_ - lane.moved;
    if (age <= bound || (longest && longest->age >= age)) continue;
    longest = OverdueTransfer{.transfer = lane.submitted.front().transfer,
                              .kind = kind,
                              .stall = Stall::kLink,
                              .age = age};
  }
  return longest;
}

std::optional<std::chrono::nanoseconds> LaneWatch::in_driver() const {
  if (!in_driver_) return std::nullopt;
  return seen_ - entered_;
}

}  // namespace kvferry::transfer
