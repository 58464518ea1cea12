// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/strong_id.hpp"

#include <cstdint>

namespace kvferry {

/// An index into the engine's GPU KV pool. 32 bits: an engine counts its blocks in ints.
using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;
/// The place of one block in the CPU tier; the same id means the same block on every rank.
using SlotId = StrongId<struct SlotIdTag, std::uint32_t>;
/// A part of a tier's memory. All chunks have the same size; each belongs to one slab class at a
/// time.
using ChunkId = StrongId<struct ChunkIdTag, std::uint32_t>;
/// Consecutive chunks of an arena that become ready together. No copy crosses the end of a piece.
using PieceId = StrongId<struct PieceIdTag, std::uint32_t>;
/// One store or load of one plan; unique for the life of a scheduler side, never 0.
using TransferId = StrongId<struct TransferIdTag, std::uint64_t>;
/// Incarnation counter of an owner: incremented at arrival, preemption and resume; no value is used
/// twice.
using Generation = StrongId<struct GenerationTag, std::uint64_t>;
/// A KV cache group of the engine, in the engine's order.
using GroupId = StrongId<struct GroupIdTag, std::uint32_t>;
/// A slot size in a tier whose memory several slot sizes share; numbered from 0.
using SlabClassId = StrongId<struct SlabClassIdTag, std::uint32_t>;
/// The model weights that computed a block, as a digest of their name; 0: the weights have no name.
using WeightsId = StrongId<struct WeightsIdTag, std::uint64_t>;
/// A worker process, 0 .. world size - 1.
using RankId = StrongId<struct RankIdTag, std::uint32_t>;
/// Sequence number of a StepPlan, counted from 1.
using PlanSeq = StrongId<struct PlanSeqTag, std::uint64_t>;

/// One block and its slot: element of every store and load.
struct BlockSlot {
  BlockId block;
  SlotId slot;
  /// What the block is, as a number (BlockKey::mixed()): its tag depends on it.
  std::uint64_t identity = 0;
  bool operator==(const BlockSlot&) const = default;
};

/// A slot whose bytes are not what was stored there, as its tag shows.
struct DamagedSlot {
  SlabClassId slab_class;
  SlotId slot;
  auto operator<=>(const DamagedSlot&) const = default;
};

}  // namespace kvferry
