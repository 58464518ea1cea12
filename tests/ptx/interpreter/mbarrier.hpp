// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/knowledge.hpp"

#include <cstdint>

namespace kvferry::ptx {

/// One mbarrier object: PTX ISA, "mbarrier". A phase completes when all arrivals are in and all
/// bytes that were expected have come; the next one begins in the same instant.
class MBarrier {
 public:
  /// Throws Fault (kBarrier) if the count is not 1 to 2^20 - 1.
  explicit MBarrier(std::uint32_t count);

  /// mbarrier.arrive.expect_tx: expects `bytes` more in this phase, then arrives; what the lane
  /// knows is known to each who sees the phase complete. Throws Fault (kBarrier) if the phase has
  /// all its arrivals, or the bytes pass the limit.
  void expect(std::uint32_t bytes, const Knowledge& arriving);
  /// A bulk load of `bytes` is issued, to be counted in this phase. Throws Fault (kBarrier) if the
  /// phase cannot expect so many any more.
  void begin_load(std::uint32_t bytes);
  /// complete_tx: `bytes` of a bulk load have come.
  void complete(std::uint32_t bytes);

  /// Number of the current phase, from 0: so many are complete.
  [[nodiscard]] std::uint64_t phase() const { return phase_; }
  /// What those knew who arrived in phases that are complete.
  [[nodiscard]] const Knowledge& released() const { return released_; }

 private:
  void check_counts() const;
  void end_phase_if_complete();

  std::uint32_t count_;
  std::uint32_t num_awaited_;
  /// The tx-count: bytes that are expected less bytes that came.
  std::int64_t num_bytes_awaited_ = 0;
  /// Of loads that were issued.
  std::int64_t num_bytes_under_way_ = 0;
  std::uint64_t phase_ = 0;
  Knowledge arrived_;
  Knowledge released_;
};

}  // namespace kvferry::ptx
