// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/arena_options.hpp"
#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/cpu_tier/memory/memory_claim.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>

namespace kvferry::cpu_tier {

class Populator;

/// The mapped memory of an arena, with its tags, and the threads that populate it. A source works
/// on it. One thread at a time populates; the other functions are thread-safe.
class ArenaPages {
 public:
  /// `tags` come from ArenaSource::map_tags(); null if the shape has none.
  ArenaPages(std::unique_ptr<HostMapping> mapping, std::unique_ptr<HostMapping> tags,
             const ArenaShape& shape, const ArenaOptions& options);
  ~ArenaPages();
  ArenaPages(const ArenaPages&) = delete;
  ArenaPages& operator=(const ArenaPages&) = delete;

  [[nodiscard]] const HostMapping& mapping() const { return *mapping_; }
  /// The bytes of the chunks, rounded up so that the last chunk ends at a page boundary.
  [[nodiscard]] std::span<std::byte> bytes_of(ChunkRange chunks) const;
  /// What these chunks take of the machine's memory, or of its pool of huge pages.
  [[nodiscard]] std::uint64_t needed_bytes(ChunkRange chunks) const;

  /// Checks the machine's memory limits before this many bytes of the mapping are touched. Other
  /// processes take memory too, and a shortage that the kernel detects would be a fatal signal.
  /// Throws ResourceError.
  void check_budget(std::uint64_t bytes) const;
  /// The same with a claim, for bytes that were not claimed before. Other processes see the claim
  /// until it ends.
  [[nodiscard]] std::unique_ptr<MemoryClaim> claim(std::uint64_t bytes) const;
  /// Makes the kernel take the untouched pages of a part from the options' node, if there is one.
  void prefer_node(std::span<std::byte> part) const;
  /// Makes a part resident. If transparent huge pages came too slowly, later parts use normal
  /// pages. Returns false if it was stopped first. Throws ResourceError. In both cases some pages
  /// can be resident.
  [[nodiscard]] bool populate(std::span<std::byte> part, const std::stop_token& stop);
  /// The same for a part whose pages another process has made resident. It only maps them, so its
  /// speed does not count as the speed of pages.
  [[nodiscard]] bool map_resident(std::span<std::byte> part, const std::stop_token& stop) const;

  /// Makes the tags of chunks resident, and does not change them. Returns false if it was stopped.
  /// Throws ResourceError.
  [[nodiscard]] bool populate_tags(ChunkRange chunks, const std::stop_token& stop) const;
  /// The tags of all chunks.
  [[nodiscard]] std::span<std::atomic<std::uint64_t>> tags() const;

  [[nodiscard]] const MemoryPlacement& placement() const { return placement_; }
  [[nodiscard]] bool gave_up_huge_pages() const { return gave_up_huge_pages_; }

 private:
  const ArenaShape shape_;
  const MemoryPlacement placement_;
  const double slow_bytes_per_second_;
  const MachineRoot machine_;
  const std::unique_ptr<HostMapping> mapping_;
  const std::unique_ptr<HostMapping> tags_;
  const std::unique_ptr<Populator> populator_;
  std::atomic<bool> gave_up_huge_pages_{false};
};

}  // namespace kvferry::cpu_tier
