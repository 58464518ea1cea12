// SPDX-License-Identifier: Apache-2.0
#include "measure/round_timer.hpp"

#include "measure/wait_for.hpp"

#include <algorithm>

namespace kvferry::bench {

RoundTimer::RoundTimer(gpu::Device& device, std::span<const std::unique_ptr<Lane>> lanes)
    : lanes_(lanes), begin_(device.create_event()), end_(device.create_event()) {
  for (std::size_t i = 0; i < lanes.size(); ++i) lane_ends_.push_back(device.create_event());
}

RoundTime RoundTimer::run(std::size_t way) {
  lanes_.front()->route(way).first().record(*begin_);
  std::uint32_t most_sets = 0;
  for (const auto& lane : lanes_) {
    if (lane != lanes_.front()) lane->route(way).first().wait(*begin_);
    most_sets = std::max(most_sets, lane->sets().num_sets);
  }
  RoundTime time;
  const Stopwatch stopwatch;
  for (std::uint32_t set = 0; set < most_sets; ++set) {
    for (const auto& lane : lanes_) {
      if (set < lane->sets().num_sets) lane->route(way).submit(set);
    }
  }
  time.submit = stopwatch.cost();
  gpu::Stream& last = lanes_.front()->route(way).last();
  for (std::size_t i = 1; i < lanes_.size(); ++i) {
    lanes_[i]->route(way).last().record(*lane_ends_[i]);
    last.wait(*lane_ends_[i]);
  }
  last.record(*end_);
  wait_for(*end_);
  // A wait between streams does not pass on a failure, so the other lanes are waited for as well.
  for (std::size_t i = 1; i < lanes_.size(); ++i) wait_for(*lane_ends_[i]);
  time.device = end_->elapsed_since(*begin_);
  return time;
}

}  // namespace kvferry::bench
