// SPDX-License-Identifier: Apache-2.0
#include "interpreter/block.hpp"

#include "interpreter/fault.hpp"

#include <algorithm>
#include <set>

namespace kvferry::ptx {

Block::Block(const Kernel& kernel, const LaunchShape& shape, std::uint32_t number,
             std::span<const std::byte> parameter, GlobalMemory& memory)
    : kernel_(kernel),
      shape_(shape),
      number_(number),
      parameter_(parameter),
      memory_(memory),
      shared_(shape.shared_bytes),
      copies_(memory, shared_, barriers_, lanes_) {
  for (std::uint32_t i = 0; i < shape.num_threads; ++i) {
    lanes_.emplace_back(i, kernel.num_registers);
    live_.push_back(i);
  }
}

std::uint64_t Block::advance(Random& random) {
  constexpr std::uint64_t kMostInstructions = 60;
  std::uint64_t num_run = 0;
  const std::size_t start = random() % live_.size();
  for (std::size_t i = 0; i < live_.size() && num_run == 0; ++i) {
    Lane& lane = lanes_[live_[(start + i) % live_.size()]];
    if (can_run(lane)) num_run = run_some(lane, 1 + random() % kMostInstructions, random);
  }
  if (num_run == 0 && copies_.is_idle()) fail_stuck();
  if (!copies_.is_idle() && (num_run == 0 || random() % 3 == 0)) {
    copies_.advance(random);
    ++num_run;
  }
  if (live_.empty()) check_finished();
  return num_run;
}

std::uint64_t Block::run_some(Lane& lane, std::uint64_t most, Random& random) {
  std::uint64_t done = 0;
  for (bool ends = false; !ends && done < most && lane.waiting == Waiting::kNothing; ++done) {
    if (lane.next >= kernel_.code.size()) throw Fault(Hazard::kLaunch, "the kernel has no ret");
    const Instruction& one = kernel_.code[lane.next++];
    try {
      if (one.predicate != Operand::kNoRegister &&
          (value(lane, one.predicate) != 0) == one.predicate_negated) {
        continue;
      }
      ends = one.op == Op::kReturn;
      ends ? end_lane(lane) : step(lane, one, random);
    } catch (const Fault& fault) {
      throw fault.at(place(lane, one));
    }
  }
  return done;
}

bool Block::can_run(Lane& lane) {
  switch (lane.waiting) {
    case Waiting::kNothing:
      return true;
    case Waiting::kWarp:
      return release_warp(lane);
    case Waiting::kPhase:
      return see_phase(lane);
    case Waiting::kGroupsRead:
    case Waiting::kGroupsWritten: {
      const bool reads = lane.waiting == Waiting::kGroupsRead;
      if (!(reads ? lane.groups.have_read(lane.num_groups)
                  : lane.groups.have_written(lane.num_groups))) {
        return false;
      }
      std::uint32_t& known = lane.known.groups_read[lane.number];
      known = std::max(known, lane.num_groups);
      if (!reads) lane.num_groups_written = lane.num_groups;
      lane.waiting = Waiting::kNothing;
      return true;
    }
  }
  return false;
}

bool Block::release_warp(const Lane& lane) {
  const std::uint32_t first = lane.number / kWarpLanes * kWarpLanes;
  const std::uint32_t mask = lane.mask;
  const std::uint32_t end = std::min<std::uint32_t>(first + kWarpLanes, shape_.num_threads);
  std::vector<Lane*> together;
  for (std::uint32_t i = first; i < end; ++i) {
    const bool takes_part = (mask >> (i - first) & 1U) != 0 && !lanes_[i].has_ended;
    if (!takes_part) continue;
    if (lanes_[i].waiting != Waiting::kWarp || lanes_[i].mask != mask) return false;
    together.push_back(&lanes_[i]);
  }
  if (lane.waits_at->op == Op::kShuffle) {
    shuffle(together);
  } else {
    Knowledge of_all;
    for (const Lane* one : together) of_all.learn(one->known);
    for (Lane* one : together) one->known = of_all;
  }
  for (Lane* one : together) one->waiting = Waiting::kNothing;
  return true;
}

/// Registers alone: what a lane knows of memory, the others do not learn by it.
void Block::shuffle(const std::vector<Lane*>& together) const {
  const Instruction& one = *together.front()->waits_at;
  for (Lane* lane : together) {
    if (lane->waits_at != &one) {
      throw Fault(Hazard::kStuck, "lanes of a warp meet at different instructions")
          .at(place(*lane, *lane->waits_at));
    }
    const auto from = static_cast<std::uint32_t>(lane->number ^ value(*lane, one.operands[2]));
    const auto source = std::find_if(together.begin(), together.end(),
                                     [&](const Lane* other) { return other->number == from; });
    if (source == together.end()) {
      throw Fault(Hazard::kUndefined, "a lane is to give a value that does not take part")
          .at(place(*lane, one));
    }
    set(*lane, one.operands[0].reg, (*source)->offered);
  }
}

bool Block::see_phase(Lane& lane) {
  const MBarrier& barrier = barriers_.at(lane.barrier);
  // Parity p is over when the current phase has the other parity.
  if ((barrier.phase() & 1U) == lane.parity) return false;
  std::uint64_t& known = lane.known.phases_complete[lane.barrier];
  if (barrier.phase() > known + 1) {
    throw Fault(Hazard::kBarrier,
                "two phases passed since a lane looked: parity tells them not apart")
        .at(place(lane, *lane.waits_at));
  }
  known = barrier.phase();
  lane.known.learn(barrier.released());
  lane.waiting = Waiting::kNothing;
  return true;
}

void Block::end_lane(Lane& lane) {
  if (lane.groups.has_open_stores()) {
    throw Fault(Hazard::kUnfinished, "a lane ends and has not committed its bulk stores");
  }
  if (lane.num_groups_written < lane.groups.num_committed()) {
    throw Fault(Hazard::kUnfinished, "a lane ends and has not waited for its bulk stores");
  }
  lane.has_ended = true;
  live_.erase(std::find(live_.begin(), live_.end(), lane.number));
}

void Block::check_finished() const {
  const auto saw_all = [&](std::uint32_t barrier, std::uint64_t phases) {
    return phases == 0 || std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
             return lane.known.knows_complete(barrier, phases - 1);
           });
  };
  for (const auto& [address, barrier] : barriers_) {
    if (saw_all(address, barrier.phase())) continue;
    throw Fault(Hazard::kUnfinished, "a block ends and no lane saw a load arrive");
  }
  if (!copies_.is_idle()) throw Fault(Hazard::kUnfinished, "a block ends before its bulk copies");
}

void Block::fail_stuck() const {
  std::string where;
  std::set<const Instruction*> named;
  for (const std::uint32_t i : live_) {
    if (named.insert(lanes_[i].waits_at).second)
      where += "\n  " + place(lanes_[i], *lanes_[i].waits_at);
  }
  throw Fault(Hazard::kStuck, "all lanes wait, and no copy is under way" + where);
}

std::string Block::place(const Lane& lane, const Instruction& one) const {
  return kernel_.name + ", line " + std::to_string(one.line) + ": " + one.text + " (lane " +
         std::to_string(lane.number) + " of block " + std::to_string(number_) + ")";
}

}  // namespace kvferry::ptx
