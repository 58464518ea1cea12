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

/// What the rows of one shape pin, and how.
struct PinShape {
  cpu_tier::PageKind pages = cpu_tier::PageKind::kNormal;
  std::uint32_t threads = 1;
  std::uint64_t bytes = 0;
  /// Of one registration, a row of memory of our own for each: at least one, multiples of a huge
  /// page, or the size.
  std::vector<std::uint64_t> piece_bytes;
  /// And a row of the product's Arena.
  PinArena arena = PinArena::kIncluded;
};

/// The rows of one shape, by turns: in each round every one of them once, back and forth and from
/// another one on, so that what else the machine does meets them all. Each maps, populates,
/// registers, unregisters and unmaps, and in between writes a pattern to every page and reads it
/// back, which is in no time. The arena is held against the first row's populate, a bare one, of
/// the same round. The caller has checked the machine's memory budget. `on_round(done, of)` is
/// called before each round. Throws ResourceError, DeviceError.
[[nodiscard]] std::vector<PinRow> measure_pin(
    gpu::Device& device, const PinShape& shape, const RoundCounts& rounds, Verifier& verifier,
    const std::function<void(std::uint32_t, std::uint32_t)>& on_round);

}  // namespace kvferry::bench
