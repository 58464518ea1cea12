// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/hashed_lists.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>

namespace kvferry::cpu_tier {
namespace {

TEST(HashedLists, AgreesWithPlainListsOverRandomOperations) {
  constexpr std::uint32_t kMax = 40;
  std::mt19937 random(7);
  HashedLists lists(kMax);
  std::list<std::uint32_t> model[2];  // Coldest first.
  for (int step = 0; step < 50'000; ++step) {
    const std::uint32_t hash = random() % 100 * 0x01000193U;
    const std::size_t list = random() % 2;
    const std::uint32_t entry = lists.find(hash);
    const bool held = std::any_of(std::begin(model), std::end(model), [&](const auto& one) {
      return std::find(one.begin(), one.end(), hash) != one.end();
    });
    ASSERT_EQ(entry != HashedLists::kNone, held);
    if (held) {
      model[0].remove(hash);
      model[1].remove(hash);
      if (random() % 2 == 0) {
        lists.erase(entry);
      } else {
        lists.make_hottest(entry, list);
        model[list].push_back(hash);
      }
    } else if (lists.size() < kMax) {
      lists.insert(hash, list);
      model[list].push_back(hash);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_EQ(lists.size(i), model[i].size());
      if (!model[i].empty()) {
        ASSERT_EQ(lists[lists.coldest(i)].hash, model[i].front());
      }
    }
    if (step % 10'000 == 9'999) {
      lists.clear();
      model[0].clear();
      model[1].clear();
    }
  }
}

TEST(HashedListsDeathTest, OneMoreThanThereIsRoomForStops) {
  HashedLists lists(1);
  lists.insert(1, 0);
  EXPECT_DEATH(lists.insert(2, 0), "full");
}

}  // namespace
}  // namespace kvferry::cpu_tier
