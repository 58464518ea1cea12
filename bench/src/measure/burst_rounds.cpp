// SPDX-License-Identifier: Apache-2.0
#include "measure/burst_rounds.hpp"

#include <numeric>
#include <vector>

namespace kvferry::bench {
namespace {

/// Far from those of bursts: a tagger is an engine with bursts of its own.
constexpr std::uint64_t kFirstTagging = std::uint64_t{1} << 40U;

}  // namespace

BurstRounds::BurstRounds(PipelineRig& rig, const transfer::TransferOptions& options)
    : rig_(rig), engine_(rig.device(), {rig.geometry()}, rig.arena(), options) {}

void BurstRounds::run(Counts counts, transfer::TransferEngine* tagger, Verifier& verifier) {
  const PipelineShape& shape = rig_.shape();
  const bool loads = shape.traffic != Traffic::kDeviceToHost;
  const PatternKey key = verifier.next_round();
  rig_.prepare(key);
  if (loads && tagger != nullptr) {
    store_for_loads(rig_, *tagger, key, kFirstTagging + next_transfer_);
  }
  const bool is_counted = counts == Counts::kYes;
  const auto time = run_burst(rig_, engine_, next_transfer_, is_counted ? times_ : not_counted_);
  if (is_counted) rounds_.add(time);
  next_transfer_ += directions(shape.traffic).size() * shape.num_plans;
  if (loads) {
    std::vector<std::uint32_t> plans(shape.num_plans);
    std::iota(plans.begin(), plans.end(), 0U);
    rig_.check_loaded(plans, key, verifier);
    num_loaded_ += std::uint64_t{shape.num_plans} * shape.blocks_per_plan;
  }
  if (shape.traffic == Traffic::kHostToDevice) return;
  for (std::uint32_t p = 0; p < shape.num_plans; ++p) {
    rig_.check_stored(p, shape.blocks_per_plan, key, verifier);
  }
}

}  // namespace kvferry::bench
