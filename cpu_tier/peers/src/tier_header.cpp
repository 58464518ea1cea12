// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_header.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/stable_hash.hpp"
#include "kvferry/cpu_tier/memory/shared_file.hpp"

#include <cstddef>
#include <cstdio>
#include <ctime>
#include <type_traits>
#include <unistd.h>

namespace kvferry::cpu_tier {

TierHeader make_tier_header(const TierShape& shape, const TierPlaces& places,
                            std::uint64_t capacity_bytes, const std::filesystem::path& proc) {
  TierHeader header{.file = FileHeader::of(TierHeader::kMagic, TierHeader::kVersion, proc),
                    .capacity_bytes = capacity_bytes,
                    .chunk_bytes = shape.chunk_bytes,
                    .metadata_bytes = places.arenas,
                    .num_chunks = shape.num_chunks,
                    .max_chunk_slots = shape.max_chunk_slots,
                    .num_ranks = shape.num_ranks,
                    .unused = 0,
                    .made_by = {},
                    .check = 0};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> at{};
  std::strftime(at.data(), at.size(), "%Y-%m-%d %H:%M:%S", &utc);
  std::snprintf(header.made_by.data(), header.made_by.size(), "process %d at %s UTC", ::getpid(),
                at.data());
  header.check = header.expected_check();
  return header;
}

std::uint64_t TierHeader::expected_check() const {
  static_assert(std::has_unique_object_representations_v<TierHeader>);
  return stable_hash({reinterpret_cast<const char*>(this), offsetof(TierHeader, check)});
}

std::optional<TierHeader> read_tier_header(int descriptor) {
  TierHeader header;
  if (::pread(descriptor, &header, sizeof header, 0) != ssize_t{sizeof header} ||
      header.file.magic != TierHeader::kMagic) {
    return std::nullopt;
  }
  header.made_by.back() = '\0';
  return header;
}

std::string to_string(const TierShape& shape) {
  return std::to_string(shape.num_chunks) + " chunks of " + std::to_string(shape.chunk_bytes) +
         " bytes with up to " + std::to_string(shape.max_chunk_slots) + " slots each, on " +
         std::to_string(shape.num_ranks) + (shape.num_ranks == 1 ? " rank" : " ranks");
}

FileInQuestion tier_in_question(const std::filesystem::path& path) {
  return {.name = "the shared tier " + path.string(),
          .maker = "kvferry for a shared tier",
          .remedy = "stop the engines that use it and remove it (kvferry tier rm " + path.string() +
                    "), or name another shared_path"};
}

void check_whole(const TierHeader& header, const std::filesystem::path& path) {
  const FileHeader ours = FileHeader::of(TierHeader::kMagic, TierHeader::kVersion);
  if (header.file.version != ours.version) return;
  const FileInQuestion question = tier_in_question(path);
  check_figure("byte order", header.file.byte_order, ours.byte_order, question);
  check_figure("a damaged header, whose check is", header.check, header.expected_check(), question);
}

TierPlaces check_tier(const TierHeader& header, const SharedFile& file) {
  FileHeader expected = FileHeader::of(TierHeader::kMagic, TierHeader::kVersion);
  expected.boot_id = header.file.boot_id;
  const FileInQuestion question = tier_in_question(file.path());
  check_header(header.file, expected, question);
  check_whole(header, file.path());
  const TierPlaces places = tier_places(header.shape(), file.page_bytes());
  check_figure("bytes of metadata", header.metadata_bytes, places.arenas, question);
  check_figure("bytes", file.size_bytes(), places.end, question);
  if (file.reserved_bytes() < places.arenas) {
    // An access to its holes would be a signal when memory runs out.
    throw ConfigError(question.name + " has " + std::to_string(file.reserved_bytes()) +
                      " bytes reserved, expected " + std::to_string(places.arenas) +
                      " or more for its metadata; it is a copy, or damaged: " + question.remedy);
  }
  return places;
}

}  // namespace kvferry::cpu_tier
