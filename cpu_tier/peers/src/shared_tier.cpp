// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/shared_tier.hpp"

#include "kvferry/base/deadline.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/peers/tier_hold.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

/// Enough chunks for instances to share them.
constexpr std::uint64_t kEnoughChunks = 256;
/// A smaller chunk is not worth a record. With a larger one, too much memory changes hands at once.
constexpr std::uint64_t kLeastChunkBytes = std::uint64_t{64} << 10U;
constexpr std::uint64_t kMostChunkBytes = std::uint64_t{64} << 20U;
/// The smallest slot for which the metadata have room, in chunks of some size.
constexpr std::uint64_t kUsualLeastSlotBytes = std::uint64_t{16} << 10U;
constexpr std::uint64_t kLeastMaxSlots = 64;

constexpr auto kPoll = std::chrono::milliseconds(1);

void check_absolute(const std::filesystem::path& path) {
  if (path.is_absolute()) return;
  throw ConfigError("shared_path " + path.string() +
                    " is not absolute; write for example '/dev/shm/kvferry/tier'");
}

}  // namespace

TierShape shape_for(const SharedTierOptions& options) {
  const std::uint64_t rank_bytes =
      options.num_ranks == 0 ? 0 : options.capacity_bytes / options.num_ranks;
  const std::uint64_t page_bytes = SharedFile::page_bytes_at(options.path);
  const std::uint64_t chunk_bytes =
      options.chunk_bytes != 0
          ? options.chunk_bytes
          : std::max(page_bytes, std::clamp(std::bit_floor(rank_bytes / kEnoughChunks),
                                            kLeastChunkBytes, kMostChunkBytes));
  const std::uint64_t num_chunks = rank_bytes / chunk_bytes;
  if (num_chunks == 0 || num_chunks > std::numeric_limits<std::uint32_t>::max()) {
    throw ConfigError("a shared tier of " + std::to_string(options.capacity_bytes) + " bytes on " +
                      std::to_string(options.num_ranks) + " ranks has " +
                      std::to_string(num_chunks) + " chunks of " + std::to_string(chunk_bytes) +
                      " bytes; allowed: 1 to 2^32. Set another cpu_bytes_to_use");
  }
  const TierShape shape{.num_chunks = static_cast<std::uint32_t>(num_chunks),
                        .chunk_bytes = chunk_bytes,
                        .max_chunk_slots = static_cast<std::uint32_t>(std::min<std::uint64_t>(
                            std::max(kLeastMaxSlots, chunk_bytes / kUsualLeastSlotBytes),
                            std::numeric_limits<std::uint32_t>::max())),
                        .num_ranks = options.num_ranks};
  static_cast<void>(tier_places(shape, page_bytes));
  return shape;
}

std::unique_ptr<SharedTier> SharedTier::make_or_open(const SharedTierOptions& options) {
  check_absolute(options.path);
  const TierShape shape = shape_for(options);
  for (const Deadline deadline(options.patience);;) {
    std::unique_ptr<SharedTier> tier;
    if (auto file = SharedFile::open_if_there(options.path, Reserved::kPartly)) {
      KVFERRY_PAUSE_POINT("shared_tier.opened");
      tier = take(std::move(*file), options, shape);
    } else {
      tier = make(options, shape);
    }
    if (tier) return tier;
    if (deadline.passed()) {
      throw TimeoutError(
          "the shared tier " + options.path.string() +
          " was about to be removed or replaced by another process for " +
          std::to_string(
              std::chrono::duration_cast<std::chrono::seconds>(options.patience).count()) +
          " s; end that process if it is stopped (fuser names it), or name another shared_path");
    }
    std::this_thread::sleep_for(kPoll);
  }
}

std::unique_ptr<SharedTier> SharedTier::make(const SharedTierOptions& options,
                                             const TierShape& shape) {
  const TierPlaces places = tier_places(shape, SharedFile::page_bytes_at(options.path));
  SharedFile file =
      SharedFile::make_partly(options.path, places.end, places.arenas, options.machine);
  hold_unnamed(file);
  auto tier =
      std::unique_ptr<SharedTier>(new SharedTier(std::move(file), shape, places, options.at_exit));
  // Its tables are read at random. With small pages, most accesses would miss the TLB.
  tier->metadata_.make_huge();
  new (tier->metadata().data())
      TierHeader(make_tier_header(shape, places, options.capacity_bytes, options.machine.proc));
  KVFERRY_PAUSE_POINT("shared_tier.before_publish");
  if (tier->file_.publish() == Published::kNameIsTaken) return nullptr;
  return tier;
}

std::optional<TierHeader> SharedTier::fitting_header(const SharedFile& file,
                                                     const SharedTierOptions& options,
                                                     const TierShape& shape) {
  const FileInQuestion question = tier_in_question(options.path);
  const std::optional<TierHeader> header = read_tier_header(file.descriptor());
  if (!header) {
    throw ConfigError(question.name + " was not made by " + question.maker +
                      ": name another shared_path");
  }
  const FileHeader now =
      FileHeader::of(TierHeader::kMagic, TierHeader::kVersion, options.machine.proc);
  // This comes before the boot id is used, which decides whether the file may be removed.
  check_whole(*header, options.path);
  if (!header->file.is_of_boot(now)) return std::nullopt;
  static_cast<void>(check_tier(*header, file));
  const bool fits = header->shape() == shape || (options.division == Division::kAsFound &&
                                                 header->capacity_bytes == options.capacity_bytes &&
                                                 header->num_ranks == options.num_ranks);
  if (!fits) {
    throw ConfigError(
        question.name + " has " + to_string(header->shape()) + " (" +
        std::to_string(header->capacity_bytes) + " bytes, made by " + header->made_by.data() +
        "); this process was told " + to_string(shape) + " (" +
        std::to_string(options.capacity_bytes) +
        " bytes): give all engines that share it the same cpu_bytes_to_use (capacity under "
        "LMCache), shared_chunk_bytes and parallel sizes, or " +
        question.remedy);
  }
  return header;
}

std::uint64_t SharedTier::check(const SharedTierOptions& options) {
  check_absolute(options.path);
  const TierShape shape = shape_for(options);
  std::uint64_t reserved = 0;
  std::uint64_t whole = tier_places(shape, SharedFile::page_bytes_at(options.path)).end;
  if (const auto file = SharedFile::open_if_there(options.path, Reserved::kPartly)) {
    reserved = file->reserved_bytes();
    if (fitting_header(*file, options, shape)) whole = file->size_bytes();
  }
  const std::uint64_t missing = whole - std::min(reserved, whole);
  SharedFile::check_place(options.path, missing);
  return missing;
}

std::unique_ptr<SharedTier> SharedTier::take(SharedFile file, const SharedTierOptions& options,
                                             const TierShape& shape) {
  const std::optional<TierHeader> header = fitting_header(file, options, shape);
  if (!header) {
    // An earlier boot of the machine left this file, so no process that uses it can be alive.
    static_cast<void>(remove_unless_held(file));
    return nullptr;
  }
  const TierPlaces places = check_tier(*header, file);
  if (hold(file) != Held::kYes) return nullptr;
  return std::unique_ptr<SharedTier>(
      new SharedTier(std::move(file), header->shape(), places, options.at_exit));
}

SharedTier::SharedTier(SharedFile file, const TierShape& shape, const TierPlaces& places,
                       AtExit at_exit)
    : shape_(shape),
      places_(places),
      at_exit_(at_exit),
      file_(std::move(file)),
      metadata_(file_, 0, places.arenas) {}

SharedTier::~SharedTier() {
  if (at_exit_ == AtExit::kRemove) {
    static_cast<void>(remove_unless_held(file_));
  } else {
    // Closing the file is not enough while an arena of this process is mapped.
    let_go(file_);
  }
}

std::uint64_t SharedTier::missing_arena_bytes() const {
  const std::uint64_t reserved = file_.reserved_bytes();
  return (places_.end - std::min(reserved, places_.end)) / shape_.num_ranks;
}

}  // namespace kvferry::cpu_tier
