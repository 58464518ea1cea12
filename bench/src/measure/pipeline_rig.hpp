// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/gpu/block_geometry.hpp"
#include "kvferry/gpu/device.hpp"

#include "measure/block_shape.hpp"
#include "measure/device_memory.hpp"
#include "measure/fragment_set.hpp"
#include "measure/traffic.hpp"
#include "measure/verifier.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvferry::bench {

struct PipelineShape {
  Traffic traffic = Traffic::kBoth;
  BlockShape block;
  std::uint32_t blocks_per_plan = 0;  ///< In a step's plan, per direction.
  std::uint32_t num_plans = 0;        ///< Per direction; each has its own blocks and slots.
  Placement slots;                    ///< The placement of a plan's blocks in the arena.
  std::uint64_t seed = 0;

  [[nodiscard]] std::uint64_t plan_bytes() const { return block.block_bytes() * blocks_per_plan; }
};

/// The parts of an engine and a tier: a pool of blocks on the device, an arena of slots, a compute
/// stream, and plans between pool and arena, which begin anywhere in the pool.
class PipelineRig {
 public:
  /// Throws ConfigError, ResourceError or DeviceError.
  PipelineRig(gpu::Device& device, const PipelineShape& shape);

  /// Fills the sources of all plans with a round's pattern. Throws DeviceError.
  void prepare(PatternKey key);
  /// Fills the blocks of all plans of one direction with a round's pattern. Throws DeviceError.
  void write_blocks(gpu::CopyDirection direction, PatternKey key);
  /// Overwrites the blocks of all plans of loads, in the order of the compute stream.
  void wipe_loads();
  /// Checks the slots of the first `num_blocks` blocks of a plan of stores.
  void check_stored(std::uint32_t plan, std::uint32_t num_blocks, PatternKey key,
                    Verifier& verifier) const;
  /// Checks the blocks of these plans of loads. Throws DeviceError.
  void check_loaded(std::span<const std::uint32_t> plans, PatternKey key, Verifier& verifier);

  [[nodiscard]] std::span<const BlockSlot> plan(gpu::CopyDirection direction,
                                                std::uint32_t plan) const;
  [[nodiscard]] const PipelineShape& shape() const { return shape_; }
  [[nodiscard]] const gpu::BlockGeometry& geometry() const { return geometry_; }
  [[nodiscard]] const cpu_tier::Arena& arena() const { return arena_; }
  [[nodiscard]] gpu::Device& device() { return device_; }
  [[nodiscard]] gpu::Stream& compute() { return *compute_; }

 private:
  /// The first block, and the first slot, of the plans of one direction.
  [[nodiscard]] std::uint32_t first_of(gpu::CopyDirection direction) const {
    const bool is_second =
        shape_.traffic == Traffic::kBoth && direction == gpu::CopyDirection::kHostToDevice;
    return is_second ? blocks_per_direction() : 0;
  }
  /// The number of blocks of all plans of one direction.
  [[nodiscard]] std::uint32_t blocks_per_direction() const {
    return shape_.blocks_per_plan * shape_.num_plans;
  }
  /// The fragments of these slots, and their places in the pool.
  [[nodiscard]] PatternPieces pieces_of(std::span<const BlockSlot> entries) const;

  const PipelineShape shape_;
  gpu::Device& device_;
  DeviceMemory pool_;
  const gpu::BlockGeometry geometry_;
  const cpu_tier::Arena arena_;
  /// Stores first, then loads. A direction without traffic has no plans.
  std::vector<BlockSlot> entries_;
  std::unique_ptr<gpu::Stream> compute_;
};

}  // namespace kvferry::bench
