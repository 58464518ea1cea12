// SPDX-License-Identifier: Apache-2.0
#include "injector.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace kvferry::gpu {
namespace {

using What = InjectionEvent::What;

/// There and back, and at rest.
constexpr std::uint64_t kWays = 3;
constexpr int kMostTries = 16;
constexpr std::array kInCopy{InjectionKind::kFlip, InjectionKind::kSwap, InjectionKind::kWrongSlot,
                             InjectionKind::kOldVersion, InjectionKind::kShort};
constexpr std::array kAtRest{InjectionKind::kFlip, InjectionKind::kSwap, InjectionKind::kWrongSlot};

std::byte* at(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

void flip(std::byte* bytes, std::uint64_t bit) {
  bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
}

/// Says in the event how `found` differs.
void compare(InjectionEvent& event, std::span<const std::byte> found, const std::byte* expected) {
  event.first_byte = 0;
  event.num_bytes = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected[i]) continue;
    if (event.num_bytes == 0) event.first_byte = i;
    ++event.num_bytes;
  }
}

}  // namespace

Injector::Injector(InjectionOptions options, std::uint64_t seed)
    : options_(std::move(options)), random_(seed) {
  if (!(options_.probability >= 0 && options_.probability <= 1)) {
    throw ConfigError("InjectionOptions::probability is " + std::to_string(options_.probability) +
                      "; it must lie within 0 and 1");
  }
  const MutexLock lock(mutex_);
  static_cast<void>(draw(0));
  if (options_.log_file.empty()) return;
  file_.open(options_.log_file, std::ios::app);
  if (!file_) {
    throw ConfigError("InjectionOptions::log_file is " + options_.log_file +
                      ", which cannot be written; name a file in a directory that exists");
  }
}

void Injector::know_blocks(std::uintptr_t packed, std::uint64_t count, std::uint64_t block_bytes) {
  const MutexLock lock(mutex_);
  const std::uintptr_t end = packed + count * block_bytes;
  auto next = packed_.upper_bound(packed);
  if (next != packed_.begin() && std::prev(next)->second.end > packed) --next;
  while (next != packed_.end() && next->first < end) {
    const auto [begin, older] = *next;
    packed_.erase(next);
    if (begin < packed) packed_[begin] = {packed, older.first, older.block_bytes};
    if (older.end > end) packed_[end] = older;
    next = packed_.lower_bound(packed);
    if (older.end > end) break;
  }
  packed_[packed] = {end, packed, block_bytes};
}

void Injector::copy(InjectionWay way, std::span<const CopyRun> runs) {
  const MutexLock lock(mutex_);
  const bool stores = way == InjectionWay::kToTier;
  std::vector<Part> parts = stores ? parts_to_tier(runs) : parts_from_tier(runs);
  std::vector<std::size_t> struck;
  for (const std::size_t i : draw(parts.size())) {
    if (below(kWays) != 0 || slots_.empty()) {
      struck.push_back(i);
    } else {
      strike_in_tier();
    }
  }
  std::vector<std::byte> before;
  if (!struck.empty()) {
    for (const Part& part : parts) before.insert(before.end(), part.to, part.to + part.bytes);
  }
  for (Part& part : parts) {
    std::memcpy(part.to, part.from, part.bytes);
    if (stores) part.known = &note_stored(part.slot, part.bytes);
  }
  for (const std::size_t i : struck) strike_in_copy(choose_strike(way, parts, i), parts, before);
  if (!stores) note_arrived(parts);
}

void Injector::copy_failing(InjectionWay way, std::span<const CopyRun> runs, std::uint64_t end) {
  const MutexLock lock(mutex_);
  for (const CopyRun& run : runs) {
    const std::uint64_t bytes = std::min(run.bytes, end);
    if (bytes == 0) return;
    std::memcpy(at(run.destination), at(run.source), bytes);
    if (way == InjectionWay::kToTier) forget_locked(run.destination, bytes);
    end -= bytes;
  }
}

void Injector::forget(std::uintptr_t host, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  forget_locked(host, bytes);
}

std::vector<InjectionEvent> Injector::take() {
  const MutexLock lock(mutex_);
  return std::exchange(events_, {});
}

std::vector<Injector::Part> Injector::parts_to_tier(std::span<const CopyRun> runs) {
  std::vector<Part> parts;
  parts.reserve(runs.size());
  for (const CopyRun& run : runs) {
    for (std::uint64_t done = 0; done < run.bytes;) {
      const std::uint64_t bytes = block_bytes_at(run.source + done, run.bytes - done);
      const std::uintptr_t slot = run.destination + done;
      parts.push_back(
          {.to = at(slot), .from = at(run.source + done), .bytes = bytes, .slot = slot});
      done += bytes;
    }
  }
  return parts;
}

std::uint64_t Injector::block_bytes_at(std::uintptr_t packed, std::uint64_t most) const {
  const auto next = packed_.upper_bound(packed);
  if (next == packed_.begin()) return most;
  const Gathered& gathered = std::prev(next)->second;
  if (packed >= gathered.end) return most;
  const std::uint64_t in_block = (packed - gathered.first) % gathered.block_bytes;
  return std::min(most, gathered.block_bytes - in_block);
}

std::vector<Injector::Part> Injector::parts_from_tier(std::span<const CopyRun> runs) {
  std::vector<Part> parts;
  parts.reserve(runs.size());
  for (const CopyRun& run : runs) {
    for (std::uint64_t done = 0; done < run.bytes;) {
      const std::uintptr_t host = run.source + done;
      std::uint64_t bytes = run.bytes - done;
      Part part{.to = at(run.destination + done), .from = at(host), .slot = host};
      const auto next = slots_.upper_bound(host);
      if (next != slots_.end()) bytes = std::min(bytes, next->first - host);
      if (next != slots_.begin()) {
        auto& [slot, known] = *std::prev(next);
        if (host < slot + known.bytes) {
          bytes = std::min(bytes, slot + known.bytes - host);
          part.slot = slot;
          part.offset = host - slot;
          part.known = &known;
        }
      }
      part.bytes = bytes;
      parts.push_back(part);
      done += bytes;
    }
  }
  return parts;
}

// The distance from one that is struck to the next is what a coin for each block would give.
std::vector<std::size_t> Injector::draw(std::size_t count) {
  const double chance = options_.probability;
  if (chance == 0) return {};
  std::vector<std::size_t> struck;
  std::uint64_t i = until_next_;
  for (; i < count; ++i) {
    struck.push_back(i);
    if (chance < 1) i += std::geometric_distribution<std::uint64_t>(chance)(random_);
  }
  until_next_ = i - count;
  return struck;
}

std::optional<Injector::Slots::iterator> Injector::any_other_slot(std::uintptr_t slot,
                                                                  std::uint64_t bytes) {
  if (slots_.empty()) return std::nullopt;
  const std::uintptr_t first = slots_.begin()->first;
  const std::uint64_t reach = std::prev(slots_.end())->first - first + 1;
  for (int tries = 0; tries < kMostTries; ++tries) {
    const auto found = slots_.lower_bound(first + below(reach));
    if (found->first != slot && found->second.bytes >= bytes) return found;
  }
  return std::nullopt;
}

void Injector::strike_in_tier() {
  const auto one = any_other_slot(0, 1);
  if (!one) return;
  auto& [slot, known] = **one;
  InjectionKind kind = kAtRest[below(kAtRest.size())];
  const auto other = any_other_slot(slot, known.bytes);
  if (!other || (*other)->second.bytes != known.bytes) kind = InjectionKind::kFlip;
  const InjectionEvent event{
      .injection = ++num_injections_, .way = InjectionWay::kInTier, .kind = kind};
  keep_truth(slot, known);
  if (kind == InjectionKind::kFlip) {
    flip(at(slot), below(known.bytes * 8));
  } else if (kind == InjectionKind::kWrongSlot) {
    std::memcpy(at(slot), at((*other)->first), known.bytes);
  } else {
    keep_truth((*other)->first, (*other)->second);
    std::swap_ranges(at(slot), at(slot) + known.bytes, at((*other)->first));
    judge((*other)->first, (*other)->second, event);
  }
  judge(slot, known, event);
}

// A kind that needs another block becomes a flip if there is none.
Injector::Strike Injector::choose_strike(InjectionWay way, std::span<const Part> parts,
                                         std::size_t struck) {
  const Part& part = parts[struck];
  InjectionKind kind = kInCopy[below(kInCopy.size())];
  Strike strike{.event = {.way = way}, .hit = {struck}, .other = slots_.end()};
  if (kind == InjectionKind::kSwap) {
    const std::size_t partner = below(parts.size());
    if (partner != struck && parts[partner].bytes == part.bytes) {
      strike.hit.push_back(partner);
    } else {
      kind = InjectionKind::kFlip;
    }
  } else if (kind == InjectionKind::kWrongSlot) {
    const auto other = any_other_slot(part.slot, part.offset + part.bytes);
    const bool stores = way == InjectionWay::kToTier;
    if (other && (!stores || (*other)->second.bytes == part.bytes)) {
      strike.other = *other;
    } else {
      kind = InjectionKind::kFlip;
    }
  } else if (kind == InjectionKind::kShort) {
    for (std::size_t i = struck + 1; i < parts.size(); ++i) strike.hit.push_back(i);
  }
  strike.event.injection = ++num_injections_;
  strike.event.kind = kind;
  return strike;
}

void Injector::strike_in_copy(const Strike& strike, std::span<Part> parts,
                              std::span<const std::byte> before) {
  if (strike.event.way == InjectionWay::kFromTier) {
    for (const std::size_t i : strike.hit) parts[i].cause = strike.event;
    return damage(strike, parts, before);
  }
  for (const std::size_t i : strike.hit) keep_truth(parts[i].slot, *parts[i].known);
  if (strike.other != slots_.end()) {
    auto& [slot, known] = *strike.other;
    keep_truth(slot, known);
    std::memcpy(at(slot), parts[strike.hit.front()].from, known.bytes);
    judge(slot, known, strike.event);
  }
  damage(strike, parts, before);
  for (const std::size_t i : strike.hit) judge(parts[i].slot, *parts[i].known, strike.event);
}

void Injector::damage(const Strike& strike, std::span<const Part> parts,
                      std::span<const std::byte> before) {
  const auto restore = [&](std::size_t i, std::uint64_t first) {
    std::uint64_t offset = first;
    for (const Part& earlier : parts.first(i)) offset += earlier.bytes;
    std::memcpy(parts[i].to + first, before.subspan(offset).data(), parts[i].bytes - first);
  };
  const std::size_t struck = strike.hit.front();
  const Part& part = parts[struck];
  switch (strike.event.kind) {
    case InjectionKind::kFlip:
      flip(part.to, below(part.bytes * 8));
      break;
    case InjectionKind::kSwap:
      std::swap_ranges(part.to, part.to + part.bytes, parts[strike.hit.back()].to);
      break;
    case InjectionKind::kWrongSlot:
      if (strike.event.way == InjectionWay::kToTier) {
        restore(struck, 0);
      } else {
        std::memcpy(part.to, at(strike.other->first + part.offset), part.bytes);
      }
      break;
    case InjectionKind::kOldVersion:
      restore(struck, 0);
      break;
    case InjectionKind::kShort:
      restore(struck, below(part.bytes));
      for (const std::size_t i : std::span(strike.hit).subspan(1)) restore(i, 0);
  }
}

Injector::Slot& Injector::note_stored(std::uintptr_t slot, std::uint64_t bytes) {
  auto found = slots_.find(slot);
  if (found == slots_.end() || found->second.bytes != bytes) {
    forget_locked(slot, bytes);
    found = slots_.emplace(slot, Slot{.bytes = bytes}).first;
  }
  end_damage(*found);
  return found->second;
}

void Injector::note_arrived(std::span<const Part> parts) {
  for (const Part& part : parts) {
    const bool was_damaged = part.known != nullptr && !part.known->truth.empty();
    if (!part.cause && !was_damaged) continue;
    const std::byte* const expected =
        was_damaged ? part.known->truth.data() + part.offset : part.from;
    InjectionEvent event = part.cause ? *part.cause : part.known->cause;
    event.slot = part.slot;
    compare(event, {part.to, part.bytes}, expected);
    event.first_byte += part.offset;
    if (part.cause) write(event);
    event.what = What::kArrived;
    if (event.num_bytes != 0) write(event);
  }
}

void Injector::keep_truth(std::uintptr_t address, Slot& slot) {
  if (slot.truth.empty()) slot.truth.assign(at(address), at(address) + slot.bytes);
}

void Injector::judge(std::uintptr_t address, Slot& slot, const InjectionEvent& event) {
  slot.cause = event;
  slot.cause.slot = address;
  compare(slot.cause, {at(address), slot.bytes}, slot.truth.data());
  write(slot.cause);
  if (slot.cause.num_bytes == 0) slot.truth.clear();
}

void Injector::end_damage(Slots::value_type& slot) {
  if (slot.second.truth.empty()) return;
  slot.second.truth.clear();
  slot.second.cause.what = What::kReplaced;
  write(slot.second.cause);
}

void Injector::forget_locked(std::uintptr_t host, std::uint64_t bytes) {
  auto at = slots_.lower_bound(host);
  if (at != slots_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > host) --at;
  while (at != slots_.end() && at->first < host + bytes) {
    end_damage(*at);
    at = slots_.erase(at);
  }
}

void Injector::write(const InjectionEvent& event) {
  if (options_.log_file.empty()) {
    events_.push_back(event);
  } else {
    file_ << to_json(event) + "\n" << std::flush;
  }
}

}  // namespace kvferry::gpu
