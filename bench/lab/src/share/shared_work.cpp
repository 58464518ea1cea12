// SPDX-License-Identifier: Apache-2.0
#include "share/shared_work.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/peers/tier_peers.hpp"

#include "meta/meta_rig.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

namespace kvferry::bench {

using cpu_tier::BlockKey;

namespace {

/// The smallest chunk size that a tier allows.
constexpr std::uint64_t kLeastChunkBytes = std::uint64_t{64} << 10U;

constexpr std::uint64_t kPoolBlocks = 1024;

}  // namespace

cpu_tier::SharedTierOptions SharedWorkShape::tier_at(const std::filesystem::path& path) const {
  const std::uint64_t chunk_bytes = std::max(kLeastChunkBytes, kChunkSlots * block_bytes);
  return {.path = path, .capacity_bytes = num_chunks * chunk_bytes, .chunk_bytes = chunk_bytes};
}

std::unique_ptr<cpu_tier::JoinedTier> SharedEngine::join(const cpu_tier::SharedTierOptions& tier,
                                                         std::string name) {
  return cpu_tier::JoinedTier::join(tier, {.name = std::move(name), .name_space = 1});
}

SharedEngine::SharedEngine(std::unique_ptr<cpu_tier::JoinedTier> member, std::uint32_t chunk_slots,
                           const cpu_tier::TierOptions& options)
    : joined(std::move(member)),
      tier(joined->tier().shape().num_chunks, std::array{chunk_slots}, options,
           cpu_tier::peers_in(&joined->directory())) {
  tier.grow_to(joined->tier().shape().num_chunks);
  keeper.emplace(tier, joined->directory());
}

SharedWork::SharedWork(const SharedWorkShape& shape, const std::filesystem::path& path,
                       std::string name, std::size_t engine)
    : block_bytes_(shape.block_bytes),
      engine_(SharedEngine::join(shape.tier_at(path), std::move(name)),
              SharedWorkShape::kChunkSlots,
              {cpu_tier::Eviction::kLru, cpu_tier::Admission::kAlways}),
      pool_(kPoolBlocks * shape.block_bytes),
      random_(engine) {
  if (block_bytes_ > 0) {
    const cpu_tier::SharedTier& tier = engine_.joined->tier();
    arena_.emplace(tier.file(), tier.arena_offset(0), tier.arena_bytes());
  }
  prompts_.resize(shape.num_prompts() / shape.num_parts);
  std::uint64_t number =
      engine % shape.num_parts * prompts_.size() * SharedWorkShape::kPromptBlocks;
  for (auto& prompt : prompts_) {
    while (prompt.size() < SharedWorkShape::kPromptBlocks) {
      prompt.push_back(key_of(shape.seed, number++));
    }
  }
}

std::vector<BlockKey> SharedWork::wanted(std::span<const BlockKey> keys) {
  std::vector<cpu_tier::OfferAnswer> answers(keys.size());
  engine_.tier.offer(SharedEngine::kOnly, keys, answers);
  std::vector<BlockKey> wanted;
  wanted.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (answers[i] == cpu_tier::OfferAnswer::kStore) wanted.push_back(keys[i]);
  }
  return wanted;
}

std::span<std::byte> SharedWork::bytes_of(SlotId slot) const {
  return arena_->bytes().subspan(slot.value() * block_bytes_, block_bytes_);
}

std::span<std::byte> SharedWork::next_of_pool() {
  return {&pool_[next_block_++ % kPoolBlocks * block_bytes_], block_bytes_};
}

void SharedWork::load(SlotId slot, const BlockKey& key) {
  const std::span<std::byte> block = next_of_pool();
  std::memcpy(block.data(), bytes_of(slot).data(), block.size());
  const std::uint64_t stamp = key.mixed();
  KVFERRY_CHECK(std::memcmp(block.data(), &stamp, sizeof stamp) == 0 &&
                    std::memcmp(&block.back() + 1 - sizeof stamp, &stamp, sizeof stamp) == 0,
                "a block of another key was loaded");
}

void SharedWork::store(SlotId slot, const BlockKey& key) {
  const std::span<std::byte> block = next_of_pool();
  const std::uint64_t stamp = key.mixed();
  std::memcpy(block.data(), &stamp, sizeof stamp);
  std::memcpy(&block.back() + 1 - sizeof stamp, &stamp, sizeof stamp);
  std::memcpy(bytes_of(slot).data(), block.data(), block.size());
}

SharedWork::Step SharedWork::step() {
  const std::vector<BlockKey>& prompt = prompts_[random_() % prompts_.size()];
  cpu_tier::Tier& tier = engine_.tier;
  tier.hold_still();
  const cpu_tier::PrefixHit hit = tier.lookup_prefix(SharedEngine::kOnly, prompt);
  auto leased = tier.lease(hit, hit.size());
  KVFERRY_CHECK(leased.ok(), "what was found in this step is gone");
  cpu_tier::Lease lease = std::move(leased).value();
  Step done{static_cast<std::uint32_t>(hit.size()), 0};
  for (std::size_t i = 0; arena_ && i < lease.size(); ++i) load(lease.slots()[i], prompt[i]);
  const std::vector<BlockKey> keys = wanted(std::span(prompt).subspan(hit.size()));
  auto reserved = tier.reserve(SharedEngine::kOnly, keys);
  if (reserved.ok()) {
    cpu_tier::WritableSlots slots = std::move(reserved).value().hand_over();
    for (std::size_t i = 0; arena_ && i < keys.size(); ++i) store(slots.slots()[i], keys[i]);
    done.num_stored = static_cast<std::uint32_t>(slots.size());
    tier.commit(std::move(slots));
  }
  tier.release(std::move(lease));
  tier.end_step();
  return done;
}

}  // namespace kvferry::bench
