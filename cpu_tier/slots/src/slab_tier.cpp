// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/slab_tier.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/slots/block_index.hpp"

#include <algorithm>
#include <string>

namespace kvferry::cpu_tier {
namespace {

/// A chunk changes its class when it has lain unused for so many times as long as the other's
/// blocks live, and so many marks more: so that none goes to and fro between two that are alike.
constexpr std::uint32_t kTimesOlder = 2;
constexpr std::uint32_t kMarksOlder = 2;

/// Chunks that one reservation looks at without knowing that they are cold. A look ends at the
/// first named slot.
constexpr std::uint32_t kMostLooked = 256;

}  // namespace

SlabTier::SlabTier(std::uint32_t max_chunks, const TierOptions& options, TierDirectory* directory)
    : max_chunks_(max_chunks), options_(options), directory_(directory) {}

SlabClassId SlabTier::add_class(std::uint32_t slots_per_chunk) {
  MutexLock lock(mutex_);
  const std::uint32_t number = num_classes();
  if (number == kMaxClasses) {
    throw ConfigError("more than " + std::to_string(kMaxClasses) +
                      " sizes of slots in one CPU tier: use fewer sizes of objects");
  }
  const std::uint64_t num_slots = std::uint64_t{max_chunks_} * slots_per_chunk;
  if (slots_per_chunk == 0 || num_slots > BlockIndex::kMaxSlots) {
    throw ConfigError("a CPU tier of " + std::to_string(max_chunks_) + " chunks with " +
                      std::to_string(slots_per_chunk) +
                      " slots each; allowed are 1 slot per chunk to " +
                      std::to_string(BlockIndex::kMaxSlots) + " slots in all: use larger objects");
  }
  const auto has_as_many = [slots_per_chunk](const auto& other) {
    return other->slots_per_chunk == slots_per_chunk;
  };
  const auto num_alike = static_cast<std::uint32_t>(
      std::count_if(classes_.begin(), classes_.begin() + number, has_as_many));
  classes_[number] = std::make_unique<SlabClass>(
      max_chunks_, ChunkShape{slots_per_chunk, num_alike}, options_, directory_);
  num_classes_.store(number + 1, std::memory_order_release);
  return SlabClassId(number);
}

SlabTier::SlabClass& SlabTier::slab_class(SlabClassId of) const {
  KVFERRY_CHECK(of.value() < num_classes(), "slab class " + std::to_string(of.value()) + " of " +
                                                std::to_string(num_classes()));
  return *classes_[of.value()];
}

void SlabTier::grow_to(std::uint32_t num_chunks) {
  MutexLock lock(mutex_);
  KVFERRY_CHECK(num_chunks >= owners_.size() && num_chunks <= max_chunks_,
                "grow_to(" + std::to_string(num_chunks) + ") of a tier of " +
                    std::to_string(owners_.size()) + " chunks, at most " +
                    std::to_string(max_chunks_));
  if (directory_ != nullptr) {
    owners_.resize(num_chunks, kNobody);
    directory_->set_reach(num_chunks);
    return;
  }
  // The lowest is taken first.
  std::vector<std::uint32_t> free_chunks;
  for (std::uint32_t chunk = num_chunks; chunk > owners_.size(); --chunk) {
    free_chunks.push_back(chunk - 1);
  }
  free_chunks.insert(free_chunks.end(), free_chunks_.begin(), free_chunks_.end());
  free_chunks_ = std::move(free_chunks);
  owners_.resize(num_chunks, kNobody);
}

void SlabTier::offer(SlabClassId of, std::span<const BlockKey> keys,
                     std::span<OfferAnswer> answers) {
  SlabClass& mine = slab_class(of);
  MutexLock lock(mutex_);
  const std::size_t num_chunks = directory_ == nullptr ? free_chunks_.size() : num_unowned_;
  mine.tier.offer(keys, answers, num_chunks * mine.slots_per_chunk);
}

Result<Reservation, NotReserved> SlabTier::reserve(SlabClassId of, std::span<const BlockKey> keys) {
  SlabClass& mine = slab_class(of);
  MutexLock lock(mutex_);
  if (keys.size() <= std::uint64_t{mine.slots_per_chunk} * owners_.size()) {
    make_room(of.value(), static_cast<std::uint32_t>(keys.size()));
  }
  auto reserved = mine.tier.reserve(keys);
  if (reserved.ok()) count_turnover(of.value(), keys.size());
  return reserved;
}

void SlabTier::make_room(std::uint32_t of, std::uint32_t count) {
  SlabClass& mine = *classes_[of];
  std::uint32_t num_free = mine.tier.snapshot().num_free;
  while (num_free < count) {
    const std::optional<std::uint32_t> num_added = add_chunk(of);
    if (!num_added) break;
    num_free += *num_added;
  }
  if (num_free >= count) return;
  const TierSnapshot now = mine.tier.snapshot();

  const auto gain = [&](std::uint32_t chunk) KVFERRY_REQUIRES(mutex_) {
    give(of, chunk);
    ++mine.num_gained_total;
    num_free += mine.slots_per_chunk;
  };
  while (num_free + now.num_evictable < count) {
    std::optional<std::uint32_t> chunk = take_coldest(of, 0);
    if (!chunk) chunk = take_any(of);
    if (!chunk) return;
    gain(*chunk);
  }
  if (num_free >= count ||
      now.num_evicted_total - mine.num_evicted_at_gain < mine.slots_per_chunk) {
    return;
  }
  const std::uint32_t age =
      mine.ages.marks_since(mine.tier.clock(), mine.tier.coldest_age().value_or(0));
  if (const auto chunk = take_coldest(of, kTimesOlder * age + kMarksOlder)) gain(*chunk);
  mine.num_evicted_at_gain = now.num_evicted_total;
}

std::optional<std::uint32_t> SlabTier::add_chunk(std::uint32_t of) {
  if (directory_ != nullptr) return add_shared_chunk(of);
  if (free_chunks_.empty()) return std::nullopt;
  give(of, free_chunks_.back());
  free_chunks_.pop_back();
  return classes_[of]->slots_per_chunk;
}

void SlabTier::give(std::uint32_t of, std::uint32_t chunk) {
  SlabClass& mine = *classes_[of];
  if (directory_ != nullptr) directory_->divide(chunk, mine.shape);
  owners_[chunk] = static_cast<std::uint8_t>(of);
  ++mine.num_chunks;
  mine.tier.add_slots(slots_of(mine, chunk));
}

bool SlabTier::take(std::uint32_t chunk) {
  SlabClass& from = *classes_[owners_[chunk]];
  if (!from.tier.remove_slots(slots_of(from, chunk))) return false;
  owners_[chunk] = kNobody;
  --from.num_chunks;
  return true;
}

std::optional<std::uint32_t> SlabTier::take_coldest(std::uint32_t for_class,
                                                    std::uint32_t least_age) {
  std::optional<std::uint32_t> coldest;
  for (std::uint32_t i = 0; i < num_classes(); ++i) {
    const SlabClass& from = *classes_[i];
    if (i == for_class || from.num_chunks == 0) continue;
    const std::optional<ColdRange> range = from.tier.coldest_range(from.slots_per_chunk);
    if (!range) continue;
    const std::uint32_t age = range->age ? from.ages.marks_since(from.tier.clock(), *range->age)
                                         : TurnoverClock::kMostAge + 1;
    if (age < least_age || (coldest && age == least_age)) continue;
    least_age = age;
    coldest = range->slots.first / from.slots_per_chunk;
  }
  // By now somebody may have leased of it.
  if (!coldest || !take(*coldest)) return std::nullopt;
  return coldest;
}

std::optional<std::uint32_t> SlabTier::take_any(std::uint32_t for_class) {
  const auto num_chunks = static_cast<std::uint32_t>(owners_.size());
  for (std::uint32_t i = 0; i < std::min(kMostLooked, num_chunks); ++i) {
    const std::uint32_t chunk = next_looked_ % num_chunks;
    next_looked_ = chunk + 1;
    if (owners_[chunk] != for_class && owners_[chunk] != kNobody && take(chunk)) return chunk;
  }
  return std::nullopt;
}

void SlabTier::count_turnover(std::uint32_t of, std::size_t num_slots) {
  num_turned_over_ += static_cast<double>(num_slots) / classes_[of]->slots_per_chunk;
  const double mark = static_cast<double>(num_owned()) / TurnoverClock::kMarksPerTurnover;
  for (; num_turned_over_ >= mark && mark > 0; num_turned_over_ -= mark) {
    for (std::uint32_t i = 0; i < num_classes(); ++i) {
      classes_[i]->ages.mark(classes_[i]->tier.clock());
    }
  }
}

std::uint32_t SlabTier::num_owned() const {
  std::uint32_t sum = 0;
  for (std::uint32_t i = 0; i < num_classes(); ++i) sum += classes_[i]->num_chunks;
  return sum;
}

SlabSnapshot SlabTier::snapshot() const {
  MutexLock lock(mutex_);
  SlabSnapshot now{num_owned() + static_cast<std::uint32_t>(free_chunks_.size()),
                   static_cast<std::uint32_t>(free_chunks_.size()),
                   {}};
  for (std::uint32_t i = 0; i < num_classes(); ++i) {
    const SlabClass& one = *classes_[i];
    now.classes.push_back(
        {one.slots_per_chunk, one.num_chunks, one.num_gained_total, one.tier.snapshot()});
  }
  return now;
}

void SlabTier::check_invariants() const {
  MutexLock lock(mutex_);
  std::vector<std::uint32_t> num_owned(num_classes());
  std::size_t num_free = 0;
  for (const std::uint8_t owner : owners_) {
    if (owner == kNobody) {
      ++num_free;
    } else {
      ++num_owned.at(owner);
    }
  }
  KVFERRY_CHECK(directory_ != nullptr || num_free == free_chunks_.size(),
                "a chunk of no class is not listed");
  for (const std::uint32_t chunk : free_chunks_) {
    KVFERRY_CHECK(owners_.at(chunk) == kNobody, "a listed chunk has a class");
  }
  for (std::uint32_t i = 0; i < num_classes(); ++i) {
    const SlabClass& one = *classes_[i];
    one.tier.check_invariants();
    KVFERRY_CHECK(one.num_chunks == num_owned[i] &&
                      one.tier.snapshot().num_slots == num_owned[i] * one.slots_per_chunk,
                  "class " + std::to_string(i) + " has other slots than its chunks have");
    for (std::uint32_t chunk = 0; chunk < owners_.size(); ++chunk) {
      KVFERRY_CHECK(one.tier.num_slots_in(slots_of(one, chunk)) ==
                        (owners_[chunk] == i ? one.slots_per_chunk : 0),
                    "the slots of chunk " + std::to_string(chunk) + " are not all of one class");
    }
  }
}

}  // namespace kvferry::cpu_tier
