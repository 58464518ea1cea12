// SPDX-License-Identifier: Apache-2.0
#include "pin/pin_measurement.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"

#include "pin/bare_populate.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::bench {
namespace {

// Bytes that are checked at the beginning of every page: a page that is absent, shared or somebody
// else's does not hold them.
constexpr std::uint64_t kBytesPerPage = 64;

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void verify(std::span<std::byte> memory, Verifier& verifier) {
  const std::uint64_t page = cpu_tier::HostMapping::page_bytes();
  const PatternPieces pieces{
      memory.size() / page, [memory, page](std::size_t i) {
        return PatternPiece{memory.subspan(i * page, kBytesPerPage), i * kBytesPerPage};
      }};
  const PatternKey key = verifier.next_round();
  write_pattern(pieces, key);
  verifier.check(pieces, key, "pin: page");
}

/// The lower median.
double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

PinRow pin_own(gpu::Device& device, const PinShape& shape, std::uint64_t piece_bytes,
               Verifier& verifier) {
  PinRow row;
  row.memory = "own";
  row.piece_bytes = piece_bytes;
  std::unique_ptr<cpu_tier::HostMapping> memory;
  std::vector<std::unique_ptr<gpu::HostRegistration>> registrations;
  row.ready_s = seconds_of(
      [&] { memory = std::make_unique<cpu_tier::HostMapping>(shape.bytes, shape.pages); });
  const std::span<std::byte> bytes = memory->bytes();
  row.populate_s = seconds_of([&] { bare_populate(bytes, shape.threads); });
  row.register_s = seconds_of([&] {
    for (std::uint64_t at = 0; at < bytes.size(); at += piece_bytes) {
      registrations.push_back(device.register_host(
          bytes.data() + at, std::min<std::uint64_t>(piece_bytes, bytes.size() - at)));
    }
  });
  row.ready_s += *row.populate_s + *row.register_s;
  row.huge_percent = 100 * cpu_tier::huge_page_share(bytes);
  verify(bytes, verifier);
  row.unregister_s = seconds_of([&] { registrations.clear(); });
  row.bytes = bytes.size();
  row.populate_gb_per_s = static_cast<double>(row.bytes) / 1e9 / *row.populate_s;
  row.total_s = row.ready_s + *row.unregister_s + seconds_of([&] { memory.reset(); });
  return row;
}

// The arena's constructor does everything at once, so its parts cannot be timed one by one.
PinRow pin_arena(gpu::Device& device, const PinShape& shape, Verifier& verifier) {
  PinRow row;
  row.memory = "arena";
  std::unique_ptr<cpu_tier::Arena> arena;
  const std::uint64_t slot = cpu_tier::HostMapping::page_bytes();
  const auto num_slots = static_cast<std::uint32_t>(shape.bytes / slot);
  cpu_tier::ArenaOptions options;
  options.pages = shape.pages;
  options.num_threads = shape.threads;
  row.piece_bytes = std::min(shape.bytes, options.max_registration_bytes);
  row.ready_s = seconds_of(
      [&] { arena = std::make_unique<cpu_tier::Arena>(device, slot, num_slots, options); });
  row.bytes = slot * num_slots;
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(arena->chunk_address(ChunkId(0))),
                                   row.bytes);
  row.huge_percent = 100 * cpu_tier::huge_page_share(bytes);
  verify(bytes, verifier);
  row.total_s = row.ready_s + seconds_of([&] { arena.reset(); });
  return row;
}

/// Combines the rounds of a row into one row.
PinRow row_of(std::vector<PinRow>& rounds) {
  const auto median = rounds.begin() + static_cast<std::ptrdiff_t>((rounds.size() - 1) / 2);
  std::nth_element(rounds.begin(), median, rounds.end(),
                   [](const PinRow& a, const PinRow& b) { return a.total_s < b.total_s; });
  return *median;
}

}  // namespace

std::vector<PinRow> measure_pin(gpu::Device& device, const PinShape& shape,
                                const RoundCounts& rounds, Verifier& verifier,
                                const std::function<void(std::uint32_t, std::uint32_t)>& on_round) {
  KVFERRY_CHECK(!shape.piece_bytes.empty(), "pin without memory of its own");
  const std::size_t num_own = shape.piece_bytes.size();
  const std::size_t num_rows = num_own + (shape.arena == PinArena::kIncluded ? 1 : 0);
  std::vector<std::vector<PinRow>> found(num_rows);
  std::vector<bool> verified(num_rows, true);
  for (std::uint32_t round = 0; round < rounds.total(); ++round) {
    on_round(round, rounds.total());
    for (std::size_t turn = 0; turn < num_rows; ++turn) {
      // Alternate the order, so that no row always comes after the same one.
      const std::size_t place = (round / 2 + turn) % num_rows;
      const std::size_t which = round % 2 == 0 ? place : num_rows - 1 - place;
      const std::uint64_t mismatches_before = verifier.num_mismatches();
      PinRow row = which < num_own ? pin_own(device, shape, shape.piece_bytes[which], verifier)
                                   : pin_arena(device, shape, verifier);
      if (verifier.num_mismatches() != mismatches_before) verified[which] = false;
      if (round >= rounds.warm_up) found[which].push_back(std::move(row));
    }
  }
  std::optional<double> percent_of_bare;
  if (num_rows > num_own) {
    std::vector<double> percents;
    for (std::uint32_t round = 0; round < rounds.measured; ++round) {
      percents.push_back(100 * *found.front()[round].populate_s / found.back()[round].ready_s);
    }
    percent_of_bare = median_of(std::move(percents));
  }
  std::vector<PinRow> rows;
  for (std::size_t which = 0; which < num_rows; ++which) {
    PinRow& row = rows.emplace_back(row_of(found[which]));
    row.pages = to_string(shape.pages);
    row.threads = shape.threads;
    row.rounds = rounds.measured;
    row.verified = verified[which];
    if (which >= num_own) row.percent_of_bare = percent_of_bare;
  }
  return rows;
}

}  // namespace kvferry::bench
