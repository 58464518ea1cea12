// SPDX-License-Identifier: Apache-2.0
#include "interpreter/block.hpp"
#include "interpreter/fault.hpp"

#include <algorithm>

namespace kvferry::ptx {
namespace {

// What createpolicy makes; a bulk copy takes nothing else for its policy.
constexpr std::uint64_t kPolicy = 0x6000'0000'0000'0000U;

/// PTX ISA, cp.async.bulk: addresses and sizes are multiples of 16.
void check_bulk(std::uint64_t global, std::uint32_t shared, std::uint32_t bytes,
                std::uint64_t policy) {
  constexpr std::uint32_t kStep = SharedMemory::kGranuleBytes;
  if (bytes == 0 || ((global | shared | bytes) % kStep) != 0) {
    throw Fault(Hazard::kAlignment, "a bulk copy whose addresses or " + std::to_string(bytes) +
                                        " bytes are no multiples of 16");
  }
  if (policy != kPolicy) throw Fault(Hazard::kUndefined, "a policy that createpolicy did not make");
}

}  // namespace

void Block::step_bulk(Lane& lane, const Instruction& one, Random& random) {
  switch (one.op) {
    case Op::kBarrierInit:
      return init_barrier(lane, one);
    case Op::kBarrierExpect:
      return barrier_at(lane, shared_address(lane, one.operands[1]))
          .expect(static_cast<std::uint32_t>(value(lane, one.operands[2])), lane.known);
    case Op::kBarrierWait:
      return wait_for_phase(lane, one, random);
    case Op::kBulkLoad:
      return issue_load(lane, one);
    case Op::kBulkStore:
      return issue_store(lane, one);
    case Op::kBulkCommit:
      return lane.groups.commit();
    case Op::kBulkWaitRead:
    case Op::kBulkWait:
      return wait_for_groups(lane, one);
    case Op::kFence:
      // Either fence: NVIDIA's own code has the one here and the other there.
      lane.known.barriers_ready.insert(lane.unfenced.begin(), lane.unfenced.end());
      return lane.unfenced.clear();
    case Op::kPolicy:
      return set(lane, one.operands[0].reg, kPolicy);
    default:
      throw Fault(Hazard::kUndefined, "not an instruction of bulk copies: " + one.text);
  }
}

std::uint32_t Block::shared_address(const Lane& lane, const Operand& operand) const {
  return static_cast<std::uint32_t>(address(lane, operand));
}

void Block::init_barrier(Lane& lane, const Instruction& one) {
  const std::uint32_t at = shared_address(lane, one.operands[0]);
  shared_.place_barrier(at);
  const MBarrier barrier(static_cast<std::uint32_t>(value(lane, one.operands[1])));
  if (!barriers_.emplace(at, barrier).second) {
    throw Fault(Hazard::kBarrier, "an mbarrier is initialised twice");
  }
  lane.unfenced.push_back(at);
}

MBarrier& Block::barrier_at(const Lane& lane, std::uint32_t address) {
  const auto found = barriers_.find(address);
  if (found == barriers_.end() || !lane.known.barriers_ready.contains(address)) {
    throw Fault(Hazard::kBarrier,
                "the lane does not know of an initialised and fenced mbarrier at " +
                    std::to_string(address));
  }
  return found->second;
}

void Block::wait_for_phase(Lane& lane, const Instruction& one, Random& random) {
  const std::uint32_t at = shared_address(lane, one.operands[1]);
  static_cast<void>(barrier_at(lane, at));
  lane.barrier = at;
  lane.parity = static_cast<std::uint32_t>(value(lane, one.operands[2]) & 1U);
  lane.waits_at = &one;
  lane.waiting = Waiting::kPhase;
  set(lane, one.operands[0].reg, 1);
  // It may give up after a time of its own, and say so.
  if (see_phase(lane) || copies_.is_idle() || random() % 4 != 0) return;
  set(lane, one.operands[0].reg, 0);
  lane.waiting = Waiting::kNothing;
}

void Block::issue_load(const Lane& lane, const Instruction& one) {
  const std::uint32_t to = shared_address(lane, one.operands[0]);
  const std::uint64_t from = address(lane, one.operands[1]);
  const auto bytes = static_cast<std::uint32_t>(value(lane, one.operands[2]));
  const std::uint32_t at = shared_address(lane, one.operands[3]);
  check_bulk(from, to, bytes, value(lane, one.operands[4]));
  memory_.check(from, bytes, Access::kRead);
  MBarrier& barrier = barrier_at(lane, at);
  const SharedMemory::Arrival arrival{at, barrier.phase()};
  shared_.begin_load(to, bytes, arrival, lane.known);
  barrier.begin_load(bytes);
  copies_.load(from, to, bytes, arrival);
}

void Block::issue_store(Lane& lane, const Instruction& one) {
  const std::uint64_t to = address(lane, one.operands[0]);
  const std::uint32_t from = shared_address(lane, one.operands[1]);
  const auto bytes = static_cast<std::uint32_t>(value(lane, one.operands[2]));
  check_bulk(to, from, bytes, value(lane, one.operands[3]));
  memory_.check(to, bytes, Access::kWrite);
  const SharedMemory::Reader reader{lane.number, lane.groups.add_store()};
  shared_.begin_store(from, bytes, reader, lane.known);
  copies_.store(from, to, bytes, reader);
}

void Block::wait_for_groups(Lane& lane, const Instruction& one) {
  const auto but_newest = static_cast<std::uint32_t>(value(lane, one.operands[0]));
  const std::uint32_t committed = lane.groups.num_committed();
  lane.num_groups = committed - std::min(committed, but_newest);
  lane.waiting = one.op == Op::kBulkWaitRead ? Waiting::kGroupsRead : Waiting::kGroupsWritten;
  lane.waits_at = &one;
}

}  // namespace kvferry::ptx
