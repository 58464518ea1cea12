// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {

/// What CpuTier promises, in the plainest containers: blocks named by number, no slots, an LRU that
/// is a std::list. A set that is out is held by its user as the list of its incarnations.
class ReferenceTier {
 public:
  using Number = std::uint32_t;
  enum class State : std::uint8_t { kWritable, kAborted, kReadable, kDying, kQuarantined };
  /// One slot's life from reserve to free.
  struct Incarnation {
    Number number;
    State state;
    std::uint32_t num_leases = 0;
  };
  using Id = std::uint64_t;
  using Set = std::vector<Id>;

  void grow_to(std::uint32_t num_slots) { num_slots_ = num_slots; }
  [[nodiscard]] std::uint32_t num_available() const { return num_free() + num_evictable(); }
  /// Evicts the coldest if it must; `numbers` fit.
  [[nodiscard]] Set reserve(const std::vector<Number>& numbers);
  /// Right before `predecessor` in the order of eviction, if that is given and evictable.
  void commit(const Set& set, std::optional<Number> predecessor);
  void abort(const Set& set);
  void quarantine(const Set& set);
  /// Writable (a dropped reservation), aborted or quarantined.
  void free(const Set& set);
  /// All are readable.
  [[nodiscard]] Set lease(const std::vector<Number>& numbers);
  void release(const Set& lease);
  void touch(const std::vector<Number>& numbers);
  void forget(const std::vector<Number>& numbers);
  /// Those of the lease that are still readable.
  void forget_leased(const Set& lease);

  [[nodiscard]] bool present(Number number) const { return by_number_.contains(number); }
  [[nodiscard]] bool readable(Number number) const;
  [[nodiscard]] std::uint32_t num_slots() const { return num_slots_; }
  [[nodiscard]] std::uint32_t num_free() const {
    return num_slots_ - static_cast<std::uint32_t>(incarnations_.size());
  }
  [[nodiscard]] std::uint32_t num_evictable() const {
    return static_cast<std::uint32_t>(lru_.size());
  }
  [[nodiscard]] std::uint32_t num_leased() const;
  [[nodiscard]] std::uint32_t count(State state) const;
  [[nodiscard]] std::uint64_t num_evicted() const { return num_evicted_; }
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }

 private:
  std::map<Id, Incarnation> incarnations_;
  std::map<Number, Id> by_number_;  ///< Writable and readable ones.
  std::list<Id> lru_;               ///< Coldest first.
  std::uint32_t num_slots_ = 0;
  Id next_id_ = 1;
  std::uint64_t num_evicted_ = 0;
  std::uint64_t epoch_ = 0;
};

}  // namespace kvferry::cpu_tier
