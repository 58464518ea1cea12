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

/// What PlainTier promises, in the plainest containers: blocks named by number, no slots, an LRU
/// that is a std::list. A set that is out is held by its user as the list of its incarnations.
/// Where another policy than LRU decides, it is told which blocks were evicted, and says whether
/// they could be.
class ReferenceTier {
 public:
  using Number = std::uint32_t;
  enum class State : std::uint8_t { kWritable, kAborted, kReadable, kDying, kQuarantined };
  /// One slot's life from reserve to free.
  struct Incarnation {
    Number number;
    State state;
    std::uint32_t num_leases = 0;
    std::uint32_t num_waiting = 0;    ///< While it is on awaited_.
    std::uint64_t awaited_since = 0;  ///< num_evicted() then; while it is on awaited_.
    bool is_withdrawn = false;        ///< In quarantine for good after its last lease.
  };
  using Id = std::uint64_t;
  using Set = std::vector<Id>;

  void grow_to(std::uint32_t num_slots) { num_slots_ = num_slots; }
  [[nodiscard]] std::uint32_t num_available() const { return num_free() + num_evictable(); }
  /// Evicts the coldest if it must; `numbers` fit.
  [[nodiscard]] Set reserve(const std::vector<Number>& numbers);
  /// As many blocks as must leave for `num_needed`, and those of `victims`, leave; empty if so,
  /// else what is wrong with them.
  [[nodiscard]] std::string evict(std::size_t num_needed, std::set<Number> victims);
  /// So many slots go out of use, with the blocks of `victims`; empty if they can, else why not.
  [[nodiscard]] std::string retire(std::uint32_t num_slots, const std::set<Number>& victims);
  /// Readable ones without a lease leave after all others, for a while.
  void await(const std::vector<Number>& numbers, std::uint32_t max_awaited);
  /// One who waits for them does so no more.
  void end_await(const std::vector<Number>& numbers);
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
  /// One of a lease, which has leased its block.
  void withdraw(Id id);

  [[nodiscard]] bool present(Number number) const { return by_number_.contains(number); }
  [[nodiscard]] bool readable(Number number) const;
  /// Of a lease: its block, if that can still be read there.
  [[nodiscard]] std::optional<Number> readable_in(Id id) const;
  [[nodiscard]] std::uint32_t num_slots() const { return num_slots_; }
  [[nodiscard]] std::uint32_t num_free() const {
    return num_slots_ - static_cast<std::uint32_t>(incarnations_.size());
  }
  [[nodiscard]] std::uint32_t num_evictable() const {
    return static_cast<std::uint32_t>(lru_.size() + awaited_.size());
  }
  [[nodiscard]] std::uint32_t num_awaited() const {
    return static_cast<std::uint32_t>(awaited_.size());
  }
  [[nodiscard]] std::uint32_t num_leased() const;
  [[nodiscard]] std::uint32_t count(State state) const;
  [[nodiscard]] std::uint64_t num_evicted() const { return num_evicted_ + num_retired_; }
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }

 private:
  /// Off the lists of evictable ones, if it is on one.
  void unlist(Id id);
  /// Whoever has been awaited for a turnover of the tier is so no more.
  void expire_awaited();
  /// From awaited_ to the end of lru_.
  void end_waiting(Id id);
  void evict(Id id);

  std::map<Id, Incarnation> incarnations_;
  std::map<Number, Id> by_number_;  ///< Writable and readable ones.
  std::list<Id> lru_;               ///< Coldest first.
  std::list<Id> awaited_;           ///< Longest awaited first. Evictable, not on lru_.
  std::uint32_t num_slots_ = 0;
  Id next_id_ = 1;
  std::uint64_t num_evicted_ = 0;
  std::uint64_t num_retired_ = 0;  ///< Left with their slots.
  std::uint64_t epoch_ = 0;
};

}  // namespace kvferry::cpu_tier
