// SPDX-License-Identifier: Apache-2.0
// ObjectStore: what an earlier process left in its memory.
#include "kvferry/base/check.hpp"
#include "kvferry/lmcache/object_key.hpp"
#include "kvferry/lmcache/object_store.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

namespace kvferry::lmcache {
namespace {

/// The key of a slot that is to stay free: no digest of a text has that length.
cpu_tier::BlockKey filler(std::uint32_t chunk, std::uint32_t index) {
  const std::array<std::uint32_t, 2> number = {chunk, index};
  return cpu_tier::BlockKey::make(std::as_bytes(std::span(number)), GroupId(0));
}

struct DigestHash {
  std::size_t operator()(const cpu_tier::BlockKey& key) const { return key.mixed(); }
};

}  // namespace

struct ObjectStore::KeptChunk {
  std::uint32_t place = 0;
  std::uint64_t slot_bytes = 0;
  std::vector<std::optional<Digest>> slots;
};

std::optional<std::string_view> ObjectStore::kept_key(std::uint32_t place, std::uint32_t index,
                                                      std::uint64_t slot_bytes) const {
  const SlotRecord& record = memory_->record(place, index);
  const std::uint64_t word = record.word.load(std::memory_order_acquire);
  if (SlotRecord::state_of(word) != RecordState::kReadable) return std::nullopt;
  const bool is_inline = record.key_bytes <= SlotRecord::kInlineKeyBytes;
  const std::uint64_t behind = is_inline ? 0 : record.key_bytes;
  if (record.value_bytes > slot_bytes || behind > slot_bytes - record.value_bytes) {
    return std::nullopt;
  }
  const char* const text =
      is_inline ? record.key.data()
                : reinterpret_cast<const char*>(memory_->chunk(place) + index * slot_bytes +
                                                record.value_bytes);
  const std::string_view key(text, record.key_bytes);
  if (record.check != record_check(key, SlotRecord::number_of(word), record.value_bytes)) {
    return std::nullopt;
  }
  return key;
}

std::vector<ObjectStore::KeptChunk> ObjectStore::read_kept() {
  std::vector<KeptChunk> kept;
  // Of two records of one key the later one counts: its process ended between the two.
  struct Latest {
    std::uint64_t number = 0;
    std::size_t chunk = 0;
    std::size_t slot = 0;
  };
  std::unordered_map<Digest, Latest, DigestHash> latest;
  for (std::uint32_t place = 0; place < geometry_.num_chunks; ++place) {
    const std::uint64_t slot_bytes = memory_->slot_bytes()[place].load(std::memory_order_acquire);
    const std::uint64_t most = geometry_.chunk_bytes - kRecordBytes;
    const bool known =
        class_of_bytes_.contains(slot_bytes) || classes_.size() < cpu_tier::SlabTier::kMaxClasses;
    if (slot_bytes < geometry_.least_slot_bytes || slot_bytes > most || !known ||
        slot_bytes_of(geometry_, slot_bytes, 0) != slot_bytes) {
      memory_->slot_bytes()[place].store(0, std::memory_order_release);
      continue;
    }
    KeptChunk chunk{place, make_class(slot_bytes).slot_bytes, {}};
    chunk.slots.resize(slots_per_chunk(geometry_, slot_bytes));
    for (std::uint32_t i = 0; i < chunk.slots.size(); ++i) {
      const auto key = kept_key(place, i, slot_bytes);
      std::atomic<std::uint64_t>& word = memory_->record(place, i).word;
      if (!key) {
        word.store(0, std::memory_order_release);
        continue;
      }
      const std::uint64_t number = SlotRecord::number_of(word.load(std::memory_order_relaxed));
      next_number_ = std::max(next_number_, number + 1);
      const Digest digest = digest_(*key);
      const auto [known_one, is_new] = latest.try_emplace(digest, Latest{number, kept.size(), i});
      if (!is_new) {
        Latest& other = known_one->second;
        if (number < other.number) {
          word.store(0, std::memory_order_release);
          continue;
        }
        KeptChunk& of_other = other.chunk == kept.size() ? chunk : kept[other.chunk];
        of_other.slots[other.slot].reset();
        memory_->record(of_other.place, static_cast<std::uint32_t>(other.slot)).word.store(0);
        other = {number, kept.size(), i};
      }
      chunk.slots[i] = digest;
    }
    kept.push_back(std::move(chunk));
  }
  return kept;
}

void ObjectStore::recover() {
  const std::vector<KeptChunk> kept = read_kept();
  // A fresh tier gives chunks from the first on: those that are kept are to be these.
  std::vector<bool> is_kept(geometry_.num_chunks);
  std::uint32_t next = 0;
  for (const KeptChunk& chunk : kept) {
    chunk_places_[next++] = chunk.place;
    is_kept[chunk.place] = true;
  }
  for (std::uint32_t place = 0; place < geometry_.num_chunks; ++place) {
    if (!is_kept[place]) chunk_places_[next++] = place;
  }
  // All slots of the chunks are taken, so that each key gets the slot that its value lies in; those
  // without a key are given back at the end.
  std::vector<cpu_tier::Reservation> fillers;
  for (std::uint32_t chunk = 0; chunk < kept.size(); ++chunk) {
    take_over(kept[chunk], chunk, fillers);
  }
  fillers.clear();
  for (SizeClass& one : classes_) one.num_slots_seen = slabs_.tier(one.id).snapshot().num_slots;
}

void ObjectStore::take_over(const KeptChunk& kept, std::uint32_t chunk,
                            std::vector<cpu_tier::Reservation>& fillers) {
  const SizeClass& mine = *find_class(kept.slot_bytes);
  for (std::uint32_t i = 0; i < kept.slots.size(); ++i) {
    const Digest key = kept.slots[i] ? *kept.slots[i] : filler(chunk, i);
    auto reserved = slabs_.reserve(mine.id, {&key, 1});
    KVFERRY_CHECK(
        reserved.ok() && reserved.value().slots()[0] == SlotId(chunk * mine.slots_per_chunk + i),
        "a fresh tier gave another slot than the next one of its chunk");
    if (kept.slots[i]) {
      slabs_.tier(mine.id).commit(std::move(reserved).value().hand_over());
    } else {
      fillers.push_back(std::move(reserved).value());
    }
  }
}

}  // namespace kvferry::lmcache
