// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena_pages.hpp"

#include "kvferry/base/rounded_up.hpp"
#include "kvferry/cpu_tier/memory/claim_turn.hpp"
#include "kvferry/cpu_tier/memory/pool_budget.hpp"

#include "populator.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

using Clock = std::chrono::steady_clock;

/// Fewer bytes say nothing about a rate.
constexpr std::uint64_t kTellingBytes = std::uint64_t{16} << 20U;

}  // namespace

ArenaPages::ArenaPages(std::unique_ptr<HostMapping> mapping, std::unique_ptr<HostMapping> tags,
                       const ArenaShape& shape, const ArenaOptions& options)
    : shape_(shape),
      placement_(options.placement),
      slow_bytes_per_second_(options.slow_bytes_per_second),
      machine_(options.machine),
      mapping_(std::move(mapping)),
      tags_(std::move(tags)),
      populator_(std::make_unique<Populator>(options.placement, options.num_threads)) {}

ArenaPages::~ArenaPages() = default;

std::span<std::byte> ArenaPages::bytes_of(ChunkRange chunks) const {
  const std::uint64_t begin = chunks.begin.value() * shape_.chunk_bytes;
  const std::uint64_t end = chunks.end.value() == shape_.num_chunks
                                ? mapping_->size_bytes()
                                : chunks.end.value() * shape_.chunk_bytes;
  return mapping_->bytes().subspan(begin, end - begin);
}

std::uint64_t ArenaPages::needed_bytes(ChunkRange chunks) const {
  const std::uint32_t num_chunks = chunks.end.value() - chunks.begin.value();
  const ArenaShape tags{0, num_chunks, shape_.tags_per_chunk};
  return bytes_of(chunks).size() + tags.bytes_of(mapping_->pages());
}

void ArenaPages::check_budget(std::uint64_t bytes) const {
  if (mapping_->pages() == PageKind::kPool) {
    check_pool_budget(bytes, PoolStep::kPopulate, machine_);
  } else {
    check_memory_budget(bytes, machine_);
  }
}

std::unique_ptr<MemoryClaim> ArenaPages::claim(std::uint64_t bytes) const {
  const ClaimTurn turn(machine_);
  auto claim = std::make_unique<MemoryClaim>(bytes, mapping_->pages(), ClaimGroup{}, machine_);
  claim->check();
  return claim;
}

void ArenaPages::prefer_node(std::span<std::byte> part) const {
  if (placement_.node) static_cast<void>(placement_.topology->prefer(part, *placement_.node));
}

bool ArenaPages::populate(std::span<std::byte> part, const std::stop_token& stop) {
  const Clock::time_point began = Clock::now();
  if (!populator_->populate(*mapping_, part, stop)) return false;
  if (mapping_->pages() != PageKind::kTransparent || gave_up_huge_pages_) return true;
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  if (part.size() >= kTellingBytes &&
      static_cast<double>(part.size()) < seconds * slow_bytes_per_second_) {
    gave_up_huge_pages_ = true;
    mapping_->stop_huge_pages();
  }
  return true;
}

bool ArenaPages::map_resident(std::span<std::byte> part, const std::stop_token& stop) const {
  return populator_->populate(*mapping_, part, stop);
}

// It populates whole pages. The first and the last one have tags of other chunks too.
bool ArenaPages::populate_tags(ChunkRange chunks, const std::stop_token& stop) const {
  if (!tags_) return true;
  const std::uint64_t of_chunk = shape_.tags_per_chunk * kTagBytes;
  const std::uint64_t page = HostMapping::page_bytes();
  const std::uint64_t begin = chunks.begin.value() * of_chunk / page * page;
  const std::uint64_t end =
      std::min(rounded_up(chunks.end.value() * of_chunk, page), tags_->size_bytes());
  const std::span<std::byte> part = tags_->bytes().subspan(begin, end - begin);
  return populator_->populate(*tags_, part, stop);
}

std::span<std::atomic<std::uint64_t>> ArenaPages::tags() const {
  using Tag = std::atomic<std::uint64_t>;
  static_assert(sizeof(Tag) == kTagBytes && Tag::is_always_lock_free);
  if (!tags_) return {};
  return {reinterpret_cast<Tag*>(tags_->bytes().data()), shape_.tag_bytes() / kTagBytes};
}

}  // namespace kvferry::cpu_tier
