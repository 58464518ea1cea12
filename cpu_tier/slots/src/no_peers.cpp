// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/slots/peers.hpp"

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

/// Every slot is as the table says, except for withdrawn slots, and there are no other slots.
class OwnSlots final : public PeerSlots {
 public:
  void begin_fill(std::span<const SlotId>, std::uint32_t) override {}
  void publish(std::span<const SlotId>, const BlockIndex&) override {}
  void abandon(std::span<const SlotId>) override {}
  std::size_t refill_unused(std::span<SlotId> slots) override { return slots.size(); }
  std::size_t evict(std::span<SlotId> slots) override { return slots.size(); }
  std::size_t forget(std::span<SlotId> slots) override { return make_free(slots); }
  std::size_t make_free(std::span<SlotId> slots) override {
    if (withdrawn_.empty()) return slots.size();
    const auto end = std::partition(slots.begin(), slots.end(),
                                    [this](SlotId slot) { return !withdrawn_.contains(slot); });
    return static_cast<std::size_t>(end - slots.begin());
  }
  [[nodiscard]] bool any_read(SlotRange) const override { return false; }
  void read_keys(SlotId, std::span<std::optional<BlockKey>> keys) const override {
    std::fill(keys.begin(), keys.end(), std::nullopt);
  }

  void find(std::span<const BlockKey>, std::span<SlotId>) override {}
  void find_prefix(std::span<const BlockKey>, std::span<SlotId>) override {}
  void mark_held(std::span<const BlockKey>, std::span<SlotId>) const override {}
  [[nodiscard]] std::size_t ask_for(std::span<const SlotId>) override { return 0; }
  bool hide(std::span<SlotId>) override { return false; }
  void lease(std::span<const SlotId> slots) override { expect_none(slots); }
  bool end_leases(std::span<const SlotId> slots) override {
    expect_none(slots);
    return false;
  }
  void leave_behind(std::span<const SlotId> slots) override { expect_none(slots); }
  bool shun(std::span<const SlotId>) override { return false; }
  void withdraw(std::span<const SlotId> slots) override {
    withdrawn_.insert(slots.begin(), slots.end());
  }
  [[nodiscard]] std::vector<SlotId> take_withdrawn() override { return {}; }
  bool hide_all() override { return false; }
  [[nodiscard]] bool let_go(SlotRange) override { return true; }
  bool drop_idle() override { return false; }
  [[nodiscard]] GuestCounts guests() const override { return {}; }
  void check_invariants(const SlotTable&) const override {}

 private:
  static void expect_none(std::span<const SlotId> slots) {
    KVFERRY_CHECK(slots.empty(), "slot " + std::to_string(slots.front().value()) + " is absent");
  }

  std::unordered_set<SlotId> withdrawn_;
};

class NoPeers final : public Peers {
 public:
  [[nodiscard]] std::unique_ptr<PeerSlots> slots_of(const ChunkShape&, BlockIndex&,
                                                    std::uint32_t) override {
    return std::make_unique<OwnSlots>();
  }
  void grow_to(std::uint32_t num_chunks) override {
    const auto end = static_cast<std::uint32_t>(is_free_.size());
    if (num_chunks > end) put_back(ChunkId(end), num_chunks - end);
  }
  [[nodiscard]] std::uint32_t num_free_chunks() const override { return num_free_; }
  [[nodiscard]] std::uint32_t num_obtainable_chunks() const override { return num_free_; }
  [[nodiscard]] TakenChunks take_chunks(std::uint32_t most) override {
    if (num_free_ == 0) return {};
    while (!is_free_[lowest_]) ++lowest_;
    TakenChunks taken{ChunkId(lowest_), 0};
    while (taken.count < most && lowest_ < is_free_.size() && is_free_[lowest_]) {
      is_free_[lowest_++] = false;
      ++taken.count;
    }
    num_free_ -= taken.count;
    return taken;
  }
  [[nodiscard]] bool divide(const TakenChunks&, const ChunkShape&) override { return true; }
  bool give_up(ChunkId) override { return false; }
  bool take_out(ChunkId first, std::uint32_t count) override {
    for (std::uint32_t i = 0; i < count; ++i) num_free_ -= is_free_[first.value() + i] ? 1 : 0;
    std::fill_n(is_free_.begin() + first.value(), count, false);
    return true;
  }
  void put_back(ChunkId first, std::uint32_t count) override {
    const std::size_t end = std::size_t{first.value()} + count;
    if (is_free_.size() < end) is_free_.resize(end, false);
    std::fill_n(is_free_.begin() + first.value(), count, true);
    num_free_ += count;
    lowest_ = std::min(lowest_, first.value());
  }
  [[nodiscard]] std::uint32_t tend(std::uint32_t, std::chrono::seconds) override { return 0; }
  void narrow_name_space(std::uint64_t) override {}
  void leave_name_space() override {}
  [[nodiscard]] bool outlives_tier() const override { return false; }

 private:
  std::vector<bool> is_free_;  ///< By chunk.
  std::uint32_t num_free_ = 0;
  std::uint32_t lowest_ = 0;  ///< No chunk below it is free.
};

}  // namespace

std::unique_ptr<Peers> no_peers() { return std::make_unique<NoPeers>(); }

}  // namespace kvferry::cpu_tier
