// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/tier_keeper.hpp"

#include "shared_instance.hpp"

#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>

namespace kvferry::cpu_tier {

/// An engine instance that does anything at any time, with a thread beside it that tends its tier;
/// it checks all that it reads.
class SharedWorker {
 public:
  static constexpr std::uint64_t kNumKeys = 64;

  /// Slots that were withdrawn, of all workers, by their bits.
  using Withdrawn = std::atomic<std::uint64_t>;
  static constexpr int kMostWithdrawn = 4;

  /// With `withdrawn` it withdraws some that it reads.
  SharedWorker(const SharedTierRig& rig, int number, Withdrawn* withdrawn = nullptr)
      : rig_(rig),
        withdrawn_(withdrawn),
        instance_(rig, {.name = "engine-" + std::to_string(number),
                        .name_space = 1,
                        .grace = std::chrono::milliseconds(1)}),
        keeper_(instance_.all(), instance_.directory()),
        random_(static_cast<unsigned>(number)) {}

  void step() {
    const std::uint64_t what = draw(100);
    if (what < 40) {
      store();
    } else if (what < 80) {
      load();
    } else if (what < 90) {
      instance_.all().end_step();
      instance_.drop_guests();
    } else if (what < 98) {
      instance_.tend();
    } else if (what == 98) {
      static_cast<void>(instance_.directory().sweep());
    } else {
      instance_.tier().forget_all();
    }
  }
  [[nodiscard]] std::uint64_t num_stored() const { return num_stored_; }
  [[nodiscard]] std::uint64_t num_read() const { return num_read_; }
  [[nodiscard]] std::uint64_t num_foreign() { return instance_.snapshot().num_guests_total; }
  [[nodiscard]] bool all_right() const { return all_right_; }

 private:
  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  [[nodiscard]] SharedTierRig::Slot& bytes_of(SlotId slot) const {
    return rig_.slot(place_of(slot, Instance::kChunkSlots));
  }

  void store() {
    const std::uint64_t first = draw(kNumKeys);
    auto reserved = instance_.all().reserve(Instance::kOnly, keys(first, 1 + draw(4)));
    if (!reserved.ok()) return;
    WritableSlots slots = std::move(reserved).value().hand_over();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      all_right_ = all_right_ && !is_withdrawn(slots.slots()[i]);
      SharedTierRig::write(bytes_of(slots.slots()[i]), first + i);
    }
    if (draw(8) > 0) {
      num_stored_ += slots.size();
      instance_.tier().commit(std::move(slots));
    } else {
      instance_.tier().release(instance_.tier().abort(std::move(slots)));
    }
  }
  /// What a lookup has found.
  struct Found {
    std::uint64_t first = 0;
    PrefixHit hit;
  };
  [[nodiscard]] Found look_up() {
    const std::uint64_t first = draw(kNumKeys);
    return {first, instance_.tier().lookup_prefix(keys(first, 1 + draw(6)))};
  }
  void load() {
    instance_.all().hold_still();
    // A request that has waited has its hit from before, which may have ended.
    const bool has_waited = waiting_ && draw(3) == 0;
    const Found found = has_waited ? *std::exchange(waiting_, std::nullopt) : look_up();
    if (!has_waited && draw(8) == 0) waiting_ = found;
    auto leased = instance_.tier().lease(found.hit, found.hit.size());
    all_right_ = all_right_ && (leased.ok() || has_waited);
    if (!leased.ok()) return;
    Lease lease = std::move(leased).value();
    for (std::size_t i = 0; i < lease.size(); ++i) {
      const SharedTierRig::Slot& bytes = bytes_of(lease.slots()[i]);
      all_right_ = all_right_ && SharedTierRig::is_right(bytes, found.first + i);
      ++num_read_;
    }
    if (draw(20) == 0) instance_.tier().forget(lease);
    if (withdrawn_ != nullptr && !lease.empty() && draw(50) == 0) withdraw(lease);
    instance_.tier().release(std::move(lease));
  }

  [[nodiscard]] static std::uint64_t bit_of(SlotId slot) {
    return std::uint64_t{1} << slot.value();
  }
  [[nodiscard]] bool is_withdrawn(SlotId slot) const {
    return withdrawn_ != nullptr && (withdrawn_->load() & bit_of(slot)) != 0;
  }
  void withdraw(const Lease& lease) {
    if (std::popcount(withdrawn_->load()) >= kMostWithdrawn) return;
    const SlotId slot = lease.slots()[draw(lease.size())];
    // Before: as long as it is leased nobody fills it.
    withdrawn_->fetch_or(bit_of(slot));
    static_cast<void>(instance_.tier().withdraw(lease, {&slot, 1}));
  }

  const SharedTierRig& rig_;
  Withdrawn* const withdrawn_;
  Instance instance_;
  TierKeeper keeper_;
  std::minstd_rand random_;
  std::optional<Found> waiting_;
  std::uint64_t num_stored_ = 0;
  std::uint64_t num_read_ = 0;
  bool all_right_ = true;
};

/// With nobody alive: whoever comes can have every slot but those that were withdrawn.
inline void expect_no_slot_is_lost(const SharedTierRig& rig, std::uint64_t withdrawn = 0) {
  const auto count = static_cast<std::size_t>(16 - std::popcount(withdrawn));
  Instance last(rig, {.name = "last", .name_space = 1, .grace = std::chrono::nanoseconds(0)});
  for (int i = 0; i < 2; ++i) {
    // What was aside when it was adopted is free behind it.
    static_cast<void>(last.all().reserve(Instance::kOnly, keys(1000, count)));
    last.tend();
  }
  for (const std::uint32_t slot : last.store(1000, count)) {
    EXPECT_EQ(withdrawn >> slot & 1U, 0U) << "slot " << slot;
  }
}

}  // namespace kvferry::cpu_tier
