// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/arena.hpp"
#include "kvferry/gpu/device.hpp"

#include "piece.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvferry::transfer {

/// A list of copy runs in which neighbours that are adjacent on both sides are one run. Every run
/// lies in one registered piece of the arena.
class RunList {
 public:
  /// Appends a copy whose host side lies in registered piece `arena_piece`.
  void add(const gpu::CopyRun& run, std::uint32_t arena_piece);
  [[nodiscard]] std::vector<gpu::CopyRun> take() && { return std::move(runs_); }

 private:
  std::vector<gpu::CopyRun> runs_;
  /// Where the host side of the last run lies.
  std::optional<std::uint32_t> last_arena_piece_;
};

/// The copies of a piece, coalesced: ring entries to slots of a store, slots to the blocks'
/// fragments of a load.
[[nodiscard]] std::vector<gpu::CopyRun> coalesce_runs(const Piece& piece,
                                                      const cpu_tier::Arena& arena);

}  // namespace kvferry::transfer
