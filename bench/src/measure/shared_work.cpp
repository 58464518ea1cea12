// SPDX-License-Identifier: Apache-2.0
#include "measure/shared_work.hpp"

#include "kvferry/base/check.hpp"

#include "measure/meta_rig.hpp"

#include <span>
#include <utility>

namespace kvferry::bench {

using cpu_tier::BlockKey;

namespace {

/// The least that there is.
constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 10U;

}  // namespace

cpu_tier::SharedTierOptions SharedWorkShape::tier_at(const std::filesystem::path& path) const {
  return {.path = path, .capacity_bytes = num_chunks * kChunkBytes, .chunk_bytes = kChunkBytes};
}

SharedEngine::SharedEngine(const cpu_tier::SharedTierOptions& tier, std::string name,
                           std::uint32_t chunk_slots, const cpu_tier::TierOptions& options)
    : joined(cpu_tier::JoinedTier::join(tier, {.name = std::move(name), .name_space = 1})),
      slabs(joined->tier().shape().num_chunks, options, &joined->directory()) {
  slabs.add_class(chunk_slots);
  slabs.grow_to(joined->tier().shape().num_chunks);
  keeper.emplace(slabs, joined->directory());
}

SharedWork::SharedWork(const SharedWorkShape& shape, const std::filesystem::path& path,
                       std::string name, std::uint64_t random_seed)
    : engine_(shape.tier_at(path), std::move(name), SharedWorkShape::kChunkSlots,
              {cpu_tier::Eviction::kLru, cpu_tier::Admission::kAlways}),
      random_(random_seed) {
  prompts_.resize(shape.num_prompts());
  std::uint64_t number = 0;
  for (auto& prompt : prompts_) {
    while (prompt.size() < SharedWorkShape::kPromptBlocks) {
      prompt.push_back(key_of(shape.seed, number++));
    }
  }
}

std::vector<BlockKey> SharedWork::wanted(std::span<const BlockKey> keys) {
  std::vector<cpu_tier::OfferAnswer> answers(keys.size());
  engine_.slabs.offer(SharedEngine::kOnly, keys, answers);
  std::vector<BlockKey> wanted;
  wanted.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (answers[i] == cpu_tier::OfferAnswer::kStore) wanted.push_back(keys[i]);
  }
  return wanted;
}

SharedWork::Step SharedWork::step() {
  const std::vector<BlockKey>& prompt = prompts_[random_() % prompts_.size()];
  cpu_tier::CpuTier& tier = engine_.slabs.tier(SharedEngine::kOnly);
  engine_.slabs.hold_still();
  const cpu_tier::PrefixHit hit = tier.lookup_prefix(prompt);
  auto leased = tier.lease(hit, hit.size());
  KVFERRY_CHECK(leased.ok(), "what was found in this step is gone");
  Step done{static_cast<std::uint32_t>(hit.size()), 0};
  auto reserved =
      engine_.slabs.reserve(SharedEngine::kOnly, wanted(std::span(prompt).subspan(hit.size())));
  if (reserved.ok()) {
    cpu_tier::WritableSlots slots = std::move(reserved).value().hand_over();
    done.num_stored = static_cast<std::uint32_t>(slots.size());
    tier.commit(std::move(slots));
  }
  tier.release(std::move(leased).value());
  engine_.slabs.end_step();
  return done;
}

}  // namespace kvferry::bench
