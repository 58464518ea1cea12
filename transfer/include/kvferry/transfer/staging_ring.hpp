// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/device.hpp"

namespace kvferry::transfer {

/// Packed blocks, one after the other, in the staging ring's device memory.
struct RingRegion {
  std::uint64_t ticket = 0;  ///< Names the region when it is released; never 0.
  std::uintptr_t address = 0;
  std::uint64_t entry_bytes = 0;
  std::uint32_t num_entries = 0;
};

/// Device memory between gather and copy. Regions are taken in ring order and may be released in any order; space
/// returns when everything older was released too. Thread-safe. The owner quiesces before destroying it.
class StagingRing {
 public:
  /// Allocates `bytes` of device memory. Throws ResourceError.
  StagingRing(gpu::Device& device, std::uint64_t bytes);
  ~StagingRing();

  /// Up to `max_entries` contiguous entries of `entry_bytes`: as many as fit before the used part or the ring's
  /// end, so that filling the ring can take two calls. `num_entries` is 0 when nothing fits; then the ticket is 0.
  [[nodiscard]] RingRegion allocate(std::uint64_t entry_bytes, std::uint32_t max_entries);
  /// Gives a region back: every copy from it ended.
  void release(std::uint64_t ticket);

  [[nodiscard]] std::uint64_t size_bytes() const;
  [[nodiscard]] std::uint64_t used_bytes() const;
};

}  // namespace kvferry::transfer
