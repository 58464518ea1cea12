// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "meta/bare_table.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <vector>

namespace kvferry::bench {

/// Keys of 32 bytes, like those of sha256.
[[nodiscard]] cpu_tier::BlockKey key_of(std::uint64_t seed, std::uint64_t number);

/// The owner of the tier's slots.
enum class Tenancy : std::uint8_t {
  kPrivate,
  kShared  ///< In a file that other engines could share; there are none.
};

/// The shape of a tier whose metadata is measured.
struct MetaShape {
  std::uint32_t num_resident = 0;
  std::uint32_t batch = 0;  ///< Blocks of one call, at most num_resident.
  /// Blocks that were stored together: they are in neighbouring slots, and are evicted one after
  /// the other. At least one.
  std::uint32_t prefix = 1;
  cpu_tier::TierOptions policy;
  Tenancy tenancy = Tenancy::kPrivate;
  std::uint64_t seed = 0;

  /// Calls of one round, on distinct blocks: enough for a time that a clock can measure.
  [[nodiscard]] std::uint32_t num_calls() const;
  [[nodiscard]] std::uint32_t keys_per_round() const { return batch * num_calls(); }
};

/// Blocks by number and as keys.
struct MetaKeys {
  std::vector<std::uint64_t> numbers;
  std::vector<cpu_tier::BlockKey> keys;
};

/// A tier full of blocks, and a bare table with the same keys. The prefixes became readable in
/// another order than that of their slots. Used by one thread.
class MetaRig {
 public:
  /// The slab class of all blocks.
  static constexpr SlabClassId kOnly{0};

  /// The tier has `num_free` more slots than resident blocks. Throws ConfigError, std::bad_alloc.
  MetaRig(const MetaShape& shape, std::uint32_t num_free);

  [[nodiscard]] const MetaShape& shape() const { return shape_; }
  [[nodiscard]] cpu_tier::Tier& tier() { return tier_; }
  [[nodiscard]] BareTable& bare() { return bare_; }

  /// Distinct random resident blocks for one round.
  [[nodiscard]] MetaKeys draw_resident();
  /// Blocks for one round that never were in the tier.
  [[nodiscard]] MetaKeys draw_new();
  /// Blocks for one round that have been resident longest, the next one to leave an LRU tier first.
  [[nodiscard]] MetaKeys oldest() const;
  /// Notes that the round's oldest() are no longer resident, and that `stored` are, made readable
  /// call by call.
  void replace_oldest(const MetaKeys& stored);

 private:
  [[nodiscard]] MetaKeys with_keys(std::vector<std::uint64_t> numbers) const;
  void fill();

  const MetaShape shape_;
  std::unique_ptr<cpu_tier::JoinedTier> joined_;  ///< For a shared tier.
  cpu_tier::Tier tier_;
  BareTable bare_;
  std::mt19937_64 random_;
  /// Resident blocks, the next one to leave first.
  std::deque<std::uint64_t> order_;
  /// Places in order_, shuffled, and the index of the next one to draw.
  std::vector<std::uint32_t> places_;
  std::size_t next_place_ = 0;
  std::uint64_t next_number_ = 0;
};

}  // namespace kvferry::bench
