// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/member_lock.hpp"

#include "shared_tier_rig.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <thread>

namespace kvferry::cpu_tier {

/// What a scheduler's process has told its rank's process to do, in memory of both: the rank goes
/// on with it whatever has become of the scheduler, as a rank does with the last plan it got.
struct RankMailbox {
  static constexpr std::uint32_t kNumOrders = 16;
  enum class State : std::uint32_t { kNone, kOrdered, kDone };
  enum class Kind : std::uint32_t { kWrite, kRead };

  struct Order {
    std::atomic<State> state{State::kNone};
    Kind kind = Kind::kWrite;
    SlotPlace place;
    std::uint64_t key = 0;
    std::uint32_t generation = 0;  ///< Of the slot when it was told.
  };

  std::array<Order, kNumOrders> orders;
  std::atomic<bool> rank_is_there{false};
  /// The scheduler is to end as a shutdown ends it, with whatever is under way.
  std::atomic<bool> scheduler_ends{false};
  std::atomic<std::uint64_t> num_steps{0};
  std::atomic<std::uint64_t> num_written{0};
  std::atomic<std::uint64_t> num_read{0};
  std::atomic<std::uint64_t> num_wrong{0};

  /// The scheduler's: tells the rank. The order's number, or nothing if it has too many.
  std::optional<std::uint32_t> tell(Kind kind, SlotPlace place, std::uint64_t key,
                                    std::uint32_t generation) {
    for (std::uint32_t i = 0; i < kNumOrders; ++i) {
      Order& order = orders[i];
      if (order.state.load() != State::kNone) continue;
      order.kind = kind;
      order.place = place;
      order.key = key;
      order.generation = generation;
      order.state.store(State::kOrdered);
      return i;
    }
    return std::nullopt;
  }
  /// Whether the rank has done it; its number is free then.
  bool take_end(std::uint32_t number) {
    if (orders[number].state.load() != State::kDone) return false;
    orders[number].state.store(State::kNone);
    return true;
  }

  /// Whether the slot is what it was when the rank was told to write it, and thus nobody else's.
  static bool is_still_to_be_written(const SharedTierRig& rig, const Order& order) {
    const SlotWord word = rig.word(order.place);
    return word.state() == SharedState::kFilling && word.generation() == order.generation;
  }

  /// The rank's life: it does what it is told, in any order, slowly, until it is killed.
  [[noreturn]] void live_as_rank(const SharedTierRig& rig, const std::string& instance,
                                 std::uint64_t seed) {
    const MemberLock lock(LockFile(rig.path()), lock_base_of(instance), 1);
    rank_is_there = true;
    std::minstd_rand random(static_cast<unsigned>(seed));
    for (std::uint32_t next = 0;; next = random() % kNumOrders) {
      std::uint32_t num_looked = 0;
      while (num_looked < kNumOrders && orders[next].state.load() != State::kOrdered) {
        next = (next + 1) % kNumOrders;
        ++num_looked;
      }
      if (num_looked == kNumOrders) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        continue;
      }
      Order& order = orders[next];
      SharedTierRig::Slot& slot = rig.slot(order.place);
      const bool is_slow = random() % 8 == 0;
      std::this_thread::sleep_for(std::chrono::microseconds(random() % (is_slow ? 8000 : 200)));
      if (order.kind == Kind::kWrite) {
        for (std::size_t i = 0; i < SharedTierRig::kSlotWords; ++i) {
          if (!is_still_to_be_written(rig, order)) ++num_wrong;
          slot[i].store(order.key * 4 + i + 1, std::memory_order_relaxed);
          if (random() % 4 == 0) std::this_thread::yield();
        }
        if (!is_still_to_be_written(rig, order)) ++num_wrong;
        ++num_written;
      } else {
        for (std::uint64_t looks = 1 + random() % 4; looks > 0; --looks) {
          if (!SharedTierRig::is_right(slot, order.key) ||
              rig.word(order.place).generation() != order.generation) {
            ++num_wrong;
          }
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 50));
        }
        ++num_read;
      }
      order.state.store(State::kDone);
    }
  }
};

}  // namespace kvferry::cpu_tier
