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

/// What the last process that has a tier open does with the file when it closes it.
enum class AtExit : std::uint8_t {
  kRemove,  ///< It removes the file and frees the memory.
  kKeep     ///< It keeps the file; later engines use its contents.
};

/// How an existing file with the requested capacity and number of ranks has to be divided.
enum class Division : std::uint8_t {
  kAsAsked,  ///< As requested; any other division is an error.
  kAsFound   ///< Any division is accepted.
};

struct SharedTierOptions {
  /// Absolute, on a tmpfs or hugetlbfs.
  std::filesystem::path path = {};
  /// Bytes of all ranks' arenas together; metadata are extra.
  std::uint64_t capacity_bytes = 0;
  /// Number of an engine's ranks on this node; the same for all engines that share the tier.
  std::uint32_t num_ranks = 1;
  /// Bytes of one rank's chunk; 0: computed from the capacity only, so that engines of different
  /// models can share the tier.
  std::uint64_t chunk_bytes = 0;
  Division division = Division::kAsAsked;
  AtExit at_exit = AtExit::kRemove;
  /// How long to wait for another process that makes or removes the file, which takes microseconds.
  std::chrono::nanoseconds patience = std::chrono::seconds(10);
  MachineRoot machine = {};
};

/// How a tier is divided. By default a rank's part has 256 chunks or a few more. The chunk size is
/// a power of two from 64 KiB to 64 MiB. A chunk can have up to 64 slots, or as many slots of 16
/// KiB as fit if that is more. Throws ConfigError if nothing fits.
[[nodiscard]] TierShape shape_for(const SharedTierOptions& options);

/// The file of a tier that engine instances share, open in one process: a scheduler or a rank. The
/// metadata are reserved and mapped. The ranks' arenas are holes until a process that maps one
/// reserves parts of it.
///
/// A process that has it open *holds* the file with a lock, which the kernel ends with the process.
/// No process removes a file that is held, so all processes that open the same path have the same
/// file. The last process that closes the file removes it, if AtExit says so. Thread-safe, except
/// for the construction.
class SharedTier {
 public:
  /// Opens the file, or makes it if there is none or one from before the last boot. Any number of
  /// processes can do so at the same time; all get the same file. Throws ConfigError for a file
  /// that was made for something else, with both values and the remedy; TimeoutError after the
  /// patience; and as SharedFile.
  [[nodiscard]] static std::unique_ptr<SharedTier> make_or_open(const SharedTierOptions& options);
  /// Throws as make_or_open() would, as far as that can be checked without making, locking or
  /// removing anything. Returns how many bytes of its full size the file does not have yet.
  static std::uint64_t check(const SharedTierOptions& options);
  /// Closes the file, and removes it if AtExit says so and no other process has it open.
  ~SharedTier();
  SharedTier(const SharedTier&) = delete;
  SharedTier& operator=(const SharedTier&) = delete;

  [[nodiscard]] const TierShape& shape() const { return shape_; }
  [[nodiscard]] const TierPlaces& places() const { return places_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] const SharedFile& file() const { return file_; }
  /// The metadata, from the beginning of the file, divided as places() says.
  [[nodiscard]] std::span<std::byte> metadata() const { return metadata_.bytes(); }
  /// Bytes of one rank's arena.
  [[nodiscard]] std::uint64_t arena_bytes() const { return shape_.num_chunks * shape_.chunk_bytes; }
  /// The offset of a rank's arena in the file.
  [[nodiscard]] std::uint64_t arena_offset(std::uint32_t rank) const {
    return places_.arenas + rank * arena_bytes();
  }
  /// The offset of a rank's tags in the file: `places().rank_tag_bytes` of the metadata.
  [[nodiscard]] std::uint64_t tags_offset(std::uint32_t rank) const {
    return places_.tags + rank * places_.rank_tag_bytes;
  }
  /// Bytes that one rank's arena does not have yet, if all ranks have the same amount.
  [[nodiscard]] std::uint64_t missing_arena_bytes() const;

 private:
  SharedTier(SharedFile file, const TierShape& shape, const TierPlaces& places, AtExit at_exit);
  /// Returns nothing if another process was faster.
  [[nodiscard]] static std::unique_ptr<SharedTier> make(const SharedTierOptions& options,
                                                        const TierShape& shape);
  /// Returns nothing if the file was just removed, or is from before the last boot; then a new one
  /// can be made.
  [[nodiscard]] static std::unique_ptr<SharedTier> take(SharedFile file,
                                                        const SharedTierOptions& options,
                                                        const TierShape& shape);
  /// The header of the file, if it was made since the last boot and fits the request.
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
