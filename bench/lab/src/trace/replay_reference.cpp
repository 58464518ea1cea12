// SPDX-License-Identifier: Apache-2.0
#include "measure/stopwatch.hpp"
#include "trace/replay.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::bench::trace {
namespace {

/// A queue of blocks, linked through arrays: first in, first out, with access to the middle.
class BlockList {
 public:
  explicit BlockList(std::uint32_t num_blocks)
      : next_(num_blocks + 1), before_(num_blocks + 1), listed_(num_blocks), end_(num_blocks) {
    next_[end_] = before_[end_] = end_;
  }
  void push(std::uint32_t block) {
    next_[block] = end_;
    before_[block] = before_[end_];
    next_[before_[end_]] = block;
    before_[end_] = block;
    listed_[block] = true;
    ++size_;
  }
  void erase(std::uint32_t block) {
    next_[before_[block]] = next_[block];
    before_[next_[block]] = before_[block];
    listed_[block] = false;
    --size_;
  }
  std::uint32_t pop() {
    const std::uint32_t block = oldest();
    erase(block);
    return block;
  }
  [[nodiscard]] std::uint32_t oldest() const { return next_[end_]; }
  /// The block that was pushed after it, or end().
  [[nodiscard]] std::uint32_t newer(std::uint32_t block) const { return next_[block]; }
  [[nodiscard]] std::uint32_t end() const { return end_; }
  [[nodiscard]] bool holds(std::uint32_t block) const { return listed_[block]; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> before_;
  std::vector<bool> listed_;
  std::uint32_t end_;
  std::size_t size_ = 0;
};

enum class Outcome : std::uint8_t { kHit, kStored, kDeclined };

class SecondSight {
 public:
  SecondSight(const Trace& trace, std::uint32_t capacity)
      : capacity_(capacity), lru_(trace.num_distinct()), seen_(trace.num_distinct()) {}
  [[nodiscard]] bool holds(std::uint32_t block) const { return lru_.holds(block); }
  Outcome access(std::uint32_t block, std::size_t /*at*/) {
    if (lru_.holds(block)) {
      lru_.erase(block);
      lru_.push(block);
      return Outcome::kHit;
    }
    if (!seen_[block]) {
      seen_[block] = true;
      return Outcome::kDeclined;
    }
    if (lru_.size() == capacity_) lru_.pop();
    lru_.push(block);
    return Outcome::kStored;
  }

 private:
  std::size_t capacity_;
  BlockList lru_;
  std::vector<bool> seen_;
};

class S3Fifo {
 public:
  S3Fifo(const Trace& trace, std::uint32_t capacity)
      : capacity_(capacity),
        max_small_(std::max<std::size_t>(1, capacity / 10)),
        small_(trace.num_distinct()),
        main_(trace.num_distinct()),
        ghosts_(trace.num_distinct()),
        uses_(trace.num_distinct()) {}
  [[nodiscard]] bool holds(std::uint32_t block) const {
    return small_.holds(block) || main_.holds(block);
  }
  Outcome access(std::uint32_t block, std::size_t /*at*/) {
    if (holds(block)) {
      uses_[block] = static_cast<std::uint8_t>(std::min(uses_[block] + 1, 3));
      return Outcome::kHit;
    }
    const bool known = ghosts_.holds(block);
    while (small_.size() + main_.size() >= capacity_) evict();
    uses_[block] = 0;
    if (known) ghosts_.erase(block);
    (known ? main_ : small_).push(block);
    return Outcome::kStored;
  }

 private:
  void evict() {
    while (small_.size() >= max_small_ || main_.size() == 0) {
      const std::uint32_t block = small_.pop();
      if (uses_[block] <= 1) {
        if (ghosts_.size() == capacity_ - max_small_) ghosts_.pop();
        ghosts_.push(block);
        return;
      }
      uses_[block] = 0;
      main_.push(block);
      if (main_.size() > capacity_ - max_small_) break;
    }
    for (std::uint32_t block = main_.pop(); uses_[block] > 0; block = main_.pop()) {
      --uses_[block];
      main_.push(block);
    }
  }

  std::size_t capacity_;
  std::size_t max_small_;
  BlockList small_;
  BlockList main_;
  BlockList ghosts_;
  std::vector<std::uint8_t> uses_;
};

class Sieve {
 public:
  Sieve(const Trace& trace, std::uint32_t capacity)
      : capacity_(capacity),
        blocks_(trace.num_distinct()),
        visited_(trace.num_distinct()),
        hand_(blocks_.end()) {}
  [[nodiscard]] bool holds(std::uint32_t block) const { return blocks_.holds(block); }
  Outcome access(std::uint32_t block, std::size_t /*at*/) {
    if (blocks_.holds(block)) {
      visited_[block] = true;
      return Outcome::kHit;
    }
    if (blocks_.size() == capacity_) evict();
    blocks_.push(block);
    visited_[block] = false;
    return Outcome::kStored;
  }

 private:
  void evict() {
    if (hand_ == blocks_.end()) hand_ = blocks_.oldest();
    while (visited_[hand_]) {
      visited_[hand_] = false;
      hand_ = blocks_.newer(hand_);
      if (hand_ == blocks_.end()) hand_ = blocks_.oldest();
    }
    blocks_.erase(std::exchange(hand_, blocks_.newer(hand_)));
  }

  std::size_t capacity_;
  BlockList blocks_;
  std::vector<bool> visited_;
  std::uint32_t hand_;
};

/// Says when each block of a request is needed again. Positions count all accesses. Prompts that
/// come again share prefixes, whose blocks are needed again one after the other. So the uses are
/// kept as runs, which take little memory.
class NextUses {
 public:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  explicit NextUses(const Trace& trace) {
    std::vector<std::uint64_t> upcoming(trace.num_distinct(), kNever);
    ends_.resize(trace.num_requests());
    std::uint64_t position = trace.num_accesses();
    for (std::size_t index = trace.num_requests(); index-- > 0;) {
      const auto blocks = trace.request(index);
      position -= blocks.size();
      for (std::size_t i = blocks.size(); i-- > 0;) {
        push(std::exchange(upcoming[blocks[i]], position + i));
      }
      ends_[index] = runs_.size();
      begins_run_ = true;
    }
  }
  /// The positions at which the blocks of a request are needed again. Valid until the next call.
  std::span<const std::uint64_t> of_request(std::size_t index, std::size_t count) {
    uses_.clear();
    // They were noted backwards, from the last block of the last request.
    for (std::size_t run = ends_[index]; uses_.size() < count;) {
      const Run& one = runs_[--run];
      for (std::uint32_t i = one.count; i-- > 0;) {
        uses_.push_back(one.last == kNever ? kNever : one.last - i);
      }
    }
    return uses_;
  }

 private:
  struct Run {
    std::uint64_t last;  ///< Position of the last use.
    std::uint32_t count;
  };
  void push(std::uint64_t use) {
    if (!std::exchange(begins_run_, false)) {
      Run& run = runs_.back();
      const bool goes_on = run.last == kNever ? use == kNever : use == run.last - run.count;
      if (goes_on) {
        ++run.count;
        return;
      }
    }
    runs_.push_back({use, 1});
  }

  std::vector<Run> runs_;
  std::vector<std::size_t> ends_;  ///< For each request, where its runs end.
  std::vector<std::uint64_t> uses_;
  bool begins_run_ = true;
};

class Optimum {
 public:
  Optimum(const Trace& trace, std::uint32_t capacity)
      : capacity_(capacity), follows_(trace), next_use_(trace.num_distinct(), kAbsent) {}
  [[nodiscard]] bool holds(std::uint32_t block) const { return next_use_[block] != kAbsent; }
  void begin_request(std::size_t index, std::size_t count) {
    uses_ = follows_.of_request(index, count);
  }
  Outcome access(std::uint32_t block, std::size_t at) {
    const bool hit = holds(block);
    if (!hit && num_held_++ == capacity_) evict();
    next_use_[block] = uses_[at];
    latest_.emplace_back(uses_[at], block);
    std::push_heap(latest_.begin(), latest_.end());
    if (latest_.size() > 4 * capacity_ + kFewEntries) drop_overtaken();
    return hit ? Outcome::kHit : Outcome::kStored;
  }

 private:
  static constexpr std::uint64_t kAbsent = NextUses::kNever - 1;
  static constexpr std::size_t kFewEntries = 4096;

  void evict() {
    // An entry is skipped if a later use of its block has replaced it.
    while (next_use_[latest_.front().second] != latest_.front().first) pop();
    next_use_[latest_.front().second] = kAbsent;
    pop();
    --num_held_;
  }
  void pop() {
    std::pop_heap(latest_.begin(), latest_.end());
    latest_.pop_back();
  }
  void drop_overtaken() {
    std::erase_if(latest_,
                  [this](const auto& entry) { return next_use_[entry.second] != entry.first; });
    // A block that is never needed again may have one entry for each use.
    std::sort(latest_.begin(), latest_.end());
    latest_.erase(std::unique(latest_.begin(), latest_.end()), latest_.end());
    std::make_heap(latest_.begin(), latest_.end());
  }

  std::size_t capacity_;
  std::size_t num_held_ = 0;
  NextUses follows_;
  std::span<const std::uint64_t> uses_;  ///< The next uses of the request's blocks.
  std::vector<std::uint64_t> next_use_;
  /// A heap.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> latest_;
};

/// The order of accesses within a request. The clairvoyant policy looks at positions, so it takes
/// the accesses in their own order.
enum class Order : std::uint8_t { kLastToFirst, kFirstToLast };

template <class Policy>
ReplayResult replay(const Trace& trace, std::uint32_t capacity, Order order) {
  const Stopwatch clock;
  Policy policy(trace, capacity);
  ReplayResult result;
  for (std::size_t index = 0; index < trace.num_requests(); ++index) {
    const auto blocks = trace.request(index);
    const auto missing = std::find_if(blocks.begin(), blocks.end(),
                                      [&](std::uint32_t block) { return !policy.holds(block); });
    const auto num_loads = static_cast<std::uint64_t>(missing - blocks.begin());
    result.num_loads += num_loads;
    result.num_loaded_tokens += trace.prefix_tokens(index, num_loads);
    // All blocks are counted before the first access, which may evict others of the same request.
    for (const std::uint32_t block : blocks) {
      ++(policy.holds(block) ? result.num_hits : result.num_misses);
    }
    if constexpr (requires { policy.begin_request(index, blocks.size()); }) {
      policy.begin_request(index, blocks.size());
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t at = order == Order::kFirstToLast ? i : blocks.size() - 1 - i;
      if (policy.access(blocks[at], at) == Outcome::kStored) ++result.num_stores;
    }
  }
  result.num_accesses = trace.num_accesses();
  result.num_evictions = result.num_stores - std::min<std::uint64_t>(result.num_stores, capacity);
  result.seconds = std::chrono::duration<double>(clock.cost().cpu).count();
  for (std::uint32_t block = 0; block < trace.num_distinct(); ++block) {
    if (policy.holds(block)) ++result.num_resident;
  }
  return result;
}

}  // namespace

ReplayResult replay_endless(const Trace& trace) {
  std::vector<bool> seen(trace.num_distinct());
  ReplayResult result;
  result.num_accesses = trace.num_accesses();
  for (std::size_t index = 0; index < trace.num_requests(); ++index) {
    const auto blocks = trace.request(index);
    const auto missing = std::find_if(blocks.begin(), blocks.end(),
                                      [&](std::uint32_t block) { return !seen[block]; });
    result.num_loads += static_cast<std::uint64_t>(missing - blocks.begin());
    for (const std::uint32_t block : blocks) {
      ++(seen[block] ? result.num_hits : result.num_misses);
      seen[block] = true;
    }
  }
  result.num_stores = result.num_resident = result.num_misses;
  return result;
}

ReplayResult replay_reference(const Trace& trace, std::uint32_t capacity, Reference policy) {
  switch (policy) {
    case Reference::kSecondSight:
      return replay<SecondSight>(trace, capacity, Order::kLastToFirst);
    case Reference::kS3Fifo:
      return replay<S3Fifo>(trace, capacity, Order::kLastToFirst);
    case Reference::kSieve:
      return replay<Sieve>(trace, capacity, Order::kLastToFirst);
    case Reference::kOptimum:
      return replay<Optimum>(trace, capacity, Order::kFirstToLast);
  }
  return {};
}

}  // namespace kvferry::bench::trace
