// SPDX-License-Identifier: Apache-2.0
#include "measure/injection_check.hpp"

#include "kvferry/gpu/host_link.hpp"

#include "measure/burst.hpp"
#include "measure/pattern.hpp"
#include "measure/wait_for.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

namespace kvferry::bench {
namespace {

using gpu::InjectionEvent;
using Addresses = std::set<std::uintptr_t>;

constexpr SlabClassId kClass{0};

/// Without the device's copies, which would be damaged, too.
void write_stored_blocks(const PipelineRig& rig, PatternKey key) {
  const std::uint64_t count = std::uint64_t{rig.shape().blocks_per_plan} * rig.shape().num_plans;
  const gpu::BlockGeometry& geometry = rig.geometry();
  write_pattern({geometry.fragments.size(),
                 [&](std::size_t i) {
                   const gpu::Fragment& layer = geometry.fragments[i];
                   auto* const begin = reinterpret_cast<std::byte*>(layer.base);
                   return PatternPiece{{begin, count * layer.bytes}, layer.base};
                 }},
                key);
}

/// Loads the slots that the plans of stores have filled into the blocks of the plans of loads.
void load_stored(PipelineRig& rig, transfer::TransferEngine& engine, std::uint64_t first_transfer) {
  for (std::uint32_t p = 0; p < rig.shape().num_plans; ++p) {
    std::vector<BlockSlot> blocks;
    const auto targets = rig.plan(gpu::CopyDirection::kHostToDevice, p);
    for (const BlockSlot& stored : rig.plan(gpu::CopyDirection::kDeviceToHost, p)) {
      blocks.push_back({targets[blocks.size()].block, stored.slot, stored.identity});
    }
    engine.load(TransferId(first_transfer + p), kClass, blocks, engine.fence(rig.compute()));
  }
}

Addresses found_by_tags(const PipelineRig& rig, transfer::TransferEngine& engine) {
  if (!engine.wait_idle(kHangs)) throw_not_idle(engine);
  Addresses found;
  for (const transfer::Completion& end : engine.poll()) {
    if (end.outcome != Outcome::kDone && end.damaged.empty()) {
      throw DeviceError(fmt::format("transfer {} failed: {}", end.transfer.value(), end.reason));
    }
    for (const DamagedSlot& damaged : end.damaged) {
      found.insert(rig.arena().chunk_address(ChunkId(damaged.slot.value())));
    }
  }
  return found;
}

/// Counts the log's entries; the slots of the blocks that arrived damaged.
Addresses note_log(const std::vector<InjectionEvent>& events, InjectionCheck& check,
                   Addresses& damaged) {
  Addresses arrived;
  for (const InjectionEvent& event : events) {
    if (event.what == InjectionEvent::What::kArrived) arrived.insert(event.slot);
    if (event.what == InjectionEvent::What::kReplaced) {
      ++check.num_replaced;
      damaged.erase(event.slot);
    }
    if (event.what != InjectionEvent::What::kInjected) continue;
    check.num_injections = std::max(check.num_injections, event.injection);
    if (event.num_bytes == 0) ++check.num_unchanged;
    if (event.way == gpu::InjectionWay::kFromTier) continue;
    if (event.num_bytes == 0) {
      damaged.erase(event.slot);
    } else {
      damaged.insert(event.slot);
    }
  }
  return arrived;
}

std::uint64_t num_without(const Addresses& some, const Addresses& others) {
  std::vector<std::uintptr_t> rest;
  std::set_difference(some.begin(), some.end(), others.begin(), others.end(),
                      std::back_inserter(rest));
  return rest.size();
}

}  // namespace

std::string to_text(const InjectionCheck& check) {
  return fmt::format(
      "{} blocks were stored and {} loaded beside {} injections. {} blocks were touched and not "
      "changed, {} damaged blocks in the tier were stored over, {} were left there. {} blocks "
      "arrived damaged; the tags found {}, missed {} and invented {}.",
      check.num_stored, check.num_loaded, check.num_injections, check.num_unchanged,
      check.num_replaced, check.num_left, check.num_arrived, check.num_found, check.num_missed,
      check.num_invented);
}

InjectionCheck check_injections(PipelineShape shape, transfer::TransferOptions options,
                                double probability, std::uint32_t num_rounds) {
  shape.traffic = Traffic::kBoth;
  options.verify = transfer::Verification::kAll;
  const auto device =
      gpu::make_host_device({.inject = {.probability = probability}, .seed = shape.seed});
  PipelineRig rig(*device, shape);
  transfer::TransferEngine engine(*device, {rig.geometry()}, rig.arena(), options);
  const std::uint64_t num_blocks = std::uint64_t{shape.blocks_per_plan} * shape.num_plans;
  InjectionCheck check;
  Addresses damaged;
  PlanTimes not_counted;
  for (std::uint32_t round = 0; round < num_rounds; ++round) {
    const std::uint64_t first_transfer = 1 + std::uint64_t{2} * round * shape.num_plans;
    write_stored_blocks(rig, pattern_key(shape.seed, round + 1));
    store_plans(rig, engine, gpu::CopyDirection::kDeviceToHost, first_transfer, not_counted);
    finish_burst(engine, not_counted);
    load_stored(rig, engine, first_transfer + shape.num_plans);
    const Addresses found = found_by_tags(rig, engine);
    const Addresses arrived = note_log(gpu::take_injections(*device), check, damaged);
    check.num_stored += num_blocks;
    check.num_loaded += num_blocks;
    check.num_arrived += arrived.size();
    check.num_found += found.size();
    check.num_missed += num_without(arrived, found);
    check.num_invented += num_without(found, arrived);
  }
  check.num_left = damaged.size();
  return check;
}

}  // namespace kvferry::bench
