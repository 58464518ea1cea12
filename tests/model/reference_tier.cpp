// SPDX-License-Identifier: Apache-2.0
#include "reference_tier.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {

ReferenceTier::Set ReferenceTier::reserve(const std::vector<Number>& numbers) {
  bool evicted = false;
  for (; num_free() < numbers.size(); evicted = true) {
    expire_awaited();
    evict(lru_.empty() ? awaited_.front() : lru_.front());
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

std::string ReferenceTier::evict(std::size_t num_needed, std::set<Number> victims) {
  bool evicted = false;
  for (; num_free() < num_needed; evicted = true) {
    expire_awaited();
    const auto& from = lru_.empty() ? awaited_ : lru_;
    const auto victim = std::find_if(from.begin(), from.end(), [&](Id id) {
      return victims.contains(incarnations_.at(id).number);
    });
    if (victim == from.end()) {
      return std::to_string(victims.size()) +
             " evicted blocks were leased, or awaited before others";
    }
    victims.erase(incarnations_.at(*victim).number);
    evict(*victim);
  }
  if (evicted) ++epoch_;
  return victims.empty() ? "" : std::to_string(victims.size()) + " blocks too many were evicted";
}

void ReferenceTier::evict(Id id) {
  unlist(id);
  by_number_.erase(incarnations_.at(id).number);
  incarnations_.erase(id);
  ++num_evicted_;
}

std::string ReferenceTier::retire(std::uint32_t num_slots, const std::set<Number>& victims) {
  for (const Number number : victims) {
    const Id id = by_number_.at(number);
    if (incarnations_.at(id).num_leases != 0) {
      return "block " + std::to_string(number) + " is leased";
    }
    unlist(id);
    by_number_.erase(number);
    incarnations_.erase(id);
    ++num_retired_;
  }
  if (!victims.empty()) ++epoch_;
  num_slots_ -= num_slots;
  return incarnations_.size() <= num_slots_ ? "" : "a slot in use went with its chunk";
}

void ReferenceTier::unlist(Id id) {
  lru_.remove(id);
  awaited_.remove(id);
  incarnations_.at(id).num_waiting = 0;
}

void ReferenceTier::expire_awaited() {
  if (awaited_.empty()) return;
  const Id id = awaited_.front();
  if (num_evicted_ - incarnations_.at(id).awaited_since < num_slots_) return;
  end_waiting(id);
}

void ReferenceTier::end_waiting(Id id) {
  unlist(id);
  lru_.push_back(id);
}

void ReferenceTier::await(const std::vector<Number>& numbers, std::uint32_t max_awaited) {
  if (max_awaited == 0) return;
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    if (!readable(*number)) continue;
    const Id id = by_number_.at(*number);
    Incarnation& block = incarnations_.at(id);
    if (block.num_leases != 0) continue;
    const std::uint32_t num_waiting = block.num_waiting;
    unlist(id);
    awaited_.push_back(id);
    block.awaited_since = num_evicted_;
    block.num_waiting = num_waiting + 1;
    if (awaited_.size() > max_awaited) end_waiting(awaited_.front());
  }
}

void ReferenceTier::end_await(const std::vector<Number>& numbers) {
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    if (!readable(*number)) continue;
    const Id id = by_number_.at(*number);
    Incarnation& block = incarnations_.at(id);
    if (block.num_waiting > 0 && --block.num_waiting == 0) end_waiting(id);
  }
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
    unlist(id);
    set.push_back(id);
  }
  return set;
}

void ReferenceTier::release(const Set& lease) {
  for (auto id = lease.rbegin(); id != lease.rend(); ++id) {
    Incarnation& incarnation = incarnations_.at(*id);
    if (--incarnation.num_leases != 0) continue;
    if (incarnation.is_withdrawn) {
      incarnation.state = State::kQuarantined;
    } else if (incarnation.state == State::kDying) {
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
    unlist(id);
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
    unlist(id);
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

void ReferenceTier::withdraw(Id id) {
  incarnations_.at(id).is_withdrawn = true;
  forget_leased({id});
}

std::optional<ReferenceTier::Number> ReferenceTier::readable_in(Id id) const {
  const Incarnation& block = incarnations_.at(id);
  return block.state == State::kReadable ? std::optional(block.number) : std::nullopt;
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
