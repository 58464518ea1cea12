// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/peers/shared_tier.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace kvferry::fuzz {

/// The file of a small shared tier, as another program that damages it sees it: made anew for each
/// input from bytes that are made once. One at a time in a process.
class TierFile {
 public:
  static constexpr std::uint32_t kNumChunks = 6;
  static constexpr std::uint64_t kChunkBytes = 4096;

  TierFile();
  ~TierFile();
  TierFile(const TierFile&) = delete;
  TierFile& operator=(const TierFile&) = delete;

  [[nodiscard]] cpu_tier::SharedTierOptions options() const;
  [[nodiscard]] const cpu_tier::TierPlaces& places() const { return places_; }
  [[nodiscard]] const cpu_tier::TierShape& shape() const { return shape_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// All of the file.
  [[nodiscard]] std::span<std::byte> bytes() const { return {bytes_, places_.end}; }
  [[nodiscard]] std::span<std::byte> metadata() const { return bytes().first(places_.arenas); }
  [[nodiscard]] std::span<std::byte> slot(cpu_tier::SlotPlace place, std::uint32_t num_slots) const;
  /// Shorter by so many bytes. The mapping must not be touched there until restore().
  void truncate(std::uint64_t bytes) const;
  /// As a tier that nobody has used.
  void restore();
  /// Whether the path leads to another file now, because this one's header said that it is of an
  /// earlier run of the machine, and of a version that this program cannot check.
  [[nodiscard]] bool is_replaced() const;

  // ---- damage ----

  /// Remembers the metadata of this moment: what a write that was torn leaves is of two moments.
  void freeze();
  [[nodiscard]] std::span<const std::byte> frozen() const { return frozen_; }

 private:
  void make();

  std::filesystem::path directory_;
  std::filesystem::path path_;
  cpu_tier::TierShape shape_;
  cpu_tier::TierPlaces places_;
  int descriptor_ = -1;
  std::byte* bytes_ = nullptr;
  std::vector<std::byte> fresh_;
  std::vector<std::byte> frozen_;
};

}  // namespace kvferry::fuzz
