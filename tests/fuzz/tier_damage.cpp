// SPDX-License-Identifier: Apache-2.0
#include "tier_damage.hpp"

#include "kvferry/cpu_tier/peers/tier_layout.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvferry::fuzz {
namespace {

using cpu_tier::ChunkRecord;
using cpu_tier::InstanceRecord;
using cpu_tier::SlotLine;
using cpu_tier::SlotWord;
using cpu_tier::TierPlaces;

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;

constexpr std::array<std::uint64_t, 16> kFigures{0,
                                                 1,
                                                 2,
                                                 3,
                                                 4,
                                                 7,
                                                 8,
                                                 64,
                                                 0xff,
                                                 0x1'0000,
                                                 0xffff'ffff,
                                                 0x1'0000'0000,
                                                 ~std::uint64_t{0},
                                                 ~std::uint64_t{0} - 1,
                                                 std::uint64_t{1} << 61U,
                                                 std::uint64_t{1} << 63U};

std::span<std::byte> part_of(const TierFile& file, std::uint8_t part) {
  const TierPlaces& places = file.places();
  const std::array<std::uint64_t, 6> begins{
      0, places.instances, places.chunks, places.hints, places.slots, places.tags};
  const std::size_t i = part % (begins.size() - 1);
  return file.bytes().subspan(begins[i], begins[i + 1] - begins[i]);
}

/// The `number`th piece of that size, which wraps.
std::span<std::byte> piece_of(std::span<std::byte> all, std::uint64_t number, std::size_t size) {
  const std::size_t count = all.size() / size;
  return all.subspan(count == 0 ? 0 : number % count * size, std::min(size, all.size()));
}

/// The same bytes of the earlier moment.
std::span<const std::byte> earlier(const TierFile& file, std::span<std::byte> now) {
  return file.frozen().subspan(static_cast<std::size_t>(now.data() - file.bytes().data()),
                               now.size());
}

void tear(const TierFile& file, std::span<std::byte> piece) {
  std::memcpy(piece.data(), earlier(file, piece).data(), piece.size());
}

void zero(std::span<std::byte> piece) { std::fill(piece.begin(), piece.end(), std::byte{0}); }

void swap(std::span<std::byte> a, std::span<std::byte> b) {
  // A piece that overlaps the other is cut short where the part ends.
  if (a.data() == b.data()) return;
  std::swap_ranges(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())),
                   b.begin());
}

}  // namespace

void inflict(const Damage& damage, const TierFile& file) {
  const std::span<std::byte> part = part_of(file, damage.part);
  const std::span<std::byte> line = piece_of(part, damage.where, kLine);
  const std::span<std::byte> page = piece_of(file.metadata(), damage.where, kPage);
  switch (damage.kind) {
    case Damage::Kind::kFlipBit:
      line[damage.what / 8 % line.size()] ^= std::byte{1} << damage.what % 8;
      return;
    case Damage::Kind::kSetWord: {
      const std::uint64_t figure = kFigures[damage.what % kFigures.size()];
      const std::size_t size = (damage.what & 0x100U) != 0 ? 4 : 8;
      std::memcpy(line.data() + damage.what / 0x200U * size % kLine, &figure, size);
      return;
    }
    case Damage::Kind::kTornLine:
      return tear(file, line);
    case Damage::Kind::kZeroLine:
      return zero(line);
    case Damage::Kind::kSwapLines:
      return swap(line, piece_of(part, damage.what, kLine));
    case Damage::Kind::kTornPage:
      return tear(file, page);
    case Damage::Kind::kZeroPage:
      return zero(page);
    case Damage::Kind::kSwapPages:
      return swap(page, piece_of(file.metadata(), damage.what, kPage));
    case Damage::Kind::kTornBehind: {
      const auto begin = static_cast<std::size_t>(line.data() - file.bytes().data());
      return tear(file, file.metadata().subspan(begin));
    }
  }
}

void excuse(const TierFile& file) {
  const std::uint32_t max_slots = file.shape().max_chunk_slots;
  auto* const chunks = reinterpret_cast<ChunkRecord*>(file.bytes().data() + file.places().chunks);
  auto* const instances =
      reinterpret_cast<InstanceRecord*>(file.bytes().data() + file.places().instances);
  auto* const lines = reinterpret_cast<SlotLine*>(file.bytes().data() + file.places().slots);
  // No copies of these lives go on after them. Who is told otherwise must believe it, and would
  // lose the slots until the tier is created again.
  for (std::uint32_t i = 0; i < cpu_tier::kMaxInstances; ++i) instances[i].copies_never_end = 0;
  for (std::uint32_t chunk = 0; chunk < file.shape().num_chunks; ++chunk) {
    chunks[chunk].quarantine_never_ends = 0;
    const std::uint32_t num_slots = std::min(chunks[chunk].num_slots.load(), max_slots);
    for (std::uint32_t i = 0; i < num_slots; ++i) {
      const std::uint64_t number = std::uint64_t{chunk} * max_slots + i;
      const auto content = lines[number].key.load(number);
      const std::uint32_t stamp = cpu_tier::slot_stamp(SlotWord{lines[number].word.load()},
                                                       num_slots, chunks[chunk].slab_class.load());
      if (!content || content->stamp != stamp) continue;
      // No slot of these lives was withdrawn, and one is never of use again.
      lines[number].word.fetch_and(~SlotWord{}.as_withdrawn().bits);
      std::uint64_t key_number = 0;
      std::memcpy(&key_number, content->key.hash.data(), sizeof key_number);
      write_content(file.slot({ChunkId(chunk), i}, num_slots), key_number, content->name_space);
    }
  }
}

void write_content(std::span<std::byte> slot, std::uint64_t key_number, std::uint64_t name_space) {
  // In all of it, so that slots of another size show.
  const std::uint64_t word = key_number << 16U ^ name_space << 1U ^ 1U;
  for (std::size_t at = 0; at + sizeof word <= slot.size(); at += sizeof word) {
    std::memcpy(&slot[at], &word, sizeof word);
  }
}

bool is_content(std::span<const std::byte> slot, std::uint64_t key_number,
                std::uint64_t name_space) {
  const std::uint64_t word = key_number << 16U ^ name_space << 1U ^ 1U;
  for (std::size_t at = 0; at + sizeof word <= slot.size(); at += sizeof word) {
    if (std::memcmp(&slot[at], &word, sizeof word) != 0) return false;
  }
  return true;
}

cpu_tier::BlockKey key_of(std::uint64_t key_number) {
  return cpu_tier::BlockKey::make(std::as_bytes(std::span(&key_number, 1)), GroupId(0));
}

}  // namespace kvferry::fuzz
