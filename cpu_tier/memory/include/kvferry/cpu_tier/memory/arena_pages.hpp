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

/// The mapped memory of an arena and the threads that populate it: what a source works on. One
/// thread at a time populates; the rest is thread-safe.
class ArenaPages {
 public:
  ArenaPages(std::unique_ptr<HostMapping> mapping, const ArenaShape& shape,
             const ArenaOptions& options);
  ~ArenaPages();
  ArenaPages(const ArenaPages&) = delete;
  ArenaPages& operator=(const ArenaPages&) = delete;

  [[nodiscard]] const HostMapping& mapping() const { return *mapping_; }
  /// The last chunk ends with its page.
  [[nodiscard]] std::span<std::byte> bytes_of(ChunkRange chunks) const;

  /// Checks the machine's budget before so much of the mapping is touched: others take memory too,
  /// and a shortage noticed by the kernel would be a signal. Throws ResourceError.
  void check_budget(std::uint64_t bytes) const;
  /// The same with a claim, because nothing was claimed of these bytes before: others see it until
  /// it ends.
  [[nodiscard]] std::unique_ptr<MemoryClaim> claim(std::uint64_t bytes) const;
  /// Has the untouched pages of a part come from the options' node, if there is one.
  void prefer_node(std::span<std::byte> part) const;
  /// Makes a part resident. Gives transparent huge pages up for what comes later if these came too
  /// slowly. Returns false if it was stopped first: some pages are resident then. Throws
  /// ResourceError; the same holds.
  [[nodiscard]] bool populate(std::span<std::byte> part, const std::stop_token& stop);
  /// The same of a part whose pages another process has made resident: it only maps them, and says
  /// nothing about how fast pages come.
  [[nodiscard]] bool map_resident(std::span<std::byte> part, const std::stop_token& stop) const;

  [[nodiscard]] const MemoryPlacement& placement() const { return placement_; }
  [[nodiscard]] bool gave_up_huge_pages() const { return gave_up_huge_pages_; }

 private:
  const ArenaShape shape_;
  const MemoryPlacement placement_;
  const double slow_bytes_per_second_;
  const MachineRoot machine_;
  const std::unique_ptr<HostMapping> mapping_;
  const std::unique_ptr<Populator> populator_;
  std::atomic<bool> gave_up_huge_pages_{false};
};

}  // namespace kvferry::cpu_tier
