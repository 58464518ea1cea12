// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry::cpu_tier {

/// One consistent view of the tier. The first seven counts sum to `num_slots` (G10). Counters are
/// since construction.
struct TierSnapshot {
  std::uint32_t num_free = 0;
  std::uint32_t num_writable = 0;
  std::uint32_t num_aborted = 0;
  std::uint32_t num_evictable = 0;  ///< Readable and not leased.
  std::uint32_t num_leased = 0;     ///< Readable and leased.
  std::uint32_t num_dying = 0;
  std::uint32_t num_quarantined = 0;
  std::uint32_t num_slots = 0;
  std::uint64_t num_reserved_total = 0;
  std::uint64_t num_committed_total = 0;
  std::uint64_t num_evicted_total = 0;
  std::uint64_t num_exhausted_total = 0;

  [[nodiscard]] bool conserved() const {
    return std::uint64_t{num_free} + num_writable + num_aborted + num_evictable + num_leased +
               num_dying + num_quarantined ==
           num_slots;
  }
};

}  // namespace kvferry::cpu_tier
