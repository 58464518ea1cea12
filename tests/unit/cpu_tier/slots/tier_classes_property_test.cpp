// SPDX-License-Identifier: Apache-2.0
// Random lives of blocks of several sizes in one real memory: no byte is ever another block's, and
// no more of it is wasted than tier.hpp says.
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "tier_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint64_t kChunkBytes = 4096;
constexpr std::uint32_t kNumChunks = 24;
constexpr std::uint64_t kKeysPerClass = 400;

class TierClassesProperty : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  TierClassesProperty()
      : random_(GetParam()), memory_(kNumChunks * kChunkBytes), tier_(kNumChunks, {}) {
    for (std::uint64_t bytes : {pick(40, 200), pick(200, 1'000), pick(1'000, kChunkBytes)}) {
      slot_bytes_.push_back(bytes);
      tier_.add_class(slots_per_chunk(kChunkBytes, bytes));
    }
    tier_.grow_to(kNumChunks / 3);
  }
  ~TierClassesProperty() override {
    while (!writable_.empty()) commit(0);
    while (!leases_.empty()) release(0);
    tier_.check_invariants();
  }

  std::uint64_t pick(std::uint64_t least, std::uint64_t most) {
    return std::uniform_int_distribution(least, most)(random_);
  }
  OneClass tier_of(std::uint32_t of) { return {tier_, SlabClassId(of)}; }
  std::uint32_t per_chunk(std::uint32_t of) {
    return slots_per_chunk(kChunkBytes, slot_bytes_[of]);
  }
  std::span<std::byte> bytes_of(std::uint32_t of, SlotId slot) {
    const SlotPlace place = place_of(slot, per_chunk(of));
    return std::span(memory_).subspan(
        place.chunk.value() * kChunkBytes + place.index * slot_bytes_[of], slot_bytes_[of]);
  }

  void reserve();
  void commit(std::size_t which);
  void abort(std::size_t which);
  void lease();
  void release(std::size_t which);
  /// A class could not have its slots: the rest of the memory is others', and nobody could give.
  void check_waste(std::uint32_t starved);

  struct Writable {
    std::uint32_t of;
    std::uint64_t first;
    WritableSlots slots;
  };
  struct Leased {
    std::uint32_t of;
    Lease lease;
  };
  std::mt19937 random_;
  std::vector<std::byte> memory_;
  std::vector<std::uint64_t> slot_bytes_;
  Tier tier_;
  std::vector<Writable> writable_;
  std::vector<Leased> leases_;
  std::uint32_t num_starved_ = 0;
};

/// What a block's bytes are.
std::byte content(std::uint32_t of, std::uint64_t number) {
  return static_cast<std::byte>(of * 85 + number * 7 + 1);
}

void TierClassesProperty::reserve() {
  const auto of = static_cast<std::uint32_t>(pick(0, 2));
  const std::uint64_t count = pick(1, 3 * per_chunk(of));
  const std::uint64_t first = pick(0, kKeysPerClass);
  auto reserved = tier_.reserve(SlabClassId(of), keys(first, count));
  if (reserved.ok()) {
    writable_.push_back({of, first, std::move(reserved).value().hand_over()});
  } else if (!reserved.otherwise().present) {
    EXPECT_LT(reserved.otherwise().num_available, count);
    ++num_starved_;
    check_waste(of);
  }
}

void TierClassesProperty::check_waste(std::uint32_t starved) {
  const SlabSnapshot now = tier_.slab_snapshot();
  EXPECT_EQ(now.num_free_chunks, 0U);
  // Chunks that cannot move, by the class of the slots that are out.
  std::vector<std::set<ChunkId>> held(now.classes.size());
  const auto hold = [&](std::uint32_t of, std::span<const SlotId> slots) {
    for (const SlotId slot : slots) held[of].insert(place_of(slot, per_chunk(of)).chunk);
  };
  for (const Writable& one : writable_) hold(one.of, one.slots.slots());
  for (const Leased& one : leases_) hold(one.of, one.lease.slots());
  std::uint64_t used_or_free = 0;
  std::uint64_t num_chunks = 0;
  std::set<ChunkId> seen;
  for (std::uint32_t of = 0; of < now.classes.size(); ++of) {
    num_chunks += now.classes[of].num_chunks;
    used_or_free += now.classes[of].tier.num_slots * slot_bytes_[of];
    EXPECT_LT(kChunkBytes - per_chunk(of) * slot_bytes_[of], slot_bytes_[of]);
    for (const ChunkId chunk : held[of]) {
      EXPECT_LT(chunk.value(), now.num_chunks);
      EXPECT_TRUE(seen.insert(chunk).second) << "two classes have chunk " << chunk.value();
    }
    if (of == starved) continue;
    EXPECT_EQ(held[of].size(), now.classes[of].num_chunks)
        << "class " << starved << " starves beside a chunk of class " << of << " that could move";
  }
  EXPECT_EQ(num_chunks, now.num_chunks);
  EXPECT_LE(used_or_free, now.num_chunks * kChunkBytes);
}

void TierClassesProperty::commit(std::size_t which) {
  Writable one = std::move(writable_[which]);
  writable_.erase(writable_.begin() + static_cast<std::ptrdiff_t>(which));
  for (std::size_t i = 0; i < one.slots.slots().size(); ++i) {
    std::ranges::fill(bytes_of(one.of, one.slots.slots()[i]), content(one.of, one.first + i));
  }
  tier_of(one.of).commit(std::move(one.slots));
}

void TierClassesProperty::abort(std::size_t which) {
  Writable one = std::move(writable_[which]);
  writable_.erase(writable_.begin() + static_cast<std::ptrdiff_t>(which));
  tier_of(one.of).release(tier_of(one.of).abort(std::move(one.slots)));
}

void TierClassesProperty::lease() {
  const auto of = static_cast<std::uint32_t>(pick(0, 2));
  const std::uint64_t first = pick(0, kKeysPerClass);
  const std::vector<BlockKey> wanted = keys(first, pick(1, 2 * per_chunk(of)));
  const PrefixHit hit = tier_of(of).lookup_prefix(wanted);
  auto leased = tier_of(of).lease(std::span(wanted).first(hit.size()));
  for (std::size_t i = 0; i < hit.size(); ++i) {
    for (const std::byte byte : bytes_of(of, leased.value().slots()[i])) {
      ASSERT_EQ(byte, content(of, first + i)) << "class " << of << ", block " << first + i;
    }
  }
  if (pick(0, 9) == 0) tier_of(of).forget(leased.value());
  leases_.push_back({of, std::move(leased).value()});
}

void TierClassesProperty::release(std::size_t which) {
  tier_of(leases_[which].of).release(std::move(leases_[which].lease));
  leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(which));
}

TEST_P(TierClassesProperty, NoByteIsAnotherBlocksAndTheWasteIsBounded) {
  std::uint32_t num_chunks = kNumChunks / 3;
  for (std::uint32_t step = 0; step < 3'000 && !HasFatalFailure(); ++step) {
    // Now few, now many blocks are held at a time.
    const std::uint64_t most_held = step / 500 % 2 == 0 ? 4 : 24;
    reserve();
    lease();
    while (writable_.size() > most_held / 2) {
      const std::uint64_t which = pick(0, writable_.size() - 1);
      pick(0, 7) == 0 ? abort(which) : commit(which);
    }
    while (leases_.size() > most_held) release(pick(0, leases_.size() - 1));
    if (step % 200 == 0 && num_chunks < kNumChunks) tier_.grow_to(++num_chunks);
    if (step % 50 == 0) tier_.check_invariants();
  }
  std::uint64_t num_gained = 0;
  for (const SlabClassSnapshot& one : tier_.slab_snapshot().classes)
    num_gained += one.num_gained_total;
  EXPECT_GT(num_gained, 10U);
  EXPECT_GT(num_starved_, 10U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, TierClassesProperty, ::testing::Range(1U, 9U));

}  // namespace
}  // namespace kvferry::cpu_tier
