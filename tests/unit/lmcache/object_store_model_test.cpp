// SPDX-License-Identifier: Apache-2.0
// Random operations against a map.
#include "shared_store_rig.hpp"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace kvferry::lmcache {
namespace {

/// What the store may hold: with room for all of it, exactly this.
using Reference = std::map<std::string, std::uint64_t>;

class Life {
 public:
  Life(std::uint64_t seed, std::uint64_t capacity_bytes, cpu_tier::Eviction eviction)
      : random_(seed), store_(make_store(capacity_bytes, eviction)), is_alone_(true) {}
  /// Of a store beside others, which hold anything.
  Life(std::uint64_t seed, std::unique_ptr<ObjectStore> store)
      : random_(seed), store_(std::move(store)), is_alone_(false) {}

  void step() {
    switch (random_() % 8) {
      case 0:
      case 1:
        return store();
      case 2:
        return begin_store();
      case 3:
        return end_store();
      case 4:
        return load();
      case 5:
        return end_load();
      case 6:
        return look_up();
      default:
        return delete_some();
    }
  }
  void end() {
    while (!writing_.empty()) end_store();
    while (!reading_.empty()) end_load();
    store_->check_invariants();
  }
  [[nodiscard]] const Reference& reference() const { return reference_; }
  [[nodiscard]] std::uint64_t num_held() {
    std::uint64_t held = 0;
    for (const auto& [key, bytes] : reference_) {
      const Got got = get(*store_, {key, bytes});
      EXPECT_NE(got, Got::kWrong) << key;
      held += got == Got::kRight ? 1 : 0;
    }
    return held;
  }
  [[nodiscard]] std::uint64_t num_objects() const { return store_->snapshot().num_objects; }

 private:
  struct Writing {
    std::vector<Item> items;
    WritableValues values;
  };
  struct Reading {
    std::vector<Item> items;
    ReadableValues values;
  };

  std::vector<Item> some_items() {
    std::vector<Item> some(random_() % 5 + 1);
    for (Item& item : some) {
      item.key = std::string(random_() % 3 == 0 ? 250 : 5, 'k') + std::to_string(random_() % 60);
      item.bytes = std::vector<std::uint64_t>{0, 100, 4096, 30000, 30001, 120000}[random_() % 6];
    }
    return some;
  }
  void store() {
    begin_store();
    end_store();
  }
  void begin_store() {
    std::vector<Item> some = some_items();
    auto reserved = store_->reserve(keys_of(some), sizes_of(some));
    if (!reserved.ok()) {
      // What it was to replace may be gone.
      for (const Item& item : some) uncertain(item);
      return;
    }
    Writing writing{some, std::move(reserved).value()};
    std::map<std::string, bool> seen;
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (!seen.emplace(some[i].key, true).second) {
        EXPECT_EQ(writing.values.places()[i], nullptr) << "a key twice in a batch";
        continue;
      }
      if (writing.values.places()[i] == nullptr) continue;
      reference_.erase(some[i].key);
      const auto value = value_of(some[i].key, some[i].bytes);
      if (!value.empty()) std::memcpy(writing.values.places()[i], value.data(), value.size());
    }
    writing_.push_back(std::move(writing));
  }
  void uncertain(const Item& item) {
    const auto held = reference_.find(item.key);
    if (held != reference_.end() && held->second != item.bytes) reference_.erase(held);
  }
  void end_store() {
    if (writing_.empty()) return;
    const std::size_t which = random_() % writing_.size();
    std::swap(writing_[which], writing_.back());
    Writing writing = std::move(writing_.back());
    writing_.pop_back();
    if (random_() % 4 == 0) return store_->abort(std::move(writing.values));
    for (std::size_t i = 0; i < writing.items.size(); ++i) {
      if (writing.values.places()[i] == nullptr) continue;
      reference_[writing.items[i].key] = writing.items[i].bytes;
    }
    store_->commit(std::move(writing.values));
  }
  void load() {
    std::vector<Item> some = some_items();
    ReadableValues values = store_->lease(keys_of(some), sizes_of(some));
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (values.places()[i] == nullptr) continue;
      const auto held = reference_.find(some[i].key);
      ASSERT_TRUE(!is_alone_ || (held != reference_.end() && held->second == some[i].bytes))
          << some[i].key;
    }
    reading_.push_back({std::move(some), std::move(values)});
  }
  void end_load() {
    if (reading_.empty()) return;
    const std::size_t which = random_() % reading_.size();
    std::swap(reading_[which], reading_.back());
    Reading reading = std::move(reading_.back());
    reading_.pop_back();
    for (std::size_t i = 0; i < reading.items.size(); ++i) {
      if (reading.values.places()[i] == nullptr) continue;
      const auto value = value_of(reading.items[i].key, reading.items[i].bytes);
      ASSERT_TRUE(value.empty() ||
                  std::memcmp(reading.values.places()[i], value.data(), value.size()) == 0)
          << "bytes under a lease changed: " << reading.items[i].key;
    }
    store_->release(std::move(reading.values));
  }
  void look_up() {
    const std::vector<Item> some = some_items();
    const std::vector<bool> found = store_->lookup(keys_of(some));
    for (std::size_t i = 0; i < some.size(); ++i) {
      ASSERT_TRUE(!found[i] || !is_alone_ || reference_.contains(some[i].key)) << some[i].key;
    }
  }
  void delete_some() {
    const std::vector<Item> some = some_items();
    const std::vector<bool> found = store_->forget(keys_of(some));
    for (std::size_t i = 0; i < some.size(); ++i) {
      ASSERT_TRUE(!found[i] || !is_alone_ || reference_.contains(some[i].key)) << some[i].key;
      reference_.erase(some[i].key);
    }
  }

  std::mt19937_64 random_;
  const std::unique_ptr<ObjectStore> store_;
  const bool is_alone_;
  Reference reference_;
  std::vector<Writing> writing_;
  std::vector<Reading> reading_;
};

TEST(ObjectStoreModel, HoldsExactlyWhatWasStoredWhileThereIsRoom) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Life life(seed, 64 * kMiB, cpu_tier::Eviction::kAdaptive);
    for (int i = 0; i < 600; ++i) life.step();
    life.end();
    EXPECT_EQ(life.num_held(), life.reference().size());
    EXPECT_EQ(life.num_objects(), life.reference().size());
    if (testing::Test::HasFailure()) return;
  }
}

TEST(ObjectStoreModel, NeverServesAnythingElseWhenItIsSmall) {
  for (const auto eviction :
       {cpu_tier::Eviction::kLru, cpu_tier::Eviction::kArc, cpu_tier::Eviction::kAdaptive}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + to_string(eviction));
      Life life(seed, 2 * kMiB, eviction);
      for (int i = 0; i < 600; ++i) life.step();
      life.end();
      EXPECT_LE(life.num_held(), life.reference().size());
      EXPECT_LE(life.num_objects(), life.reference().size());
      if (testing::Test::HasFailure()) return;
    }
  }
}

using SharedStoreModel = SharedStoreFixture;

TEST_F(SharedStoreModel, NeverServesAnythingElseWhateverOthersDo) {
  // With room for all, and with too little.
  for (const std::uint64_t capacity_bytes : {64 * kMiB, 2 * kMiB}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Life first(seed, open(options(capacity_bytes)));
      auto second = std::make_unique<Life>(seed + 100, open(options(capacity_bytes)));
      for (int i = 0; i < 300; ++i) {
        first.step();
        second->step();
        if (i != 150) continue;
        // Another one takes over what it left.
        second->end();
        second = std::make_unique<Life>(seed + 200, open(options(capacity_bytes)));
      }
      first.end();
      second->end();
      if (testing::Test::HasFailure()) return;
    }
    std::filesystem::remove(path_);
  }
}

}  // namespace
}  // namespace kvferry::lmcache
