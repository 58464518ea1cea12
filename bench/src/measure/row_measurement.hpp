// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "measure/lane.hpp"
#include "measure/samples.hpp"
#include "measure/verifier.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace kvferry::bench {

/// Numbers of rounds.
struct RoundCounts {
  std::uint32_t warm_up = 0;
  std::uint32_t measured = 1;
  [[nodiscard]] std::uint32_t total() const { return warm_up + measured; }
};

/// The times of a row's measured rounds, for one set of every lane: a round's time divided by its
/// sets, which run back to back.
struct RowTimes {
  Samples submit;
  Samples submit_cpu;
  Samples transfer;
  /// Whether the bytes of every round arrived, including warm-up rounds.
  bool verified = true;
};

/// Runs the rounds of one row for each of the lanes' `num_ways`. Each round runs every way once,
/// beginning with a different one: pattern, copy, check. So all ways are compared on the same
/// memory, and other load on the machine affects all of them. `on_round(done, of)` is called before
/// each round. All lanes have the same number of sets. Throws DeviceError.
[[nodiscard]] std::vector<RowTimes> measure_rows(
    gpu::Device& device, std::span<const std::unique_ptr<Lane>> lanes, std::size_t num_ways,
    const RoundCounts& rounds, Verifier& verifier,
    const std::function<void(std::uint32_t, std::uint32_t)>& on_round);

}  // namespace kvferry::bench
