// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/batch_copy.hpp"
#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/injection.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace kvferry::gpu {

/// Makes copies between device and host memory, and damages some of the blocks (injection.hpp). It
/// knows at any time which bytes of the host memory are not what was stored there, so that its log
/// says which blocks arrive damaged, whoever damaged them when. All copies of a device go through
/// one injector, one after the other; what the memory is written by else it does not see.
///
/// Used by the host back end and by the stand-in drivers (tests/fakes). Thread-safe. The lock is
/// held while bytes are copied, because the log is exact only if no two copies overlap in time.
class Injector {
 public:
  /// Throws ConfigError if the probability is none, or the file cannot be opened.
  Injector(InjectionOptions options, std::uint64_t seed);

  /// A gather has packed `count` blocks here: a copy from there is divided into these. A copy from
  /// memory of which nothing is known counts as one block for each run.
  void know_blocks(std::uintptr_t packed, std::uint64_t count, std::uint64_t block_bytes);
  /// Copies to the tier (kToTier) or from it (kFromTier), and damages blocks there and in between.
  void copy(InjectionWay way, std::span<const CopyRun> runs);
  /// Copies the first `end` bytes of a copy that fails. It damages nothing, and nothing is known of
  /// the blocks that it wrote.
  void copy_failing(InjectionWay way, std::span<const CopyRun> runs, std::uint64_t end);
  /// The host memory is given back, or used for something else.
  void forget(std::uintptr_t host, std::uint64_t bytes);

  /// The log since the last call.
  [[nodiscard]] std::vector<InjectionEvent> take();

 private:
  /// A block in the tier.
  struct Slot {
    std::uint64_t bytes = 0;
    /// What its bytes should be; empty: what they are.
    std::vector<std::byte> truth = {};
    InjectionEvent cause = {};  ///< The last one that touched it.
  };
  using Slots = std::map<std::uintptr_t, Slot>;
  /// What is left of the packed blocks of a gather, parts of which later ones have overwritten.
  struct Gathered {
    std::uintptr_t end = 0;
    std::uintptr_t first = 0;  ///< Where its first block was.
    std::uint64_t block_bytes = 0;
  };
  /// A block of a copy, or the part of it that one run has.
  struct Part {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::uint64_t bytes = 0;
    std::uintptr_t slot = 0;                   ///< Host address of the block's slot.
    std::uint64_t offset = 0;                  ///< Of the part, in the slot.
    Slot* known = nullptr;                     ///< Null: no store wrote it.
    std::optional<InjectionEvent> cause = {};  ///< Of a load: the last one that struck it.
  };
  /// What happens in a copy.
  struct Strike {
    InjectionEvent event;
    std::vector<std::size_t> hit;  ///< Parts; the first one is the one that was struck.
    Slots::iterator other;         ///< Of kWrongSlot.
  };

  [[nodiscard]] std::vector<Part> parts_to_tier(std::span<const CopyRun> runs)
      KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] std::vector<Part> parts_from_tier(std::span<const CopyRun> runs)
      KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t block_bytes_at(std::uintptr_t packed, std::uint64_t most) const
      KVFERRY_REQUIRES(mutex_);
  /// Which of the next `count` blocks are struck, ascending.
  [[nodiscard]] std::vector<std::size_t> draw(std::size_t count) KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) KVFERRY_REQUIRES(mutex_) {
    return random_() % bound;
  }
  /// A slot of at least `bytes`, not the one at `slot`; nothing if none was found.
  [[nodiscard]] std::optional<Slots::iterator> any_other_slot(std::uintptr_t slot,
                                                              std::uint64_t bytes)
      KVFERRY_REQUIRES(mutex_);

  void strike_in_tier() KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] Strike choose_strike(InjectionWay way, std::span<const Part> parts,
                                     std::size_t struck) KVFERRY_REQUIRES(mutex_);
  void strike_in_copy(const Strike& strike, std::span<Part> parts,
                      std::span<const std::byte> before) KVFERRY_REQUIRES(mutex_);
  /// Damages what has just been copied.
  void damage(const Strike& strike, std::span<const Part> parts, std::span<const std::byte> before)
      KVFERRY_REQUIRES(mutex_);
  /// A store has written the slot.
  [[nodiscard]] Slot& note_stored(std::uintptr_t slot, std::uint64_t bytes)
      KVFERRY_REQUIRES(mutex_);
  void note_arrived(std::span<const Part> parts) KVFERRY_REQUIRES(mutex_);
  /// To be called before an injection touches the slot, and after.
  static void keep_truth(std::uintptr_t address, Slot& slot);
  void judge(std::uintptr_t address, Slot& slot, const InjectionEvent& event)
      KVFERRY_REQUIRES(mutex_);
  /// The slot is about to hold something else.
  void end_damage(Slots::value_type& slot) KVFERRY_REQUIRES(mutex_);
  void forget_locked(std::uintptr_t host, std::uint64_t bytes) KVFERRY_REQUIRES(mutex_);
  void write(const InjectionEvent& event) KVFERRY_REQUIRES(mutex_);

  const InjectionOptions options_;
  Mutex mutex_;
  std::mt19937_64 random_ KVFERRY_GUARDED_BY(mutex_);
  std::uint64_t until_next_ KVFERRY_GUARDED_BY(mutex_) = 0;  ///< Blocks that are not struck.
  std::uint64_t num_injections_ KVFERRY_GUARDED_BY(mutex_) = 0;
  Slots slots_ KVFERRY_GUARDED_BY(mutex_);
  std::map<std::uintptr_t, Gathered> packed_ KVFERRY_GUARDED_BY(mutex_);
  std::vector<InjectionEvent> events_ KVFERRY_GUARDED_BY(mutex_);
  std::ofstream file_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
