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

/// How often.
struct RoundCounts {
  std::uint32_t warm_up = 0;
  std::uint32_t measured = 1;
  [[nodiscard]] std::uint32_t total() const { return warm_up + measured; }
};

/// What the measured rounds of a row took, for one set of every lane (a round's time, divided by
/// its sets, which run back to back).
struct RowTimes {
  Samples submit;
  Samples submit_cpu;
  Samples transfer;
  /// Every round's bytes arrived, those of warm-up rounds too.
  bool verified = true;
};

/// Runs the rounds of one row for each of the lanes' `num_ways`: in each round every way once, from
/// another one on, and for every way pattern, copy, check. So the ways are held against each other
/// on the same memory, and what else the machine does meets them all. `on_round(done, of)` is
/// called before each round. The lanes have the same number of sets. Throws DeviceError.
[[nodiscard]] std::vector<RowTimes> measure_rows(
    gpu::Device& device, std::span<const std::unique_ptr<Lane>> lanes, std::size_t num_ways,
    const RoundCounts& rounds, Verifier& verifier,
    const std::function<void(std::uint32_t, std::uint32_t)>& on_round);

}  // namespace kvferry::bench
