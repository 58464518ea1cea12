// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/cpu_tier/peers/tier_layout.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace kvferry::cpu_tier {

/// The memory of a shared tier that this process and its forked children have, and a file for their
/// locks. A slot's bytes are four words.
class SharedTierRig {
 public:
  static constexpr std::size_t kSlotWords = 4;
  using Slot = std::array<std::atomic<std::uint64_t>, kSlotWords>;

  explicit SharedTierRig(const TierShape& shape)
      : shape_(shape), places_(tier_places(shape, kTierPageBytes)) {
    std::ofstream(path_) << "locks";
    const std::uint64_t num_slots = std::uint64_t{shape.num_chunks} * shape.max_chunk_slots;
    bytes_ = places_.arenas + num_slots * sizeof(Slot);
    void* const memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
    memory_ = static_cast<std::byte*>(memory);
  }
  ~SharedTierRig() {
    ::munmap(memory_, bytes_);
    std::filesystem::remove(path_);
  }
  SharedTierRig(const SharedTierRig&) = delete;
  SharedTierRig& operator=(const SharedTierRig&) = delete;

  [[nodiscard]] std::unique_ptr<TierDirectory> join(const std::string& name,
                                                    std::uint64_t name_space = 1) const {
    return join({.name = name, .name_space = name_space, .grace = std::chrono::milliseconds(1)});
  }
  [[nodiscard]] std::unique_ptr<TierDirectory> join(const TierDirectory::Identity& identity) const {
    return std::make_unique<TierDirectory>(std::span(memory_, places_.arenas), places_, shape_,
                                           path_, identity);
  }
  [[nodiscard]] Slot& slot(SlotPlace place) const {
    auto* const slots = reinterpret_cast<Slot*>(memory_ + places_.arenas);
    return slots[number_of(place)];
  }
  /// As the tier's words are, whoever has them.
  [[nodiscard]] SlotWord word(SlotPlace place) const {
    auto* const lines = reinterpret_cast<const SlotLine*>(memory_ + places_.slots);
    return {lines[number_of(place)].word.load()};
  }
  [[nodiscard]] const ChunkRecord& chunk(ChunkId chunk) const {
    return reinterpret_cast<const ChunkRecord*>(memory_ + places_.chunks)[chunk.value()];
  }
  [[nodiscard]] const InstanceRecord& instance(std::uint32_t number) const {
    return reinterpret_cast<const InstanceRecord*>(memory_ + places_.instances)[number];
  }
  /// The metadata themselves, for tests that damage them.
  [[nodiscard]] SlotLine& line(SlotPlace place) const {
    return reinterpret_cast<SlotLine*>(memory_ + places_.slots)[number_of(place)];
  }
  [[nodiscard]] ChunkRecord& unsafe_chunk(ChunkId chunk) const {
    return reinterpret_cast<ChunkRecord*>(memory_ + places_.chunks)[chunk.value()];
  }
  [[nodiscard]] InstanceRecord& unsafe_instance(std::uint32_t number) const {
    return reinterpret_cast<InstanceRecord*>(memory_ + places_.instances)[number];
  }
  [[nodiscard]] std::span<std::atomic<std::uint64_t>> hints() const {
    return {reinterpret_cast<std::atomic<std::uint64_t>*>(memory_ + places_.hints),
            places_.num_hints};
  }
  [[nodiscard]] std::uint64_t number_of(SlotPlace place) const {
    return std::uint64_t{place.chunk.value()} * shape_.max_chunk_slots + place.index;
  }
  [[nodiscard]] const TierShape& shape() const { return shape_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  [[nodiscard]] static BlockKey key(std::uint64_t number) {
    return BlockKey::make(std::as_bytes(std::span(&number, 1)), GroupId(0));
  }
  /// What a slot holds for that key.
  static void write(Slot& slot, std::uint64_t key_number) {
    for (std::size_t i = 0; i < kSlotWords; ++i) {
      slot[i].store(key_number * 4 + i + 1, std::memory_order_relaxed);
    }
  }
  [[nodiscard]] static bool is_right(const Slot& slot, std::uint64_t key_number) {
    for (std::size_t i = 0; i < kSlotWords; ++i) {
      if (slot[i].load(std::memory_order_relaxed) != key_number * 4 + i + 1) return false;
    }
    return true;
  }
  /// Stores a key in a slot of an own chunk.
  [[nodiscard]] bool store(TierDirectory& directory, SlotPlace place,
                           std::uint64_t key_number) const {
    if (!directory.begin_fill(place)) return false;
    write(slot(place), key_number);
    directory.publish(place, key(key_number));
    return true;
  }

 private:
  const TierShape shape_;
  const TierPlaces places_;
  const std::filesystem::path path_ =
      "/dev/shm/kvferry-shared-tier-rig-" + std::to_string(::getpid());
  std::uint64_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace kvferry::cpu_tier
