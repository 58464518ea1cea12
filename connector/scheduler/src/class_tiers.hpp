// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/base/result.hpp"
#include "kvferry/connector/scheduler/scheduler_options.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/cpu_tier/peers/tier_keeper.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"
#include "kvferry/cpu_tier/slots/slab_tier.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvferry::connector {

/// The CPU tier as the scheduler side uses it: a CpuTier for each slab class. One class alone has
/// all of the memory; several, and those of a tier that engine instances share, have chunks of it
/// by a SlabTier. Thread-safe as these are.
class ClassTiers {
 public:
  explicit ClassTiers(const SchedulerOptions& options);

  [[nodiscard]] std::uint32_t num_classes() const {
    return static_cast<std::uint32_t>(tiers_.size());
  }
  /// For everything but growth, offers and reservations, which concern all classes.
  [[nodiscard]] cpu_tier::CpuTier& of(SlabClassId slab_class) {
    return *tiers_[slab_class.value()];
  }

  void grow_to(std::uint32_t num_chunks);
  void offer(SlabClassId slab_class, std::span<const cpu_tier::BlockKey> keys,
             std::span<cpu_tier::OfferAnswer> answers);
  [[nodiscard]] Result<cpu_tier::Reservation, cpu_tier::NotReserved> reserve(
      SlabClassId slab_class, std::span<const cpu_tier::BlockKey> keys);
  /// Of a shared tier: TierDirectory::narrow_name_space(). 0: nothing.
  void narrow_name_space(std::uint64_t by) {
    if (directory_ != nullptr && by != 0) directory_->narrow_name_space(by);
  }
  /// Forgets all, and of a shared tier what others hold, too: from now on this instance finds its
  /// own blocks alone.
  void forget_all();
  /// From now on to end_step() what lookups find can be leased.
  void hold_still() {
    if (keeper_) slabs_->hold_still();
  }
  void end_step() {
    if (keeper_) slabs_->end_step();
  }
  /// Of all classes; those of one key in their order.
  [[nodiscard]] std::vector<cpu_tier::KeyEvent> take_key_events();

  /// Moves on whenever a class's does.
  [[nodiscard]] std::uint64_t eviction_epoch() const;
  /// Of all classes together. What no class has counts as free slots of the first.
  [[nodiscard]] cpu_tier::TierSnapshot snapshot() const;
  /// Which class has which chunks; one class has all of its chunks.
  [[nodiscard]] cpu_tier::SlabSnapshot slab_snapshot() const;

 private:
  std::vector<std::uint32_t> slots_per_chunk_;
  std::unique_ptr<cpu_tier::CpuTier> alone_;
  std::unique_ptr<cpu_tier::SlabTier> slabs_;
  std::vector<cpu_tier::CpuTier*> tiers_;  ///< By class.
  cpu_tier::TierDirectory* directory_;
  /// Of a shared tier. Before all else that it uses is gone.
  std::unique_ptr<cpu_tier::TierKeeper> keeper_;
};

}  // namespace kvferry::connector
