// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/strong_id.hpp"

#include <cstdint>

namespace kvferry {

/// An index into the engine's GPU KV pool. 32 bits: an engine counts its blocks in ints.
using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;
/// The place of one block in the CPU tier; the same id means the same block on every rank.
using SlotId = StrongId<struct SlotIdTag, std::uint32_t>;
/// A part of a tier's memory, as large as every other one; one slab class has it at a time.
using ChunkId = StrongId<struct ChunkIdTag, std::uint32_t>;
/// Consecutive chunks of an arena that become ready together. No copy reaches over a piece's end.
using PieceId = StrongId<struct PieceIdTag, std::uint32_t>;
/// One store or load of one plan; unique for the life of a scheduler side, never 0.
using TransferId = StrongId<struct TransferIdTag, std::uint64_t>;
/// Incarnation counter of an owner: bumped at arrival, preemption and resume, never used twice.
using Generation = StrongId<struct GenerationTag, std::uint64_t>;
/// A KV cache group of the engine, in the engine's order.
using GroupId = StrongId<struct GroupIdTag, std::uint32_t>;
/// A size of slots in a tier whose memory several sizes share, from 0 on.
using SlabClassId = StrongId<struct SlabClassIdTag, std::uint32_t>;
/// The model's weights that computed a block, as a digest of their name; 0: nobody names them.
using WeightsId = StrongId<struct WeightsIdTag, std::uint64_t>;
/// A worker process, 0 .. world size - 1.
using RankId = StrongId<struct RankIdTag, std::uint32_t>;
/// Sequence number of a StepPlan, counted from 1.
using PlanSeq = StrongId<struct PlanSeqTag, std::uint64_t>;

/// One block and its slot: element of every store and load.
struct BlockSlot {
  BlockId block;
  SlotId slot;
  bool operator==(const BlockSlot&) const = default;
};

}  // namespace kvferry
