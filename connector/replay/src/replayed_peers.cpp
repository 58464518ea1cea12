// SPDX-License-Identifier: Apache-2.0
#include "replayed_peers.hpp"

#include "kvferry/cpu_tier/peers/guest_slots.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::connector {

using cpu_tier::BlockIndex;
using cpu_tier::BlockKey;
using cpu_tier::ChunkShape;
using cpu_tier::PeerSlots;
using cpu_tier::SlotRange;
using cpu_tier::TakenChunks;
using recorder::Event;
using recorder::PeerAnswer;

std::optional<Event> PeerAnswers::next(PeerAnswer what, std::optional<std::uint64_t> first_word) {
  if (answers_.empty() || answers_.front().head.flags() != static_cast<std::uint8_t>(what)) {
    return std::nullopt;
  }
  const Event answer = answers_.front();
  if (first_word && (answer.words.empty() || answer.words[0] != *first_word)) return std::nullopt;
  answers_.pop_front();
  return answer;
}

namespace {

/// The answer's 32-bit values from `first` on, `count` of them, or as many as there are.
std::vector<std::uint32_t> halves_of(const Event& answer, std::size_t first, std::size_t count) {
  std::vector<std::uint32_t> halves;
  const std::size_t end = std::min(first + count, answer.num_halves());
  halves.reserve(end - std::min(first, end));
  for (std::size_t i = first; i < end; ++i) halves.push_back(answer.half(i));
  return halves;
}

/// A number that is the whole answer.
std::uint32_t number_in(PeerAnswers& answers, PeerAnswer what, std::uint32_t otherwise) {
  const std::optional<Event> answer = answers.next(what);
  return answer ? answer->number() : otherwise;
}

/// Leases the slot that the recorded lookup found.
class FoundLease final : public cpu_tier::GuestLeases {
 public:
  void find(std::optional<SlotId> slot) { found_ = slot; }
  [[nodiscard]] std::optional<SlotId> lease(const BlockKey&) override {
    return std::exchange(found_, std::nullopt);
  }
  void end_lease(SlotId) override {}
  void leave_lease(SlotId) override {}
  void shun(SlotId) override {}

 private:
  std::optional<SlotId> found_;
};

class ReplayedPeerSlots final : public PeerSlots {
 public:
  /// `is_own` says which chunks are the tier's.
  ReplayedPeerSlots(PeerAnswers& answers, const std::vector<bool>& is_own, const ChunkShape& shape,
                    BlockIndex& index, std::uint32_t max_slots)
      : answers_(answers),
        is_own_(is_own),
        shape_(shape),
        index_(index),
        max_slots_(max_slots),
        guests_(lease_, index, max_slots) {}

  void begin_fill(std::span<const SlotId>, std::uint32_t) override {}
  void publish(std::span<const SlotId>, const BlockIndex&) override {}
  void abandon(std::span<const SlotId>) override {}
  std::size_t refill_unused(std::span<SlotId> slots) override {
    return changed(PeerAnswer::kRefilled, slots);
  }
  std::size_t evict(std::span<SlotId> slots) override {
    return changed(PeerAnswer::kEvicted, slots);
  }
  std::size_t forget(std::span<SlotId> slots) override {
    return changed(PeerAnswer::kForgotten, slots);
  }
  std::size_t make_free(std::span<SlotId> slots) override {
    return changed(PeerAnswer::kFreed, slots);
  }
  [[nodiscard]] bool any_read(SlotRange) const override {
    return number_in(answers_, PeerAnswer::kRead, 0) != 0;
  }
  void read_keys(SlotId first, std::span<std::optional<BlockKey>> keys) const override;

  void find(std::span<const BlockKey> keys, std::span<SlotId> slots) override;
  void find_prefix(std::span<const BlockKey> keys, std::span<SlotId> slots) override {
    find(keys, slots);
  }
  void mark_held(std::span<const BlockKey> keys, std::span<SlotId> slots) const override;
  [[nodiscard]] std::size_t ask_for(std::span<const SlotId> slots) override {
    return guests_.ask_for(slots);
  }
  bool hide(std::span<SlotId> slots) override { return guests_.hide(slots); }
  void lease(std::span<const SlotId> slots) override { guests_.lease(slots); }
  bool end_leases(std::span<const SlotId> slots) override { return guests_.end_leases(slots); }
  void leave_behind(std::span<const SlotId> slots) override { guests_.leave_behind(slots); }
  bool shun(std::span<const SlotId> slots) override { return guests_.shun(slots); }
  void withdraw(std::span<const SlotId>) override {}
  [[nodiscard]] std::vector<SlotId> take_withdrawn() override;
  bool hide_all() override { return guests_.hide_all(); }
  [[nodiscard]] bool let_go(SlotRange range) override { return guests_.let_go(range); }
  bool drop_idle() override { return guests_.drop_idle(); }
  [[nodiscard]] bool has_guest_in(std::uint32_t chunk) const {
    const std::uint32_t first = chunk * shape_.num_slots;
    const std::uint32_t end = std::min(first + shape_.num_slots, max_slots_);
    for (std::uint32_t slot = first; slot < end; ++slot) {
      if (guests_.knows(SlotId(slot))) return true;
    }
    return false;
  }
  [[nodiscard]] cpu_tier::GuestCounts guests() const override { return guests_.counts(); }
  void check_invariants(const cpu_tier::SlotTable&) const override {}

 private:
  /// How many of the slots were changed; brings them into their recorded order.
  std::size_t changed(PeerAnswer what, std::span<SlotId> slots);
  /// Whether a lookup can have found this slot: it is neither an own one nor a guest, and no key
  /// leads to it.
  [[nodiscard]] bool may_be_found(SlotId slot) const;

  PeerAnswers& answers_;
  const std::vector<bool>& is_own_;
  const ChunkShape shape_;
  BlockIndex& index_;
  const std::uint32_t max_slots_;
  FoundLease lease_;
  cpu_tier::GuestSlots guests_;
};

std::size_t ReplayedPeerSlots::changed(PeerAnswer what, std::span<SlotId> slots) {
  const std::optional<Event> answer = answers_.next(what);
  if (!answer || answer->number() >= slots.size()) return slots.size();
  if (answer->number() == 0) return 0;
  std::vector<SlotId> order;
  order.reserve(slots.size());
  for (const std::uint32_t slot : halves_of(*answer, 0, slots.size())) order.emplace_back(slot);
  if (!std::is_permutation(order.begin(), order.end(), slots.begin(), slots.end())) {
    return slots.size();
  }
  std::copy(order.begin(), order.end(), slots.begin());
  return answer->number();
}

void ReplayedPeerSlots::read_keys(SlotId, std::span<std::optional<BlockKey>> keys) const {
  std::fill(keys.begin(), keys.end(), std::nullopt);
  const std::optional<Event> answer = answers_.next(PeerAnswer::kKeys);
  for (std::size_t at = 0; answer && at + 2 < answer->words.size(); at += 3) {
    const std::size_t index = answer->low(at);
    const std::uint32_t kind = answer->high(at);
    const std::uint16_t hash_bytes = kind & 0xFFFFU;
    if (index >= keys.size() || hash_bytes == 0 || hash_bytes > BlockKey::kMaxHashBytes) continue;
    BlockKey key;
    std::memcpy(key.hash.data(), &answer->words[at + 1], sizeof(std::uint64_t));
    key.hash_bytes = hash_bytes;
    key.group = static_cast<std::uint16_t>(kind >> 16U);
    key.weights = answer->low(at + 2);
    keys[index] = key;
  }
}

bool ReplayedPeerSlots::may_be_found(SlotId slot) const {
  if (slot.value() >= max_slots_ || guests_.knows(slot)) return false;
  const std::uint32_t chunk = slot.value() / shape_.num_slots;
  if (chunk >= is_own_.size() || is_own_[chunk]) return false;
  SlotId leads_to = BlockIndex::kNoSlot;
  index_.find({&index_.key(slot), 1}, {&leads_to, 1});
  return leads_to != slot;
}

void ReplayedPeerSlots::find(std::span<const BlockKey> keys, std::span<SlotId> slots) {
  if (!BlockIndex::any_absent(slots)) return;
  const std::optional<Event> answer = answers_.next(PeerAnswer::kFound);
  for (std::size_t at = 0; answer && at < answer->words.size(); ++at) {
    const std::size_t i = answer->low(at);
    if (i >= slots.size() || slots[i] != BlockIndex::kNoSlot) continue;
    const SlotId found(answer->high(at));
    lease_.find(may_be_found(found) ? std::optional(found) : std::nullopt);
    slots[i] = guests_.find(keys[i]).value_or(BlockIndex::kNoSlot);
  }
}

void ReplayedPeerSlots::mark_held(std::span<const BlockKey>, std::span<SlotId> slots) const {
  if (!BlockIndex::any_absent(slots)) return;
  const std::optional<Event> answer = answers_.next(PeerAnswer::kHeld);
  if (!answer) return;
  for (const std::uint32_t i : halves_of(*answer, 0, answer->number())) {
    if (i < slots.size() && slots[i] == BlockIndex::kNoSlot) slots[i] = kHeldByPeer;
  }
}

std::vector<SlotId> ReplayedPeerSlots::take_withdrawn() {
  std::vector<SlotId> withdrawn;
  const std::optional<Event> answer =
      answers_.next(PeerAnswer::kWithdrawn, recorder::halves(shape_.num_slots, shape_.slab_class));
  if (!answer) return withdrawn;
  for (const std::uint32_t slot : halves_of(*answer, 2, answer->number())) {
    if (slot < max_slots_) withdrawn.emplace_back(slot);
  }
  return withdrawn;
}

class ReplayedPeers final : public cpu_tier::Peers {
 public:
  explicit ReplayedPeers(PeerAnswers& answers) : answers_(answers) {}

  [[nodiscard]] std::unique_ptr<PeerSlots> slots_of(const ChunkShape& shape, BlockIndex& index,
                                                    std::uint32_t max_slots) override {
    auto slots = std::make_unique<ReplayedPeerSlots>(answers_, is_own_, shape, index, max_slots);
    slots_.push_back(slots.get());
    return slots;
  }
  void grow_to(std::uint32_t num_chunks) override { is_own_.resize(num_chunks, false); }
  [[nodiscard]] std::uint32_t num_free_chunks() const override { return 0; }
  [[nodiscard]] std::uint32_t num_obtainable_chunks() const override {
    return std::min(number_in(answers_, PeerAnswer::kObtainable, 0),
                    static_cast<std::uint32_t>(is_own_.size()));
  }
  [[nodiscard]] TakenChunks take_chunks(std::uint32_t most) override;
  [[nodiscard]] bool divide(const TakenChunks& chunks, const ChunkShape&) override {
    const std::uint32_t chunk = chunks.first.value();
    const auto has_guest = [chunk](const auto* one) { return one->has_guest_in(chunk); };
    // A slot that is leased cannot be cleared.
    const bool all = number_in(answers_, PeerAnswer::kDivided, 1) != 0 &&
                     std::none_of(slots_.begin(), slots_.end(), has_guest);
    if (!all) is_own_[chunk] = false;
    return all;
  }
  bool give_up(ChunkId chunk) override {
    const bool given = number_in(answers_, PeerAnswer::kGivenUp, 1) != 0;
    if (given) is_own_[chunk.value()] = false;
    return given;
  }
  bool take_out(ChunkId, std::uint32_t) override { return false; }
  void put_back(ChunkId, std::uint32_t) override {}
  [[nodiscard]] std::uint32_t tend(std::uint32_t, std::chrono::seconds) override {
    return number_in(answers_, PeerAnswer::kWanted, 0);
  }
  void narrow_name_space(std::uint64_t) override {}
  void leave_name_space() override {}
  [[nodiscard]] bool outlives_tier() const override { return true; }

 private:
  PeerAnswers& answers_;
  std::vector<bool> is_own_;                     ///< By chunk.
  std::vector<const ReplayedPeerSlots*> slots_;  ///< Of all classes.
};

TakenChunks ReplayedPeers::take_chunks(std::uint32_t most) {
  if (most == 0) return {};
  const std::optional<Event> answer = answers_.next(PeerAnswer::kTaken);
  if (!answer || answer->number() != 1 || answer->words.size() < 2) return {};
  const std::uint32_t chunk = answer->low(0);
  if (chunk >= is_own_.size() || is_own_[chunk]) return {};
  is_own_[chunk] = true;
  TakenChunks taken{ChunkId(chunk), 1};
  if (answer->high(0) != 0) taken.holds = ChunkShape{answer->low(1), answer->high(1)};
  return taken;
}

}  // namespace

std::unique_ptr<cpu_tier::Peers> replayed_peers(PeerAnswers& answers) {
  return std::make_unique<ReplayedPeers>(answers);
}

}  // namespace kvferry::connector
