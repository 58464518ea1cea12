// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "one_class.hpp"
#include "tier_file.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::fuzz {

/// An engine instance at work in the tier of a file: its slots of two sizes, what it is filling and
/// what it has leased. Checks after each step that it holds nothing that is another's, and that
/// what it was given under a key is that key's. One thread.
class TierLife {
 public:
  static constexpr std::uint32_t kNumClasses = 2;
  static constexpr std::array<std::uint32_t, kNumClasses> kSlotsPerChunk{4, 8};
  static constexpr std::uint64_t kNumKeys = 40;

  struct Options {
    std::uint32_t number = 0;  ///< Unique for a life.
    std::uint64_t name_space = 1;
    bool is_patient = false;  ///< Whether quarantine lasts for this life.
  };
  /// Throws as JoinedTier::join().
  TierLife(const TierFile& file, const Options& options);
  /// Ends all.
  ~TierLife();
  TierLife(const TierLife&) = delete;
  TierLife& operator=(const TierLife&) = delete;

  void begin_store(std::uint32_t slab_class, std::uint64_t first_key, std::size_t count);
  /// The oldest: it has succeeded, or not.
  void end_store(bool succeeded);
  void lease(std::uint32_t slab_class, std::uint64_t first_key, std::size_t count);
  void end_lease();
  /// What is leased last turns out to be wrong.
  void forget();
  void reset();
  void tend();
  void sweep();

  /// Everything that it holds is what it was.
  void check() const;
  /// All that are at work at once: no slot is two's.
  static void check_apart(std::span<const std::unique_ptr<TierLife>> lives);
  /// Alone in the tier, with what quarantine there was over: it can have all of it.
  void expect_all_of_it();

 private:
  struct Filling {
    std::uint32_t slab_class = 0;
    std::vector<std::uint64_t> keys;
    cpu_tier::WritableSlots slots;
    std::uint64_t name_space = 0;
  };
  struct Leased {
    std::uint32_t slab_class = 0;
    std::vector<std::uint64_t> keys;
    cpu_tier::Lease lease;
    std::uint64_t name_space = 0;
  };
  [[nodiscard]] std::span<std::byte> bytes_of(std::uint32_t slab_class, SlotId slot) const;
  [[nodiscard]] static std::vector<std::uint64_t> numbers(std::uint32_t slab_class,
                                                          std::uint64_t first, std::size_t count);
  [[nodiscard]] static std::vector<cpu_tier::BlockKey> keys_of(
      std::span<const std::uint64_t> numbers);
  [[nodiscard]] cpu_tier::OneClass tier(std::uint32_t slab_class) {
    return {*all_, SlabClassId(slab_class)};
  }

  const TierFile& file_;
  const std::uint32_t number_;
  std::uint64_t name_space_;
  std::uint64_t num_resets_ = 0;
  std::unique_ptr<cpu_tier::JoinedTier> joined_;
  std::unique_ptr<cpu_tier::Tier> all_;
  /// So much later at each tend() that all is due which is done now and then.
  std::chrono::steady_clock::time_point now_ = std::chrono::steady_clock::now();
  std::vector<Filling> filling_;
  std::vector<Leased> leased_;
};

}  // namespace kvferry::fuzz
