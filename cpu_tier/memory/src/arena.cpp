// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/rounded_up.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/cpu_tier/memory/memlock_limit.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

using Clock = std::chrono::steady_clock;

/// Checks that the requested arena can exist, and returns its shape.
ArenaShape checked(std::uint64_t chunk_bytes, std::uint32_t num_chunks,
                   std::uint32_t tags_per_chunk) {
  if (chunk_bytes == 0 || num_chunks == 0) {
    throw ConfigError("an arena of " + std::to_string(num_chunks) + " slots of " +
                      std::to_string(chunk_bytes) +
                      " bytes holds nothing: make the CPU tier larger");
  }
  if (chunk_bytes > std::numeric_limits<std::uint64_t>::max() / num_chunks) {
    throw ResourceError(std::to_string(num_chunks) + " slots of " + std::to_string(chunk_bytes) +
                        " bytes cannot be addressed: make the CPU tier smaller");
  }
  return {chunk_bytes, num_chunks, tags_per_chunk};
}

/// The shape that was granted for a request.
ArenaShape granted_shape(const ArenaGrant& grant, std::uint64_t chunk_bytes,
                         const ArenaOptions& options) {
  return {chunk_bytes, grant.num_chunks,
          grant.tags_per_chunk == 0 ? options.tags_per_chunk : grant.tags_per_chunk};
}

std::unique_ptr<HostMapping> map_tags(ArenaSource& source, const ArenaShape& shape) {
  return shape.tag_bytes() == 0 ? nullptr : source.map_tags(shape);
}

std::uint32_t in_whole_pieces(std::uint32_t num_chunks, const ArenaGrant& grant) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(rounded_up(num_chunks, grant.chunks_per_piece), grant.num_chunks));
}

}  // namespace

Arena::Arena(gpu::Device& device, std::unique_ptr<ArenaSource> source, std::uint64_t chunk_bytes,
             std::uint32_t num_chunks, const ArenaOptions& options)
    : device_(device),
      resizing_(options.resizing),
      max_registration_bytes_(options.max_registration_bytes),
      slow_bytes_per_second_(options.slow_bytes_per_second),
      long_wait_(options.long_wait),
      source_(std::move(source)),
      grant_(source_->grant(checked(chunk_bytes, num_chunks, options.tags_per_chunk), options)),
      shape_(granted_shape(grant_, chunk_bytes, options)),
      num_first_(in_whole_pieces(first_chunks(shape_, options), grant_)),
      pages_(source_->map(), map_tags(*source_, shape_), shape_, options),
      piece_device_addresses_((std::uint64_t{shape_.num_chunks} + grant_.chunks_per_piece - 1) /
                              grant_.chunks_per_piece) {
  // The host back end locks no memory.
  if (device.kind() != gpu::BackendKind::kHost) {
    if (auto warning = memlock_warning(pages_.mapping().size_bytes())) {
      grant_.warnings.push_back(*warning);
    }
  }
  registrations_.resize(piece_device_addresses_.size());
  if (options.start == ArenaStart::kReady) {
    while (grow(max_registration_bytes_) > 0) {
    }
  }
}

Arena::Arena(gpu::Device& device, std::uint64_t chunk_bytes, std::uint32_t num_chunks,
             const ArenaOptions& options)
    : Arena(device, make_own_source(), chunk_bytes, num_chunks, options) {}

Arena::~Arena() = default;

std::uint32_t Arena::grow(std::uint64_t most_bytes, const std::stop_token& stop) {
  const std::uint32_t first = num_ready();
  if (first == num_first_) return 0;
  const ChunkRange chunks{ChunkId(first), end_of_step(first, most_bytes)};
  const std::span<std::byte> part = pages_.bytes_of(chunks);
  waited_ = {};
  const Clock::time_point began = Clock::now();
  try {
    const auto waited = source_->make_resident(pages_, chunks, stop);
    if (!waited || !pages_.populate_tags(chunks, stop)) {
      pages_.mapping().release(part);
      return 0;
    }
    waited_ = *waited;
    if (first == 0) warn_of_slow_memory(part.size(), Clock::now() - began - waited_);
    register_chunks(chunks);
  } catch (const std::exception& error) {
    pages_.mapping().release(part);
    source_->end(error.what());
    throw;
  }
  const std::uint32_t num_ready = chunks.end.value();
  num_ready_.store(num_ready, std::memory_order_release);
  num_usable_.fetch_add(num_ready - first, std::memory_order_relaxed);
  if (grant_.claim) {
    const ArenaShape to_come{shape_.chunk_bytes, num_first_ - num_ready, shape_.tags_per_chunk};
    grant_.claim->set_bytes(source_->bytes_to_claim(to_come.bytes_of(pages_.mapping().pages())));
  }
  return num_ready - first;
}

void Arena::warn_of_slow_memory(std::uint64_t bytes, std::chrono::nanoseconds took) {
  const double seconds = std::chrono::duration<double>(took).count();
  const double bytes_per_second = static_cast<double>(bytes) / seconds;
  if (took < long_wait_ || bytes_per_second >= slow_bytes_per_second_) return;
  char text[160];
  std::snprintf(text, sizeof text, "the first %.0f MiB of the CPU tier took %.1f s (%.0f MB/s)",
                static_cast<double>(bytes) / (1 << 20), seconds, bytes_per_second / 1e6);
  grant_.warnings.push_back(
      std::string(text) +
      ", and the engine's start waited for it: the machine gives memory slowly. A virtual "
      "machine does so for memory that it has not touched since its start, and any machine "
      "does so if its cores are busy, or if its kernel has to free or move memory first. A smaller "
      "pinned_piece_bytes shortens the wait");
}

ChunkId Arena::end_of_step(std::uint32_t first, std::uint64_t most_bytes) const {
  const std::uint64_t round =
      grant_.chunks_per_piece * std::uint64_t{first == 0 ? 1 : grant_.pieces_per_step};
  const std::uint64_t num_rounds =
      std::min(most_bytes, max_registration_bytes_) / (round * shape_.chunk_bytes);
  return ChunkId(static_cast<std::uint32_t>(
      std::min<std::uint64_t>(first + std::max<std::uint64_t>(num_rounds, 1) * round, num_first_)));
}

void Arena::end_growth() noexcept {
  if (grant_.claim) grant_.claim->set_bytes(0);
  if (num_ready() < num_first_) source_->end("its growth was stopped");
}

void Arena::register_chunks(ChunkRange chunks) {
  const std::uint32_t first = chunks.begin.value();
  const std::uint32_t end = chunks.end.value();
  if (KVFERRY_FAULT_POINT("arena.register")) {
    throw DeviceError("registering slots " + std::to_string(first) + " to " + std::to_string(end) +
                      " failed on request of a test");
  }
  const std::uint32_t of_piece = grant_.chunks_per_piece;
  const std::uint32_t of_one = resizing_ == ArenaResizing::kByPieces ? of_piece : end - first;
  std::vector<std::unique_ptr<gpu::HostRegistration>> made;
  for (std::uint32_t begin = first; begin < end; begin += of_one) {
    const std::span<std::byte> part =
        pages_.bytes_of({ChunkId(begin), ChunkId(std::min(begin + of_one, end))});
    made.push_back(device_.register_host(part.data(), part.size()));
  }
  for (std::uint32_t chunk = first; chunk < end; chunk += of_piece) {
    const std::uint32_t number = (chunk - first) / of_one;
    const std::uint64_t offset =
        (chunk - first - std::uint64_t{number} * of_one) * shape_.chunk_bytes;
    piece_device_addresses_[piece_of(ChunkId(chunk)).value()].store(
        made[number]->device_address() + offset, std::memory_order_release);
  }
  for (std::uint32_t i = 0; i < made.size(); ++i) {
    registrations_[piece_of(ChunkId(first + i * of_one)).value()] = std::move(made[i]);
  }
}

ArenaReport Arena::report() const {
  const std::uint32_t ready = num_ready();
  const MemoryPlacement& placement = pages_.placement();
  ArenaReport report{.pages = pages_.mapping().pages(),
                     .gave_up_huge_pages = pages_.gave_up_huge_pages(),
                     .huge_page_share = 0.0,
                     .node = placement.node,
                     .share_on_node = std::nullopt};
  if (ready == 0) return report;
  const std::span<std::byte> part = pages_.bytes_of({ChunkId(0), ChunkId(ready)});
  report.huge_page_share = huge_page_share(part);
  if (report.node) report.share_on_node = placement.topology->share_on(part, *report.node);
  return report;
}

}  // namespace kvferry::cpu_tier
