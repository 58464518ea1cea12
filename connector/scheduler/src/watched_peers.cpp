// SPDX-License-Identifier: Apache-2.0
#include "watched_peers.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
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
using recorder::EventKind;
using recorder::halves;
using recorder::PeerAnswer;
using recorder::Recorder;

namespace {

/// One event of this answer.
class Answer {
 public:
  Answer(const PeerJournal& journal, PeerAnswer what) : to_(journal.to()), what_(what) {}

  [[nodiscard]] bool is_on() const { return to_ != nullptr; }
  template <class... Words>
  void put(std::size_t number, Words... words) const {
    if (is_on()) to_->put(EventKind::kPeers, flags(), static_cast<std::uint32_t>(number), words...);
  }
  /// An answer with these slots.
  void put_slots(std::size_t number, std::span<const SlotId> slots) const {
    Recorder::Draft to = draft(number, (slots.size() + 1) / 2);
    to.add_halves(slots);
    to.end();
  }
  [[nodiscard]] Recorder::Draft draft(std::size_t number, std::size_t num_words) const {
    return to_->draft(EventKind::kPeers, flags(), static_cast<std::uint32_t>(number), num_words);
  }

 private:
  [[nodiscard]] std::uint8_t flags() const { return static_cast<std::uint8_t>(what_); }

  Recorder* const to_;
  const PeerAnswer what_;
};

class WatchedPeerSlots final : public PeerSlots {
 public:
  WatchedPeerSlots(const PeerJournal& journal, const ChunkShape& shape,
                   std::unique_ptr<PeerSlots> slots)
      : journal_(journal), shape_(shape), slots_(std::move(slots)) {}

  void begin_fill(std::span<const SlotId> slots, std::uint32_t num_free) override {
    slots_->begin_fill(slots, num_free);
  }
  void publish(std::span<const SlotId> slots, const BlockIndex& index) override {
    slots_->publish(slots, index);
  }
  void abandon(std::span<const SlotId> slots) override { slots_->abandon(slots); }
  std::size_t refill_unused(std::span<SlotId> slots) override {
    return noted(PeerAnswer::kRefilled, slots, slots_->refill_unused(slots));
  }
  std::size_t evict(std::span<SlotId> slots) override {
    return noted(PeerAnswer::kEvicted, slots, slots_->evict(slots));
  }
  std::size_t forget(std::span<SlotId> slots) override {
    return noted(PeerAnswer::kForgotten, slots, slots_->forget(slots));
  }
  std::size_t make_free(std::span<SlotId> slots) override {
    return noted(PeerAnswer::kFreed, slots, slots_->make_free(slots));
  }
  [[nodiscard]] bool any_read(SlotRange range) const override {
    const bool any = slots_->any_read(range);
    answer(PeerAnswer::kRead).put(any ? 1 : 0);
    return any;
  }
  void read_keys(SlotId first, std::span<std::optional<BlockKey>> keys) const override;

  void find(std::span<const BlockKey> keys, std::span<SlotId> slots) override {
    note_found(slots, [&] { slots_->find(keys, slots); });
  }
  void find_prefix(std::span<const BlockKey> keys, std::span<SlotId> slots) override {
    note_found(slots, [&] { slots_->find_prefix(keys, slots); });
  }
  void mark_held(std::span<const BlockKey> keys, std::span<SlotId> slots) const override;
  [[nodiscard]] std::size_t ask_for(std::span<const SlotId> slots) override {
    return slots_->ask_for(slots);
  }
  bool hide(std::span<SlotId> slots) override { return slots_->hide(slots); }
  void lease(std::span<const SlotId> slots) override { slots_->lease(slots); }
  bool end_leases(std::span<const SlotId> slots) override { return slots_->end_leases(slots); }
  void leave_behind(std::span<const SlotId> slots) override { slots_->leave_behind(slots); }
  bool shun(std::span<const SlotId> slots) override { return slots_->shun(slots); }
  void withdraw(std::span<const SlotId> slots) override { slots_->withdraw(slots); }
  [[nodiscard]] std::vector<SlotId> take_withdrawn() override;
  bool hide_all() override { return slots_->hide_all(); }
  [[nodiscard]] bool let_go(SlotRange range) override { return slots_->let_go(range); }
  bool drop_idle() override { return slots_->drop_idle(); }
  [[nodiscard]] cpu_tier::GuestCounts guests() const override { return slots_->guests(); }
  void check_invariants(const cpu_tier::SlotTable& table) const override {
    slots_->check_invariants(table);
  }

 private:
  [[nodiscard]] Answer answer(PeerAnswer what) const { return {journal_, what}; }
  /// The first `count` of the slots were changed. Their order is new only if some were, and some
  /// were not.
  [[nodiscard]] std::size_t noted(PeerAnswer what, std::span<const SlotId> slots,
                                  std::size_t count) const {
    const Answer to = answer(what);
    if (!to.is_on()) return count;
    const bool is_new = count > 0 && count < slots.size();
    to.put_slots(count, is_new ? slots : std::span<const SlotId>());
    return count;
  }
  /// Records which absent slots `find` replaces, if there are any absent ones.
  template <class Find>
  void note_found(std::span<SlotId> slots, const Find& find);

  const PeerJournal& journal_;
  const ChunkShape shape_;
  const std::unique_ptr<PeerSlots> slots_;
};

void WatchedPeerSlots::read_keys(SlotId first, std::span<std::optional<BlockKey>> keys) const {
  slots_->read_keys(first, keys);
  const Answer to = answer(PeerAnswer::kKeys);
  if (!to.is_on()) return;
  const auto count = static_cast<std::size_t>(
      std::count_if(keys.begin(), keys.end(), [](const auto& key) { return key.has_value(); }));
  Recorder::Draft draft = to.draft(count, 3 * count);
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    if (!keys[i]) continue;
    draft.add(halves(i, std::uint32_t{keys[i]->group} << 16U | keys[i]->hash_bytes));
    draft.add(keys[i]->folded_hash());
    draft.add(keys[i]->weights);
  }
  draft.end();
}

template <class Find>
void WatchedPeerSlots::note_found(std::span<SlotId> slots, const Find& find) {
  const Answer to = answer(PeerAnswer::kFound);
  if (!to.is_on() || !BlockIndex::any_absent(slots)) return find();
  // Allocated before anything is found, because nothing may fail afterwards.
  const std::vector<SlotId> before(slots.begin(), slots.end());
  find();
  std::size_t count = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) count += slots[i] != before[i] ? 1 : 0;
  Recorder::Draft draft = to.draft(count, count);
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    if (slots[i] != before[i]) draft.add(halves(i, slots[i].value()));
  }
  draft.end();
}

void WatchedPeerSlots::mark_held(std::span<const BlockKey> keys, std::span<SlotId> slots) const {
  const Answer to = answer(PeerAnswer::kHeld);
  const bool is_noted = to.is_on() && BlockIndex::any_absent(slots);
  slots_->mark_held(keys, slots);
  if (!is_noted) return;
  const auto count = static_cast<std::size_t>(std::count(slots.begin(), slots.end(), kHeldByPeer));
  Recorder::Draft draft = to.draft(count, (count + 1) / 2);
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == kHeldByPeer) draft.add_half(i);
  }
  draft.end();
}

// It is asked for each class in each period, so it says for which one, and nothing if there is
// none.
std::vector<SlotId> WatchedPeerSlots::take_withdrawn() {
  std::vector<SlotId> withdrawn = slots_->take_withdrawn();
  const Answer to = answer(PeerAnswer::kWithdrawn);
  if (!to.is_on() || withdrawn.empty()) return withdrawn;
  Recorder::Draft draft = to.draft(withdrawn.size(), 1 + (withdrawn.size() + 1) / 2);
  draft.add(halves(shape_.num_slots, shape_.slab_class));
  draft.add_halves(std::span<const SlotId>(withdrawn));
  draft.end();
  return withdrawn;
}

class WatchedPeers final : public cpu_tier::Peers {
 public:
  WatchedPeers(const PeerJournal& journal, std::unique_ptr<cpu_tier::Peers> peers)
      : journal_(journal), peers_(std::move(peers)) {}

  [[nodiscard]] std::unique_ptr<PeerSlots> slots_of(const ChunkShape& shape, BlockIndex& index,
                                                    std::uint32_t max_slots) override {
    return std::make_unique<WatchedPeerSlots>(journal_, shape,
                                              peers_->slots_of(shape, index, max_slots));
  }
  void grow_to(std::uint32_t num_chunks) override { peers_->grow_to(num_chunks); }
  [[nodiscard]] std::uint32_t num_free_chunks() const override { return peers_->num_free_chunks(); }
  [[nodiscard]] std::uint32_t num_obtainable_chunks() const override {
    return noted(PeerAnswer::kObtainable, peers_->num_obtainable_chunks());
  }
  [[nodiscard]] TakenChunks take_chunks(std::uint32_t most) override {
    const TakenChunks taken = peers_->take_chunks(most);
    const Answer to(journal_, PeerAnswer::kTaken);
    if (taken.count == 0) {
      to.put(0);
    } else {
      const ChunkShape shape = taken.holds.value_or(ChunkShape{});
      to.put(taken.count, halves(taken.first.value(), taken.holds ? 1 : 0),
             halves(shape.num_slots, shape.slab_class));
    }
    return taken;
  }
  [[nodiscard]] bool divide(const TakenChunks& chunks, const ChunkShape& shape) override {
    return noted(PeerAnswer::kDivided, peers_->divide(chunks, shape));
  }
  bool give_up(ChunkId chunk) override {
    return noted(PeerAnswer::kGivenUp, peers_->give_up(chunk));
  }
  bool take_out(ChunkId first, std::uint32_t count) override {
    return peers_->take_out(first, count);
  }
  void put_back(ChunkId first, std::uint32_t count) override { peers_->put_back(first, count); }
  [[nodiscard]] std::uint32_t tend(std::uint32_t num_wanted,
                                   std::chrono::seconds coldest_age) override {
    // Mostly none, in each period.
    const std::uint32_t num_to_give = peers_->tend(num_wanted, coldest_age);
    if (num_to_give > 0) Answer(journal_, PeerAnswer::kWanted).put(num_to_give);
    return num_to_give;
  }
  void narrow_name_space(std::uint64_t by) override { peers_->narrow_name_space(by); }
  void leave_name_space() override { peers_->leave_name_space(); }
  [[nodiscard]] bool outlives_tier() const override { return peers_->outlives_tier(); }

 private:
  template <class Value>
  [[nodiscard]] Value noted(PeerAnswer what, Value value) const {
    Answer(journal_, what).put(static_cast<std::size_t>(value));
    return value;
  }

  const PeerJournal& journal_;
  const std::unique_ptr<cpu_tier::Peers> peers_;
};

}  // namespace

std::unique_ptr<cpu_tier::Peers> PeerJournal::watched(std::unique_ptr<cpu_tier::Peers> peers) {
  if (to_ == nullptr) return peers;
  return std::make_unique<WatchedPeers>(*this, std::move(peers));
}

}  // namespace kvferry::connector
