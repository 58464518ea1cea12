// SPDX-License-Identifier: Apache-2.0
#include "tier_life.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/peers/tier_peers.hpp"

#include "tier_damage.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvferry::fuzz {

using cpu_tier::TierDirectory;

namespace {

constexpr std::size_t kMostHeld = 6;
/// Keys of all that is asked for by expect_all_of_it(): of no other step.
constexpr std::uint64_t kLastKeys = 100'000;

}  // namespace

TierLife::TierLife(const TierFile& file, const Options& options)
    : file_(file), number_(options.number), name_space_(options.name_space) {
  const TierDirectory::Identity identity{
      .name = "engine " + std::to_string(options.number),
      .name_space = options.name_space,
      .grace = options.is_patient ? std::chrono::hours(1) : std::chrono::nanoseconds(0)};
  joined_ = cpu_tier::JoinedTier::join(file.options(), identity);
  all_ = std::make_unique<cpu_tier::Tier>(
      TierFile::kNumChunks, kSlotsPerChunk,
      cpu_tier::TierOptions{cpu_tier::Eviction::kLru, cpu_tier::Admission::kAlways},
      cpu_tier::peers_in(&joined_->directory()));
  all_->grow_to(TierFile::kNumChunks);
  joined_->directory().look_around();
}

TierLife::~TierLife() {
  while (!filling_.empty()) end_store(false);
  while (!leased_.empty()) end_lease();
  all_->check_invariants();
  all_.reset();
}

std::span<std::byte> TierLife::bytes_of(std::uint32_t slab_class, SlotId slot) const {
  const std::uint32_t per_chunk = kSlotsPerChunk[slab_class];
  return file_.slot(cpu_tier::place_of(slot, per_chunk), per_chunk);
}

std::vector<std::uint64_t> TierLife::numbers(std::uint32_t slab_class, std::uint64_t first,
                                             std::size_t count) {
  std::vector<std::uint64_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = slab_class * kNumKeys + (first + i) % kNumKeys + 1;
  }
  return numbers;
}

std::vector<cpu_tier::BlockKey> TierLife::keys_of(std::span<const std::uint64_t> numbers) {
  std::vector<cpu_tier::BlockKey> keys;
  for (const std::uint64_t number : numbers) keys.push_back(key_of(number));
  return keys;
}

void TierLife::begin_store(std::uint32_t slab_class, std::uint64_t first_key, std::size_t count) {
  if (filling_.size() == kMostHeld) return;
  const std::vector<std::uint64_t> wanted = numbers(slab_class, first_key, count);
  auto reserved = all_->reserve(SlabClassId(slab_class), keys_of(wanted));
  if (!reserved.ok()) return;
  Filling store{slab_class, wanted, std::move(reserved).value().hand_over(), name_space_};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    write_content(bytes_of(slab_class, store.slots.slots()[i]), wanted[i], name_space_);
  }
  filling_.push_back(std::move(store));
}

void TierLife::end_store(bool succeeded) {
  if (filling_.empty()) return;
  check();
  Filling store = std::move(filling_.front());
  filling_.erase(filling_.begin());
  if (succeeded) {
    tier(store.slab_class).commit(std::move(store.slots));
  } else {
    tier(store.slab_class).release(tier(store.slab_class).abort(std::move(store.slots)));
  }
}

void TierLife::lease(std::uint32_t slab_class, std::uint64_t first_key, std::size_t count) {
  if (leased_.size() == kMostHeld) return;
  std::vector<std::uint64_t> wanted = numbers(slab_class, first_key, count);
  const cpu_tier::PrefixHit hit = tier(slab_class).lookup_prefix(keys_of(wanted));
  auto leased = tier(slab_class).lease(hit, hit.size());
  if (!leased.ok()) return;
  wanted.resize(hit.size());
  leased_.push_back({slab_class, wanted, std::move(leased).value(), name_space_});
  check();
}

void TierLife::end_lease() {
  if (leased_.empty()) return;
  check();
  Leased ended = std::move(leased_.front());
  leased_.erase(leased_.begin());
  tier(ended.slab_class).release(std::move(ended.lease));
}

void TierLife::forget() {
  if (!leased_.empty()) tier(leased_.back().slab_class).forget(leased_.back().lease);
}

void TierLife::reset() {
  while (!filling_.empty()) end_store(false);
  all_->forget_all();
  all_->leave_name_space();
  // One that no other instance has, and this one never had.
  name_space_ = 1000 * ++num_resets_ + number_;
}

void TierLife::tend() {
  all_->tend(now_ += std::chrono::seconds(1));
  joined_->directory().free_quarantined();
}

void TierLife::sweep() { static_cast<void>(joined_->directory().sweep()); }

void TierLife::check() const {
  for (const Filling& store : filling_) {
    for (std::size_t i = 0; i < store.keys.size(); ++i) {
      KVFERRY_CHECK(is_content(bytes_of(store.slab_class, store.slots.slots()[i]), store.keys[i],
                               store.name_space),
                    "what is being filled was written by another");
    }
  }
  for (const Leased& held : leased_) {
    for (std::size_t i = 0; i < held.keys.size(); ++i) {
      KVFERRY_CHECK(is_content(bytes_of(held.slab_class, held.lease.slots()[i]), held.keys[i],
                               held.name_space),
                    "slot " + std::to_string(held.lease.slots()[i].value()) + " of class " +
                        std::to_string(held.slab_class) + " is served and wrong");
    }
  }
}

void TierLife::check_apart(std::span<const std::unique_ptr<TierLife>> lives) {
  struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    bool is_written = false;
  };
  std::vector<Range> ranges;
  const auto add = [&ranges](std::span<const std::byte> bytes, bool is_written) {
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
    ranges.push_back({begin, begin + bytes.size(), is_written});
  };
  for (const auto& life : lives) {
    if (!life) continue;
    for (const Filling& store : life->filling_) {
      for (const SlotId slot : store.slots.slots())
        add(life->bytes_of(store.slab_class, slot), true);
    }
    for (const Leased& held : life->leased_) {
      for (const SlotId slot : held.lease.slots())
        add(life->bytes_of(held.slab_class, slot), false);
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::uintptr_t written_to = 0;
  std::uintptr_t read_to = 0;
  for (const Range& range : ranges) {
    KVFERRY_CHECK(range.begin >= written_to && (!range.is_written || range.begin >= read_to),
                  "a slot was given twice");
    (range.is_written ? written_to : read_to) =
        std::max(range.is_written ? written_to : read_to, range.end);
  }
}

void TierLife::expect_all_of_it() {
  while (!filling_.empty()) end_store(true);
  while (!leased_.empty()) end_lease();
  const std::size_t all = std::size_t{TierFile::kNumChunks} * kSlotsPerChunk[1];
  std::vector<std::uint64_t> wanted(all);
  for (std::size_t i = 0; i < all; ++i) wanted[i] = kLastKeys + i;
  // Quarantine is over at the second look, guests are let go at the second, and a chunk comes after
  // it was given up.
  for (int round = 0; round < 40; ++round) {
    auto reserved = all_->reserve(SlabClassId(1), keys_of(wanted));
    if (reserved.ok()) return;
    tend();
  }
  const cpu_tier::SlabSnapshot now = all_->slab_snapshot();
  KVFERRY_CHECK(
      false, "of " + std::to_string(all) +
                 " slots some are lost: " + std::to_string(now.num_chunks) + " chunks are owned, " +
                 std::to_string(now.classes[0].tier.num_set_aside) + " and " +
                 std::to_string(now.classes[1].tier.num_set_aside) + " slots are set aside");
}

}  // namespace kvferry::fuzz
