// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/cpu_tier/peers/tier_keeper.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace kvferry::bench {

/// The shape of a shared tier's metadata, and of an engine's traffic on it: prompts return at
/// random, and the tier holds half of them.
struct SharedWorkShape {
  static constexpr std::uint32_t kChunkSlots = 64;
  static constexpr std::uint32_t kPromptBlocks = 128;

  std::uint32_t num_chunks = 0;
  /// Bytes that are copied into a slot when a block is stored, and out of it when it is loaded; 0:
  /// nothing is copied.
  std::uint64_t block_bytes = 0;
  /// All prompts are divided into this many parts, which engines take by turns; 1: all engines ask
  /// for the same prompts.
  std::uint32_t num_parts = 1;
  std::uint64_t seed = 0;

  [[nodiscard]] std::uint32_t num_slots() const { return num_chunks * kChunkSlots; }
  [[nodiscard]] std::uint32_t num_prompts() const { return 2 * num_slots() / kPromptBlocks; }
  [[nodiscard]] cpu_tier::SharedTierOptions tier_at(const std::filesystem::path& path) const;
};

/// A scheduler side's part of a shared tier, with blocks of one size.
struct SharedEngine {
  static constexpr SlabClassId kOnly{0};

  /// Joins or makes the tier. Throws like cpu_tier::JoinedTier::join().
  [[nodiscard]] static std::unique_ptr<cpu_tier::JoinedTier> join(
      const cpu_tier::SharedTierOptions& tier, std::string name);
  /// Makes its own tables for everything that the tier can hold.
  SharedEngine(std::unique_ptr<cpu_tier::JoinedTier> member, std::uint32_t chunk_slots,
               const cpu_tier::TierOptions& options);

  std::unique_ptr<cpu_tier::JoinedTier> joined;
  cpu_tier::Tier tier;
  std::optional<cpu_tier::TierKeeper> keeper;
};

/// An engine instance that uses a tier like a scheduler. In each step it looks up a prompt, leases
/// the blocks that the tier holds, loads them, ends the lease, and stores the other blocks. The
/// content of a block identifies it, and every loaded block is checked. Used by one thread, besides
/// the keeper's.
class SharedWork {
 public:
  /// Joins the tier at `path`. `engine` chooses its part of the prompts, and their order. Throws
  /// like SharedEngine.
  SharedWork(const SharedWorkShape& shape, const std::filesystem::path& path, std::string name,
             std::size_t engine);

  struct Step {
    std::uint32_t num_found = 0;
    std::uint32_t num_stored = 0;
  };
  Step step();

 private:
  /// The blocks that neither this instance nor another one holds or stores now.
  [[nodiscard]] std::vector<cpu_tier::BlockKey> wanted(std::span<const cpu_tier::BlockKey> keys);
  /// The slot's bytes in the arena.
  [[nodiscard]] std::span<std::byte> bytes_of(SlotId slot) const;
  [[nodiscard]] std::span<std::byte> next_of_pool();
  void load(SlotId slot, const cpu_tier::BlockKey& key);
  void store(SlotId slot, const cpu_tier::BlockKey& key);

  const std::uint64_t block_bytes_;
  SharedEngine engine_;
  std::optional<cpu_tier::HostMapping> arena_;
  /// Stands for an engine's device memory: too large for a cache. Blocks use its parts by turns.
  std::vector<std::byte> pool_;
  std::uint64_t next_block_ = 0;
  std::vector<std::vector<cpu_tier::BlockKey>> prompts_;
  std::mt19937_64 random_;
};

}  // namespace kvferry::bench
