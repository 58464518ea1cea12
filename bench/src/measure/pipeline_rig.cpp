// SPDX-License-Identifier: Apache-2.0
#include "measure/pipeline_rig.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/mixed_bits.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace kvferry::bench {
namespace {

std::uint32_t num_blocks(const PipelineShape& shape) {
  const std::uint64_t blocks =
      directions(shape.traffic).size() * shape.blocks_per_plan * shape.num_plans;
  if (blocks > std::numeric_limits<std::int32_t>::max()) {
    throw ConfigError("--blocks times --plans is more blocks than a pool can have");
  }
  return static_cast<std::uint32_t>(blocks);
}

// The pool is laid out layer by layer, as in engines: the neighbours of a block's fragment belong
// to the same layer of other blocks.
gpu::BlockGeometry layered(const PipelineShape& shape, std::uintptr_t pool) {
  std::vector<gpu::Fragment> fragments;
  const std::uint64_t bytes = shape.block.fragment_bytes;
  for (std::uint32_t i = 0; i < shape.block.num_fragments; ++i) {
    fragments.push_back({pool + i * num_blocks(shape) * bytes, bytes, bytes});
  }
  return gpu::make_block_geometry(std::move(fragments), num_blocks(shape));
}

// The pool's blocks are drawn one by one, like those that a request gets from a pool that has been
// in use for a while.
std::vector<BlockSlot> draw_entries(const PipelineShape& shape) {
  const std::uint32_t count = shape.blocks_per_plan * shape.num_plans;
  std::mt19937_64 random(shape.seed);
  std::vector<BlockSlot> entries;
  for (std::uint32_t first = 0; first < num_blocks(shape); first += count) {
    std::vector<std::uint32_t> blocks(count);
    std::iota(blocks.begin(), blocks.end(), first);
    std::shuffle(blocks.begin(), blocks.end(), random);
    std::vector<std::uint32_t> slots(count);
    std::iota(slots.begin(), slots.end(), first);
    // Runs of slots are shuffled; the rest of a last run stays where it is.
    const std::uint32_t length = shape.slots.run_length;
    std::vector<std::uint32_t> runs(length == 0 ? 0 : count / length);
    std::iota(runs.begin(), runs.end(), 0U);
    std::shuffle(runs.begin(), runs.end(), random);
    for (std::uint32_t i = 0; i < runs.size() * length; ++i) {
      slots[i] = first + runs[i / length] * length + i % length;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      entries.push_back({BlockId(blocks[i]), SlotId(slots[i]), mixed_bits(random())});
    }
  }
  return entries;
}

}  // namespace

PipelineRig::PipelineRig(gpu::Device& device, const PipelineShape& shape)
    : shape_(shape),
      device_(device),
      pool_(device, shape.block.block_bytes() * num_blocks(shape)),
      geometry_(layered(shape, pool_.address())),
      arena_(device, shape.block.block_bytes(), num_blocks(shape),
             cpu_tier::ArenaOptions{.tags_per_chunk = 1}),
      entries_(draw_entries(shape)),
      compute_(device.create_stream()) {}

void PipelineRig::write_blocks(gpu::CopyDirection direction, PatternKey key) {
  const std::uint64_t fragment_bytes = shape_.block.fragment_bytes;
  for (const gpu::Fragment& layer : geometry_.fragments) {
    pool_.write(layer.base - pool_.address() + first_of(direction) * fragment_bytes,
                blocks_per_direction() * fragment_bytes, key);
  }
}

void PipelineRig::wipe_loads() {
  const std::uint64_t fragment_bytes = shape_.block.fragment_bytes;
  for (const gpu::Fragment& layer : geometry_.fragments) {
    compute_->fill(layer.base + first_of(gpu::CopyDirection::kHostToDevice) * fragment_bytes, 0,
                   blocks_per_direction() * fragment_bytes);
  }
}

void PipelineRig::prepare(PatternKey key) {
  for (const gpu::CopyDirection direction : directions(shape_.traffic)) {
    if (direction == gpu::CopyDirection::kDeviceToHost) {
      write_blocks(direction, key);
      continue;
    }
    for (std::uint32_t p = 0; p < shape_.num_plans; ++p) {
      write_pattern(pieces_of(plan(direction, p)), key);
    }
  }
}

void PipelineRig::check_stored(std::uint32_t plan, std::uint32_t num_blocks, PatternKey key,
                               Verifier& verifier) const {
  const auto entries = this->plan(gpu::CopyDirection::kDeviceToHost, plan).first(num_blocks);
  verifier.check(pieces_of(entries), key, "stored fragment");
}

void PipelineRig::check_loaded(std::span<const std::uint32_t> plans, PatternKey key,
                               Verifier& verifier) {
  std::vector<BlockId> blocks;
  for (const std::uint32_t p : plans) {
    for (const BlockSlot& entry : plan(gpu::CopyDirection::kHostToDevice, p)) {
      blocks.push_back(entry.block);
    }
  }
  std::sort(blocks.begin(), blocks.end());
  for (const gpu::Fragment& layer : geometry_.fragments) {
    pool_.check_pieces(layer.base - pool_.address(), layer.bytes, blocks, key, verifier,
                       "loaded fragment");
  }
}

std::span<const BlockSlot> PipelineRig::plan(gpu::CopyDirection direction,
                                             std::uint32_t plan) const {
  const std::size_t first = first_of(direction) + std::size_t{plan} * shape_.blocks_per_plan;
  return std::span(entries_).subspan(first, shape_.blocks_per_plan);
}

PatternPieces PipelineRig::pieces_of(std::span<const BlockSlot> entries) const {
  const std::size_t per_block = geometry_.fragments.size();
  return {
      entries.size() * per_block, [this, entries, per_block](std::size_t i) {
        const BlockSlot& entry = entries[i / per_block];
        const std::size_t fragment = i % per_block;
        const std::uintptr_t at =
            arena_.chunk_address(ChunkId(entry.slot.value())) + geometry_.packed_offsets[fragment];
        return PatternPiece{{reinterpret_cast<std::byte*>(at), geometry_.fragments[fragment].bytes},
                            geometry_.fragment_address(fragment, entry.block) - pool_.address()};
      }};
}

}  // namespace kvferry::bench
