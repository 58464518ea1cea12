// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"
#include "kvferry/cpu_tier/memory/shared_file.hpp"
#include "kvferry/cpu_tier/peers/tier_header.hpp"
#include "kvferry/cpu_tier/peers/tier_layout.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

namespace kvferry::cpu_tier {

/// What the last process that has a tier open does with its file when it closes it.
enum class AtExit : std::uint8_t {
  kRemove,  ///< The memory is given back.
  kKeep     ///< What is in it is served to the engines that come.
};

/// Of a file that is there, with the capacity and the ranks that were asked for.
enum class Division : std::uint8_t {
  kAsAsked,  ///< Another one is an error.
  kAsFound   ///< Any is taken.
};

struct SharedTierOptions {
  /// Absolute, on a tmpfs or hugetlbfs.
  std::filesystem::path path = {};
  /// Of all ranks' arenas together; metadata come on top.
  std::uint64_t capacity_bytes = 0;
  /// Of an engine, on this node; all engines that share have as many.
  std::uint32_t num_ranks = 1;
  /// Of one rank; 0: from the capacity alone, so that engines of different models can share.
  std::uint64_t chunk_bytes = 0;
  Division division = Division::kAsAsked;
  AtExit at_exit = AtExit::kRemove;
  /// For another process to make or remove the file: microseconds of work.
  std::chrono::nanoseconds patience = std::chrono::seconds(10);
  MachineRoot machine = {};
};

/// How a tier is divided: by default a rank's part into 256 chunks or somewhat more, a power of two
/// of 64 KiB to 64 MiB each, which are divided into slots of 16 KiB at least, or into 64. Throws
/// ConfigError where nothing fits.
[[nodiscard]] TierShape shape_for(const SharedTierOptions& options);

/// The file of a tier that engine instances share, open in one process: its scheduler's, or one of
/// a rank. The metadata are reserved and mapped; the ranks' arenas are holes until a process
/// that maps one reserves parts of it.
///
/// A process that has it open *holds* the file, by a lock that the kernel ends with the process: no
/// process removes the file meanwhile, so that all that open the same path have the same file. The
/// last that closes it removes it, if that was said. Thread-safe but for the making.
class SharedTier {
 public:
  /// Opens the file, or makes it where there is none or one of another run of the machine. Any
  /// number of processes may do so at once: all have the same one then. Throws ConfigError for a
  /// file that was made for something else, naming both sides and the remedy, TimeoutError after
  /// the patience, and as SharedFile.
  [[nodiscard]] static std::unique_ptr<SharedTier> make_or_open(const SharedTierOptions& options);
  /// Throws as make_or_open() would, as far as that can be told without making, locking or removing
  /// anything. Returns how many bytes the file still lacks of its whole size.
  static std::uint64_t check(const SharedTierOptions& options);
  /// Closes it, and removes the file if that was said and no other process has it open.
  ~SharedTier();
  SharedTier(const SharedTier&) = delete;
  SharedTier& operator=(const SharedTier&) = delete;

  [[nodiscard]] const TierShape& shape() const { return shape_; }
  [[nodiscard]] const TierPlaces& places() const { return places_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] const SharedFile& file() const { return file_; }
  /// From the file's begin on, as places() says.
  [[nodiscard]] std::span<std::byte> metadata() const { return metadata_.bytes(); }
  /// Of one rank.
  [[nodiscard]] std::uint64_t arena_bytes() const { return shape_.num_chunks * shape_.chunk_bytes; }
  /// Where it begins in the file.
  [[nodiscard]] std::uint64_t arena_offset(std::uint32_t rank) const {
    return places_.arenas + rank * arena_bytes();
  }
  /// That one rank's arena still lacks, if all have as much of theirs.
  [[nodiscard]] std::uint64_t missing_arena_bytes() const;

 private:
  SharedTier(SharedFile file, const TierShape& shape, const TierPlaces& places, AtExit at_exit);
  /// Nothing if another process was faster.
  [[nodiscard]] static std::unique_ptr<SharedTier> make(const SharedTierOptions& options,
                                                        const TierShape& shape);
  /// Nothing if the file has just gone, or is of another run: one may be made then.
  [[nodiscard]] static std::unique_ptr<SharedTier> take(SharedFile file,
                                                        const SharedTierOptions& options,
                                                        const TierShape& shape);
  /// The header of the file, if it is of this run of the machine, and fits what was asked for.
  [[nodiscard]] static std::optional<TierHeader> fitting_header(const SharedFile& file,
                                                                const SharedTierOptions& options,
                                                                const TierShape& shape);

  const TierShape shape_;
  const TierPlaces places_;
  const AtExit at_exit_;
  SharedFile file_;
  HostMapping metadata_;
};

}  // namespace kvferry::cpu_tier
