// SPDX-License-Identifier: Apache-2.0
#include "tier_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace kvferry::cpu_tier {
namespace {

/// Slots that go out of use together.
constexpr std::uint32_t kRun = 4;

BlockKey key(TierRun::Number number) {
  std::array<std::byte, 16> hash{};
  std::memcpy(hash.data(), &number, sizeof number);
  return BlockKey::make(hash, GroupId(number % 3));
}

TierOptions with_key_events(TierOptions options) {
  options.key_events = true;
  return options;
}

}  // namespace

TierRun::TierRun(std::uint64_t seed, std::uint32_t max_slots, Number num_keys,
                 const TierOptions& options)
    : random_(seed),
      max_slots_(max_slots),
      num_keys_(num_keys),
      options_(options),
      tier_(max_slots, with_key_events(options)) {
  for (Number number = 0; number < num_keys; ++number) universe_.push_back(key(number));
}

void TierRun::step() {
  switch (below(options_.max_promised_share > 0 ? 21 : 19)) {
    case 0:
    case 1:
    case 2:
    case 3:
      reserve();
      break;
    case 4:
    case 5:
    case 6:
      end_store();
      break;
    case 7:
      end_doubt();
      break;
    case 8:
    case 9:
    case 10:
      lease();
      break;
    case 11:
    case 12:
    case 13:
      release();
      break;
    case 14:
      touch();
      break;
    case 15:
    case 16:
      offer();
      break;
    case 17:
      await();
      break;
    case 19:
    case 20:
      promise();
      break;
    default:
      rare();
      break;
  }
  compare();
}

void TierRun::finish() {
  while (!writable_.empty() || !aborted_.empty() || !quarantined_.empty() || !leases_.empty()) {
    end_store();
    end_doubt();
    release();
    compare();
  }
}

std::vector<TierRun::Number> TierRun::some_numbers() {
  std::vector<Number> numbers(1 + below(12));
  if (below(2) == 0) {
    std::iota(numbers.begin(), numbers.end(), below(num_keys_));
    for (Number& number : numbers) number %= num_keys_;
  } else {
    for (Number& number : numbers) number = below(num_keys_);
  }
  return numbers;
}

std::vector<BlockKey> TierRun::to_keys(const std::vector<Number>& numbers) {
  std::vector<BlockKey> keys;
  keys.reserve(numbers.size());
  for (const Number number : numbers) keys.push_back(key(number));
  return keys;
}

void TierRun::reserve() {
  std::vector<Number> numbers;
  std::set<Number> seen;
  std::optional<std::size_t> present;
  const bool absent_only = below(4) != 0;
  for (const Number number : some_numbers()) {
    if (model_.present(number)) {
      if (absent_only) continue;
      if (!present) present = numbers.size();
    }
    if (seen.insert(number).second) numbers.push_back(number);
  }
  const std::uint32_t room =
      std::min(model_.num_available(), static_cast<std::uint32_t>(numbers.size()));
  auto result = tier_.reserve(to_keys(numbers));
  ASSERT_EQ(result.ok(), numbers.size() == room && !present);
  if (!result.ok()) {
    ASSERT_EQ(result.otherwise().num_available, room);
    ASSERT_EQ(result.otherwise().present, numbers.size() == room ? present : std::nullopt);
    return;
  }
  if (!is_lru()) {
    ASSERT_EQ(model_.evict(numbers.size(), vanished(numbers)), "");
  }
  ReferenceTier::Set set = model_.reserve(numbers);
  if (below(6) == 0) {
    model_.free(set);  // The reservation is dropped with `result`.
    return;
  }
  writable_.push_back({std::move(result).value().hand_over(), std::move(set)});
}

void TierRun::end_store() {
  auto drawn = draw(writable_);
  if (!drawn) return;
  if (drawn->model.size() > 1 && below(4) == 0) {  // Some of the set later.
    const std::uint32_t kept = below(static_cast<std::uint32_t>(drawn->model.size()));
    const auto middle = drawn->model.begin() + kept;
    writable_.push_back({drawn->slots.split_off(kept), {middle, drawn->model.end()}});
    drawn->model.erase(middle, drawn->model.end());
  }
  if (below(3) != 0) {
    std::optional<Number> predecessor;
    if (below(2) == 0) predecessor = below(num_keys_);
    tier_.commit(std::move(drawn->slots),
                 predecessor ? std::optional(to_keys({*predecessor})[0]) : std::nullopt);
    model_.commit(drawn->model, predecessor);
  } else {
    model_.abort(drawn->model);
    aborted_.push_back({tier_.abort(std::move(drawn->slots)), std::move(drawn->model)});
  }
}

void TierRun::end_doubt() {
  if (auto drawn = draw(quarantined_); drawn && below(2) == 0) {
    tier_.release(std::move(drawn->slots));
    model_.free(drawn->model);
  } else if (drawn) {
    quarantined_.push_back(std::move(*drawn));
  }
  auto drawn = draw(aborted_);
  if (!drawn) return;
  if (below(3) == 0) {
    model_.quarantine(drawn->model);
    quarantined_.push_back({tier_.quarantine(std::move(drawn->slots)), std::move(drawn->model)});
  } else {
    tier_.release(std::move(drawn->slots));
    model_.free(drawn->model);
  }
}

void TierRun::lease() {
  std::vector<Number> numbers = some_numbers();
  std::size_t prefix = 0;
  while (prefix < numbers.size() && model_.readable(numbers[prefix])) ++prefix;
  ASSERT_EQ(tier_.lookup_prefix(to_keys(numbers)).size(), prefix);
  if (below(4) != 0) numbers.resize(prefix);
  auto result = tier_.lease(to_keys(numbers));
  ASSERT_EQ(result.ok(), prefix == numbers.size());
  if (result.ok()) {
    leases_.push_back({std::move(result).value(), model_.lease(numbers)});
  } else {
    ASSERT_EQ(result.otherwise().first, prefix);
  }
}

void TierRun::release() {
  auto drawn = draw(leases_);
  if (!drawn) return;
  tier_.release(std::move(drawn->slots));
  model_.release(drawn->model);
}

void TierRun::touch() {
  const std::vector<Number> numbers = some_numbers();
  tier_.touch(to_keys(numbers));
  model_.touch(numbers);
}

bool TierRun::is_lru() const {
  return options_.eviction == Eviction::kLru && options_.admission == Admission::kAlways &&
         options_.max_promised_share == 0;
}

std::set<TierRun::Number> TierRun::vanished(const std::vector<Number>& reserved) {
  std::vector<KeyState> states(universe_.size());
  tier_.lookup(universe_, states);
  std::set<Number> gone;
  for (Number number = 0; number < num_keys_; ++number) {
    if (states[number] == KeyState::kAbsent && model_.readable(number)) gone.insert(number);
  }
  for (const Number number : reserved) EXPECT_FALSE(gone.contains(number));
  return gone;
}

void TierRun::offer() {
  const std::vector<Number> numbers = some_numbers();
  std::vector<OfferAnswer> answers(numbers.size());
  tier_.offer(to_keys(numbers), answers);
  std::size_t num_absent = 0;
  std::size_t num_stored = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_EQ(answers[i] == OfferAnswer::kHeld, model_.present(numbers[i]));
    if (answers[i] == OfferAnswer::kHeld) continue;
    if (answers[i] == OfferAnswer::kStore) {
      ASSERT_EQ(num_stored, num_absent) << "stored behind one that was declined";
      ++num_stored;
    }
    ++num_absent;
  }
  ASSERT_GE(num_stored, std::min<std::size_t>(num_absent, model_.num_free()));
  if (options_.admission == Admission::kAlways) {
    // More would push out what stands before them.
    const auto after_held = std::find_if(answers.begin(), answers.end(), [](OfferAnswer answer) {
      return answer != OfferAnswer::kHeld;
    });
    const auto num_held = static_cast<std::size_t>(after_held - answers.begin());
    const std::size_t num_slots = model_.num_slots();
    const std::size_t num_fit = num_slots - std::min(num_slots, num_held);
    ASSERT_EQ(num_stored, num_slots == 0 ? num_absent : std::min(num_absent, num_fit));
  }
  num_offered_ += num_absent;
  num_declined_ += num_absent - num_stored;
  model_.touch(numbers);
}

void TierRun::await() {
  const std::vector<Number> numbers = some_numbers();
  if (below(4) == 0) {
    tier_.end_await(to_keys(numbers));
    model_.end_await(numbers);
    return;
  }
  tier_.await(to_keys(numbers));
  model_.await(numbers, static_cast<std::uint32_t>(options_.max_awaited_share *
                                                   static_cast<float>(model_.num_slots())));
}

void TierRun::promise() {
  if (below(10) == 0) return earn();
  if (!promises_.empty() && below(2) == 0) {
    std::swap(promises_[below(static_cast<std::uint32_t>(promises_.size()))], promises_.back());
    tier_.end_promise(to_keys(promises_.back()));
    for (const Number number : promises_.back()) {
      if (--promised_.at(number) == 0) promised_.erase(number);
    }
    promises_.pop_back();
    return;
  }
  const std::vector<Number> numbers = some_numbers();
  if (below(3) == 0) {
    const std::uint32_t num_early = tier_.leave_early(to_keys(numbers));
    ASSERT_LE(num_early, model_.num_evictable());
    return;
  }
  tier_.promise(to_keys(numbers));
  for (const Number number : numbers) ++promised_[number];
  promises_.push_back(numbers);
}

void TierRun::earn() {
  std::vector<Number> numbers(2 * PromiseLedger::kAskedPerCredit);
  std::iota(numbers.begin(), numbers.end(), num_keys_);
  std::vector<OfferAnswer> answers(numbers.size());
  tier_.offer(to_keys(numbers), answers);
  num_offered_ += numbers.size();
  num_declined_ += static_cast<std::uint64_t>(
      std::count(answers.begin(), answers.end(), OfferAnswer::kDeclined));
}

bool TierRun::any_named(ChunkRange slots) const {
  const auto any = [&slots](const auto& held) {
    return std::any_of(held.begin(), held.end(), [&slots](const auto& one) {
      return std::any_of(one.slots.slots().begin(), one.slots.slots().end(), [&slots](SlotId slot) {
        return slot.value() >= slots.begin.value() && slot.value() < slots.end.value();
      });
    });
  };
  const auto withdrawn = withdrawn_.lower_bound(slots.begin.value());
  return any(writable_) || any(aborted_) || any(quarantined_) || any(leases_) ||
         (withdrawn != withdrawn_.end() && *withdrawn < slots.end.value());
}

void TierRun::resize() {
  if (!retired_.empty() && below(2) == 0) {
    std::swap(retired_[below(static_cast<std::uint32_t>(retired_.size()))], retired_.back());
    const ChunkRange back = retired_.back();
    retired_.pop_back();
    tier_.chunks().restore(back);
    model_.grow_to(model_.num_slots() + back.end.value() - back.begin.value());
    return;
  }
  const std::optional<ChunkRange> gone = tier_.chunks().retire_coldest(kRun);
  if (gone) {
    ASSERT_FALSE(any_named(*gone));
    ASSERT_LE(gone->end.value(), num_grown_);
    ASSERT_EQ(model_.retire(gone->end.value() - gone->begin.value(), vanished({})), "");
    retired_.push_back(*gone);
    return;
  }
  for (std::uint32_t first = 0; first < num_grown_; first += kRun) {
    const ChunkRange run{ChunkId(first), ChunkId(std::min(first + kRun, max_slots_))};
    const auto is_same = [&run](ChunkRange other) { return other.begin == run.begin; };
    ASSERT_TRUE(run.end.value() > num_grown_ || any_named(run) ||
                std::any_of(retired_.begin(), retired_.end(), is_same))
        << "slot " << first << " and those after it could have gone";
  }
}

void TierRun::rare() {
  if (below(4) == 0) return resize();
  if (below(12) == 0) return withdraw();
  if (below(3) == 0) {
    const std::uint32_t before = num_grown_;
    num_grown_ = std::min(max_slots_, num_grown_ + below(max_slots_ / 4));
    tier_.grow_to(num_grown_);
    model_.grow_to(model_.num_slots() + num_grown_ - before);
  } else if (below(20) == 0) {
    std::vector<Number> everything(num_keys_);
    std::iota(everything.begin(), everything.end(), 0);
    tier_.forget_all();
    model_.forget(everything);
  } else if (auto drawn = draw(leases_)) {
    tier_.forget(drawn->slots);
    model_.forget_leased(drawn->model);
    leases_.push_back(std::move(*drawn));
  }
}

void TierRun::withdraw() {
  // They are never used again, and the others are to be.
  constexpr std::uint32_t kPart = 8;
  auto drawn = draw(leases_);
  if (!drawn) return;
  if (!drawn->model.empty() && withdrawn_.size() < max_slots_ / kPart) {
    const std::uint32_t at = below(static_cast<std::uint32_t>(drawn->model.size()));
    const SlotId slot = drawn->slots.slots()[at];
    const std::optional<Number> number = model_.readable_in(drawn->model[at]);
    const auto withdrawn = tier_.withdraw(drawn->slots, {&slot, 1});
    ASSERT_EQ(withdrawn, (std::vector<WithdrawnSlot>{
                             {slot, number ? std::optional(key(*number)) : std::nullopt, true}}));
    model_.withdraw(drawn->model[at]);
    withdrawn_.insert(slot.value());
  }
  leases_.push_back(std::move(*drawn));
}

void TierRun::compare() {
  std::vector<KeyState> states(universe_.size());
  tier_.lookup(universe_, states);
  for (Number number = 0; number < num_keys_; ++number) {
    const KeyState expected = model_.readable(number)  ? KeyState::kReadable
                              : model_.present(number) ? KeyState::kWritable
                                                       : KeyState::kAbsent;
    ASSERT_EQ(states[number], expected) << "key " << number;
  }
  compare_key_events(states);
  using State = ReferenceTier::State;
  const TierSnapshot now = tier_.snapshot();
  ASSERT_EQ(now.num_slots, model_.num_slots());
  ASSERT_EQ(now.num_free, model_.num_free());
  ASSERT_EQ(now.num_writable, model_.count(State::kWritable));
  ASSERT_EQ(now.num_aborted, model_.count(State::kAborted));
  ASSERT_EQ(now.num_evictable, model_.num_evictable());
  ASSERT_EQ(now.num_leased, model_.num_leased());
  ASSERT_EQ(now.num_dying, model_.count(State::kDying));
  ASSERT_EQ(now.num_quarantined, model_.count(State::kQuarantined));
  ASSERT_EQ(now.num_awaited, model_.num_awaited());
  ASSERT_EQ(now.num_promised, promised_.size());
  ASSERT_LE(now.num_stays, now.num_evictable);
  num_stays_seen_ += now.num_stays;
  num_early_seen_ = now.num_early_total;
  ASSERT_EQ(now.num_evicted_total, model_.num_evicted());
  ASSERT_EQ(now.num_offered_total, num_offered_);
  ASSERT_EQ(now.num_declined_total, num_declined_);
  ASSERT_EQ(tier_.eviction_epoch(), model_.epoch());
  check_slots();
  if (++num_compared_ % 8 == 0) tier_.check_invariants();  // Walks all: as dear as all the rest.
}

void TierRun::compare_key_events(std::span<const KeyState> states) {
  for (const KeyEvent& event : tier_.take_key_events()) {
    Number number = 0;
    std::memcpy(&number, event.key.hash.data(), sizeof number);
    ASSERT_EQ(told_readable_.contains(number), !event.readable) << "key " << number;
    if (event.readable) {
      told_readable_.insert(number);
    } else {
      told_readable_.erase(number);
    }
  }
  for (Number number = 0; number < num_keys_; ++number) {
    ASSERT_EQ(told_readable_.contains(number), states[number] == KeyState::kReadable)
        << "key " << number;
  }
}

void TierRun::check_slots() {
  std::set<std::uint32_t> written;
  const auto add = [&written](std::span<const SlotId> slots) {
    for (const SlotId slot : slots) EXPECT_TRUE(written.insert(slot.value()).second);
  };
  for (const auto& held : writable_) add(held.slots.slots());
  for (const auto& held : aborted_) add(held.slots.slots());
  for (const auto& held : quarantined_) add(held.slots.slots());
  for (const std::uint32_t slot : withdrawn_) EXPECT_FALSE(written.contains(slot));
  for (const auto& held : leases_) {
    for (const SlotId slot : held.slots.slots()) EXPECT_FALSE(written.contains(slot.value()));
  }
}

}  // namespace kvferry::cpu_tier
