// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/cpu_tier/memory/memory_placement.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>

namespace kvferry::cpu_tier {

/// Threads (oneTBB's) that make memory resident together. Each is bound to the placement's node
/// while it does. One call at a time.
class Populator {
 public:
  /// `num_threads` 0: one for each processor of the node, or of the machine, and at most 16. More
  /// gain nothing (reference: 8 GiB take 1.09 s on 8 threads and 0.92 s on 32, dynamo#13710), and
  /// an engine starts at the same time. Never more than the process may run at once.
  explicit Populator(MemoryPlacement placement, std::uint32_t num_threads = 0);
  ~Populator();
  Populator(const Populator&) = delete;
  Populator& operator=(const Populator&) = delete;

  [[nodiscard]] std::uint32_t num_threads() const { return num_threads_; }

  /// Makes every page of `part` of `mapping` resident. Returns false if it was stopped first.
  /// Throws ResourceError. In both cases some pages are resident.
  [[nodiscard]] bool populate(const HostMapping& mapping, std::span<std::byte> part,
                              const std::stop_token& stop = {}) const;

 private:
  struct Team;
  MemoryPlacement placement_;
  std::uint32_t num_threads_;
  std::unique_ptr<Team> team_;
};

}  // namespace kvferry::cpu_tier
