// SPDX-License-Identifier: Apache-2.0
#include "reference_tier.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {

ReferenceTier::Set ReferenceTier::reserve(const std::vector<Number>& numbers) {
  bool evicted = false;
  for (; num_free() < numbers.size(); ++num_evicted_, evicted = true) {
    by_number_.erase(incarnations_.at(lru_.front()).number);
    incarnations_.erase(lru_.front());
    lru_.pop_front();
  }
  if (evicted) ++epoch_;
  Set set;
  for (const Number number : numbers) {
    incarnations_[next_id_] = Incarnation{number, State::kWritable};
    by_number_[number] = next_id_;
    set.push_back(next_id_++);
  }
  return set;
}

void ReferenceTier::commit(const Set& set, std::optional<Number> predecessor) {
  auto warmer = lru_.end();
  if (predecessor && by_number_.contains(*predecessor)) {
    warmer = std::find(lru_.begin(), lru_.end(), by_number_.at(*predecessor));
  }
  for (const Id id : set) {
    incarnations_.at(id).state = State::kReadable;
    warmer = lru_.insert(warmer, id);
  }
}

void ReferenceTier::abort(const Set& set) {
  for (const Id id : set) {
    incarnations_.at(id).state = State::kAborted;
    by_number_.erase(incarnations_.at(id).number);
  }
}

void ReferenceTier::quarantine(const Set& set) {
  for (const Id id : set) incarnations_.at(id).state = State::kQuarantined;
}

void ReferenceTier::free(const Set& set) {
  for (const Id id : set) {
    if (incarnations_.at(id).state == State::kWritable) {
      by_number_.erase(incarnations_.at(id).number);
    }
    incarnations_.erase(id);
  }
}

ReferenceTier::Set ReferenceTier::lease(const std::vector<Number>& numbers) {
  Set set;
  for (const Number number : numbers) {
    const Id id = by_number_.at(number);
    ++incarnations_.at(id).num_leases;
    lru_.remove(id);
    set.push_back(id);
  }
  return set;
}

void ReferenceTier::release(const Set& lease) {
  for (auto id = lease.rbegin(); id != lease.rend(); ++id) {
    Incarnation& incarnation = incarnations_.at(*id);
    if (--incarnation.num_leases != 0) continue;
    if (incarnation.state == State::kDying) {
      incarnations_.erase(*id);
    } else {
      lru_.push_back(*id);
    }
  }
}

void ReferenceTier::touch(const std::vector<Number>& numbers) {
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    if (!readable(*number)) continue;
    const Id id = by_number_.at(*number);
    if (incarnations_.at(id).num_leases != 0) continue;
    lru_.remove(id);
    lru_.push_back(id);
  }
}

void ReferenceTier::forget(const std::vector<Number>& numbers) {
  bool forgot = false;
  for (const Number number : numbers) {
    if (!readable(number)) continue;
    forgot = true;
    const Id id = by_number_.at(number);
    by_number_.erase(number);
    lru_.remove(id);
    if (incarnations_.at(id).num_leases == 0) {
      incarnations_.erase(id);
    } else {
      incarnations_.at(id).state = State::kDying;
    }
  }
  if (forgot) ++epoch_;
}

void ReferenceTier::forget_leased(const Set& lease) {
  std::vector<Number> numbers;
  for (const Id id : lease) {
    if (incarnations_.at(id).state == State::kReadable) {
      numbers.push_back(incarnations_.at(id).number);
    }
  }
  forget(numbers);
}

bool ReferenceTier::readable(Number number) const {
  const auto found = by_number_.find(number);
  return found != by_number_.end() && incarnations_.at(found->second).state == State::kReadable;
}

std::uint32_t ReferenceTier::num_leased() const {
  return count(State::kReadable) - num_evictable();
}

std::uint32_t ReferenceTier::count(State state) const {
  return static_cast<std::uint32_t>(
      std::count_if(incarnations_.begin(), incarnations_.end(),
                    [state](const auto& entry) { return entry.second.state == state; }));
}

}  // namespace kvferry::cpu_tier
