// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_contents.hpp"

#include "shared_instance.hpp"
#include "tier_peers_fixture.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::size_t kAll = 1000;

/// What changes make of what was known before: the first eight bytes of a key by its slot.
class Known {
 public:
  explicit Known(Instance& of) : contents_(of.directory().records()) {}

  /// Returns how many changes there were.
  std::size_t look(std::size_t most = kAll, WeightsId weights = WeightsId()) {
    const std::vector<ContentChange> changes = contents_.take_changes(most, weights);
    for (const ContentChange& change : changes) {
      if (change.readable) {
        EXPECT_TRUE(keys_.emplace(change.slot, change.key).second) << "it holds another key";
      } else {
        EXPECT_EQ(keys_.at(change.slot), change.key) << "it did not hold that key";
        keys_.erase(change.slot);
      }
    }
    return changes.size();
  }
  [[nodiscard]] std::size_t num_slots() const { return keys_.size(); }
  [[nodiscard]] bool has(std::uint64_t number) const {
    const BlockKey wanted = keys(number, 1)[0];
    for (const auto& [slot, key] : keys_) {
      if (key == wanted) return true;
    }
    return false;
  }

 private:
  TierContents contents_;
  std::map<std::uint64_t, BlockKey> keys_;
};

TEST_F(TierPeersTest, ContentsAreWhatAnyInstanceHasStored) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  Known of_b(b);
  EXPECT_EQ(of_b.look(), 0U);
  a.store(0, 3);
  b.store(10, 2);
  EXPECT_EQ(of_b.look(), 5U);
  EXPECT_TRUE(of_b.has(2));
  EXPECT_TRUE(of_b.has(11));
  EXPECT_EQ(of_b.look(), 0U) << "nothing has changed";
  Instance late(rig_, "late");
  Known of_late(late);
  of_late.look();
  EXPECT_EQ(of_late.num_slots(), 5U);
}

TEST_F(TierPeersTest, ContentsLoseWhatTheirOwnerEvicts) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  Known of_b(b);
  a.store(0, 16);
  of_b.look();
  a.store(100, 4);
  EXPECT_EQ(of_b.look(), 8U) << "four went, four came";
  EXPECT_EQ(of_b.num_slots(), 16U);
  for (std::uint64_t number = 0; number < 104; ++number) {
    EXPECT_EQ(of_b.has(number), a.num_readable(number, 1) != 0) << number;
  }
  a.tier().forget_all();
  of_b.look();
  EXPECT_EQ(of_b.num_slots(), 0U);
}

TEST_F(TierPeersTest, ContentsHaveNothingThatIsBeingFilled) {
  Instance a(rig_, "a");
  Known of_a(a);
  WritableSlots slots = a.take(0, 2);
  EXPECT_EQ(of_a.look(), 0U);
  a.tier().commit(std::move(slots));
  EXPECT_EQ(of_a.look(), 2U);
}

TEST_F(TierPeersTest, ContentsAreOfOneNameSpace) {
  Instance a(rig_, "a");
  Instance other(rig_, "other", 2);
  Known of_a(a);
  Known of_other(other);
  a.store(0, 4);
  EXPECT_EQ(of_other.look(), 0U);
  EXPECT_EQ(of_a.look(), 4U);
  a.tier().forget_all();
  a.directory().leave_name_space();
  of_a.look();
  EXPECT_EQ(of_a.num_slots(), 0U);
}

TEST_F(TierPeersTest, ContentsAreOfTheWeightsOfNow) {
  constexpr WeightsId kOld(0x1234567890abcdef);
  Instance a(rig_, "a");
  Known of_a(a);
  a.store(0, 3);
  const std::vector<BlockKey> of_old{keys(0, 1)[0].mixed_with(kOld)};
  a.tier().commit(std::move(a.all().reserve(Instance::kOnly, of_old)).value().hand_over());
  EXPECT_EQ(of_a.look(), 3U);
  EXPECT_EQ(of_a.look(kAll, kOld), 4U) << "three are of none, one is of these";
  EXPECT_EQ(of_a.num_slots(), 1U);
  EXPECT_TRUE(of_a.has(0)) << "by the engine's own hash";
  EXPECT_EQ(of_a.look(kAll, kOld), 0U);
  EXPECT_EQ(of_a.look(), 4U);
  EXPECT_EQ(of_a.num_slots(), 3U);
}

TEST_F(TierPeersTest, ContentsOutliveTheInstanceThatStoredThem) {
  Instance b(rig_, "b");
  Known of_b(b);
  {
    Instance a(rig_, "a");
    a.store(0, 16);
    of_b.look();
  }
  EXPECT_EQ(of_b.look(), 0U);
  EXPECT_EQ(of_b.num_slots(), 16U);
  b.store(100, 1);
  of_b.look();
  EXPECT_TRUE(of_b.has(100));
  EXPECT_EQ(of_b.num_slots(), b.num_readable(0, 101));
}

TEST_F(TierPeersTest, ContentsComeInPiecesIfAsked) {
  Instance a(rig_, "a");
  a.store(0, 16);
  Known of_a(a);
  for (std::size_t i = 1; i <= 4; ++i) {
    EXPECT_EQ(of_a.look(1), Instance::kChunkSlots);
    EXPECT_EQ(of_a.num_slots(), i * Instance::kChunkSlots);
  }
  EXPECT_EQ(of_a.look(1), 0U);
}

TEST_F(TierPeersTest, ContentsAgreeWithLookupsAfterAnyHistory) {
  std::mt19937 random(7);
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  Known of_a(a);
  Known of_b(b);
  for (int round = 0; round < 300; ++round) {
    Instance& one = random() % 2 == 0 ? a : b;
    const std::uint64_t first = random() % 40;
    if (random() % 16 == 0) {
      one.tier().forget_all();
    } else if (auto reserved = one.all().reserve(Instance::kOnly, keys(first, 1 + random() % 3));
               reserved.ok()) {
      one.tier().commit(std::move(reserved).value().hand_over());
    }
    if (random() % 4 == 0) one.drop_guests();
    of_a.look(1 + random() % kAll);
    while (of_a.look() != 0) continue;
    of_b.look();
    for (std::uint64_t number = 0; number < 43; ++number) {
      const bool held = a.num_readable(number, 1) != 0;
      ASSERT_EQ(of_a.has(number), held) << number << " in round " << round;
      ASSERT_EQ(of_b.has(number), held) << number << " in round " << round;
    }
    a.drop_guests();
  }
}

TEST_F(TierPeersTest, ContentsOfAnInstanceThatHasLeftItsNameSpaceAreTold) {
  Instance a(rig_, "a");
  Known of_a(a);
  a.store(0, 16);
  of_a.look();
  a.all().forget_all();
  a.all().leave_name_space();
  of_a.look();
  EXPECT_EQ(of_a.num_slots(), 0U);
  a.store(100, 16);
  of_a.look();
  EXPECT_EQ(of_a.num_slots(), 16U) << "in the chunks that it kept";
}

TEST_F(TierPeersTest, AKeyWithAHashThatIsTooLongIsNoContent) {
  Instance a(rig_, "a");
  a.store(0, 4);
  const SlotPlace place{ChunkId(0), 0};
  BlockKey forged = keys(0, 1)[0];
  forged.hash_bytes = 60'000;
  rig_.line(place).key.store(rig_.number_of(place),
                             {forged, 1, slot_stamp(rig_.word(place), 4, 0)});
  Known known(a);
  EXPECT_EQ(known.look(), 3U);
}

}  // namespace
}  // namespace kvferry::cpu_tier
