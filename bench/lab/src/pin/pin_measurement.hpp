// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/gpu/device.hpp"

#include "measure/row_measurement.hpp"
#include "measure/verifier.hpp"
#include "pin/pin_row.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace kvferry::bench {

enum class PinArena : std::uint8_t { kLeftOut, kIncluded };

/// The memory that the rows of one shape pin, and how.
struct PinShape {
  cpu_tier::PageKind pages = cpu_tier::PageKind::kNormal;
  std::uint32_t threads = 1;
  std::uint64_t bytes = 0;
  /// Bytes of one registration; there is a row of the benchmark's own memory for each value. At
  /// least one; multiples of a huge page, or the size.
  std::vector<std::uint64_t> piece_bytes;
  /// Whether to add a row of the product's Arena.
  PinArena arena = PinArena::kIncluded;
};

/// Measures the rows of one shape by turns. Each round runs every row once, in alternating
/// directions and beginning with a different row, so that other load on the machine affects all of
/// them. Each row maps, populates, registers, unregisters and unmaps. In between it writes a
/// pattern to every page and reads it back, which no time includes. The arena is compared with the
/// first row's populate, a bare one, of the same round. The caller has checked the machine's memory
/// budget. `on_round(done, of)` is called before each round. Throws ResourceError, DeviceError.
[[nodiscard]] std::vector<PinRow> measure_pin(
    gpu::Device& device, const PinShape& shape, const RoundCounts& rounds, Verifier& verifier,
    const std::function<void(std::uint32_t, std::uint32_t)>& on_round);

}  // namespace kvferry::bench
