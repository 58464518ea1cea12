// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/tier_peers.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "shared_tier_rig.hpp"
#include "tier_fixture.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {

/// An engine instance of a shared tier, with slots of one size, four in each of four chunks.
class Instance {
 public:
  static constexpr std::uint32_t kNumChunks = 4;
  static constexpr std::uint32_t kChunkSlots = 4;
  static constexpr TierShape kShape{.num_chunks = kNumChunks,
                                    .chunk_bytes = kTierPageBytes,
                                    .max_chunk_slots = kChunkSlots,
                                    .num_ranks = 1};
  static constexpr TierOptions kPlainLru{Eviction::kLru, Admission::kAlways};
  static constexpr SlabClassId kOnly{0};

  Instance(const SharedTierRig& rig, const TierDirectory::Identity& identity,
           TierOptions options = kPlainLru)
      : directory_(rig.join(identity)),
        all_(std::make_unique<Tier>(kNumChunks, std::array{kChunkSlots}, options,
                                    peers_in(directory_.get()))) {
    all_->grow_to(kNumChunks);
  }
  Instance(const SharedTierRig& rig, const std::string& name, std::uint64_t name_space = 1)
      : Instance(rig, {.name = name, .name_space = name_space, .grace = std::chrono::hours(1)}) {}
  ~Instance() {
    all_->check_invariants();
    all_.reset();
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  [[nodiscard]] Tier& all() { return *all_; }
  [[nodiscard]] OneClass tier() { return {*all_, kOnly}; }
  [[nodiscard]] TierDirectory& directory() { return *directory_; }

  [[nodiscard]] WritableSlots take(std::uint64_t first, std::size_t count) {
    return std::move(all_->reserve(kOnly, keys(first, count))).value().hand_over();
  }
  std::vector<std::uint32_t> store(std::uint64_t first, std::size_t count) {
    WritableSlots slots = take(first, count);
    std::vector<std::uint32_t> taken = ids(slots.slots());
    tier().commit(std::move(slots));
    return taken;
  }
  [[nodiscard]] std::size_t held(std::uint64_t first, std::size_t count) {
    return tier().lookup_prefix(keys(first, count)).size();
  }
  /// Of these keys, how many are readable.
  [[nodiscard]] std::size_t num_readable(std::uint64_t first, std::size_t count) {
    std::vector<KeyState> states(count);
    tier().lookup(keys(first, count), states);
    return static_cast<std::size_t>(std::count(states.begin(), states.end(), KeyState::kReadable));
  }
  [[nodiscard]] Lease lease(std::uint64_t first, std::size_t count) {
    return std::move(tier().lease(keys(first, count))).value();
  }
  [[nodiscard]] TierSnapshot snapshot() { return tier().snapshot(); }
  [[nodiscard]] std::uint32_t num_chunks() { return all_->slab_snapshot().num_chunks; }
  /// Twice: what was asked for since the last time stays the first time.
  void drop_guests() {
    tend();
    tend();
  }
  /// So much later each time that all is due which is done now and then.
  void tend() { all_->tend(now_ += std::chrono::seconds(1)); }

 private:
  std::unique_ptr<TierDirectory> directory_;
  std::unique_ptr<Tier> all_;
  std::chrono::steady_clock::time_point now_ = std::chrono::steady_clock::now();
};

}  // namespace kvferry::cpu_tier
