// SPDX-License-Identifier: Apache-2.0
// Processes that share a tier are killed at random, while they store, lease, evict, take chunks and
// sweep behind each other. Whatever is read under a lease is what was stored under that key, no
// slot is lost, and those who live go on.
#include "kvferry/base/check.hpp"

#include "asked.hpp"
#include "shared_tier_rig.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr TierShape kShape{
    .num_chunks = 12, .chunk_bytes = kTierPageBytes, .max_chunk_slots = 16, .num_ranks = 1};
constexpr std::uint32_t kNumTierKeys = 300;
constexpr std::uint32_t kNumProcesses = 4;
constexpr std::uint32_t kMostChunks = 6;

/// What the processes tell the test.
struct TierTally {
  std::atomic<std::uint64_t> num_stored{0};
  std::atomic<std::uint64_t> num_read{0};
  std::atomic<std::uint64_t> num_wrong{0};
  std::atomic<std::uint64_t> num_swept{0};
  std::atomic<std::uint64_t> num_adopted{0};
  std::atomic<std::uint64_t> num_steps{0};
};

/// One instance: random steps until it is killed.
class Instance {
 public:
  Instance(const SharedTierRig& rig, TierTally& tally, const std::string& name, std::uint64_t seed)
      : rig_(rig), tally_(tally), random_(seed), directory_(rig.join(name)) {}

  [[noreturn]] void live() {
    for (;;) {
      step();
      tally_.num_steps.fetch_add(1, std::memory_order_relaxed);
    }
  }

 private:
  enum class State : std::uint8_t { kFree, kFilling, kReadable, kDying };
  struct Own {
    State state = State::kFree;
    std::uint64_t key = 0;
  };
  using OwnChunk = std::vector<Own>;

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }

  void step() {
    const std::uint64_t what = draw(100);
    if (what < 40) return store_some();
    if (what < 75) return read_some();
    if (what < 85) return evict_or_forget();
    if (what < 92) return take();
    if (what < 95) return give_up();
    if (what < 98) {
      tally_.num_swept += directory_->sweep().num_instances;
      return;
    }
    if (directory_->free_quarantined() > 0) look_again();
  }

  /// Several slots at a time, as a step of an engine does.
  void store_some() {
    std::vector<std::pair<SlotPlace, std::uint64_t>> filling;
    for (auto& [chunk, slots] : own_) {
      for (std::uint32_t i = 0; i < slots.size() && filling.size() < 1 + draw(6); ++i) {
        if (slots[i].state != State::kFree) continue;
        const std::uint64_t key = draw(kNumTierKeys);
        if (!directory_->begin_fill({chunk, i})) continue;
        slots[i] = {State::kFilling, key};
        filling.push_back({{chunk, i}, key});
      }
    }
    for (const auto& [place, key] : filling) SharedTierRig::write(rig_.slot(place), key);
    const bool succeeds = draw(10) > 0;
    for (const auto& [place, key] : filling) {
      Own& own = own_[place.chunk][place.index];
      if (succeeds) {
        directory_->publish(place, rig_.key(key));
        own.state = State::kReadable;
        ++tally_.num_stored;
      } else {
        KVFERRY_CHECK(directory_->slot(place).abandon(), "a filling slot is another's");
        own.state = State::kFree;
      }
    }
  }

  void read_some() {
    std::vector<std::pair<SlotPlace, std::uint64_t>> leased;
    for (std::uint64_t i = 1 + draw(6); i > 0; --i) {
      const std::uint64_t key = draw(kNumTierKeys);
      if (const auto place = directory_->leases().lease(rig_.key(key)))
        leased.push_back({*place, key});
    }
    for (int look = 0; look < 2; ++look) {
      for (const auto& [place, key] : leased) {
        if (!SharedTierRig::is_right(rig_.slot(place), key)) ++tally_.num_wrong;
        ++tally_.num_read;
      }
      if (draw(4) == 0) std::this_thread::yield();
    }
    for (const auto& [place, key] : leased) directory_->leases().end_lease(place);
  }

  void evict_or_forget() {
    for (auto& [chunk, slots] : own_) {
      for (std::uint32_t i = 0; i < slots.size(); ++i) {
        SharedSlot slot = directory_->slot({chunk, i});
        if (slots[i].state == State::kDying && slot.free_dying()) slots[i].state = State::kFree;
        if (slots[i].state != State::kReadable || draw(8) != 0) continue;
        if (draw(4) == 0) {
          slots[i].state = slot.forget() == SharedState::kFree ? State::kFree : State::kDying;
        } else if (directory_->evict({chunk, i})) {
          slots[i].state = State::kFree;
        }
      }
    }
  }

  void take() {
    if (own_.size() >= kMostChunks) return;
    const std::optional<ChunkId> chunk = directory_->take_chunk();
    if (!chunk) return;
    if (directory_->records().shape_of(*chunk).num_slots == 0) {
      directory_->divide(*chunk, {kShape.max_chunk_slots, 0});
    } else {
      ++tally_.num_adopted;
    }
    own_[*chunk] = OwnChunk(kShape.max_chunk_slots);
    look_again();
  }

  /// What is in own chunks, as the words say, for slots that others left.
  void look_again() {
    for (auto& [chunk, slots] : own_) {
      for (std::uint32_t i = 0; i < slots.size(); ++i) {
        const SharedState state = directory_->slot({chunk, i}).load().state();
        const bool is_readable = state == SharedState::kReadable;
        slots[i].state = is_readable                      ? State::kReadable
                         : state == SharedState::kDying   ? State::kDying
                         : state == SharedState::kFilling ? State::kFilling
                         : state == SharedState::kFree    ? State::kFree
                                                          : State::kFilling;  // quarantined
      }
    }
  }

  void give_up() {
    if (own_.empty()) return;
    const auto which = std::next(own_.begin(), static_cast<std::ptrdiff_t>(draw(own_.size())));
    KVFERRY_CHECK(directory_->give_up(which->first), "nothing of it is being filled");
    own_.erase(which);
  }

  const SharedTierRig& rig_;
  TierTally& tally_;
  std::mt19937_64 random_;
  std::unique_ptr<TierDirectory> directory_;
  std::map<ChunkId, OwnChunk> own_;
};

class TierDeathsTest : public ::testing::Test {
 protected:
  TierDeathsTest() {
    void* const memory = ::mmap(nullptr, sizeof(TierTally), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    tally_ = new (memory) TierTally;
  }
  ~TierDeathsTest() override {
    for (const pid_t process : processes_) end(process, SIGKILL);
    ::munmap(tally_, sizeof(TierTally));
  }

  pid_t begin(std::uint64_t number) {
    const pid_t process = ::fork();
    if (process == 0) Instance(rig_, *tally_, "engine-" + std::to_string(number), number).live();
    processes_.push_back(process);
    return process;
  }
  void end(pid_t process, int signal) {
    ::kill(process, signal);
    int status = 0;
    ASSERT_EQ(::waitpid(process, &status, 0), process);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal)
        << "it ended by itself, with " << status;
  }

  /// With nobody alive: who joins finds all slots whole, and gets every one of them.
  void expect_everything_is_whole() {
    const auto last = rig_.join(TierDirectory::Identity{
        .name = "last", .name_space = 1, .grace = std::chrono::nanoseconds(0)});
    std::uint32_t num_chunks = 0;
    while (const auto chunk = last->take_chunk()) {
      ++num_chunks;
      static_cast<void>(last->free_quarantined());
      for (std::uint32_t i = 0; i < last->records().shape_of(*chunk).num_slots; ++i) {
        const SlotWord word = rig_.word({*chunk, i});
        ASSERT_EQ(word.lessees(), 0U) << "chunk " << chunk->value() << " slot " << i;
        if (word.state() == SharedState::kDying) {
          ASSERT_TRUE(last->slot({*chunk, i}).free_dying());
          continue;
        }
        if (word.state() == SharedState::kFree) continue;
        ASSERT_EQ(word.state(), SharedState::kReadable);
        const std::optional<BlockKey> key = last->records().key_of({*chunk, i});
        ASSERT_TRUE(key);
        std::uint64_t number = 0;
        std::memcpy(&number, key->hash.data(), sizeof number);
        ASSERT_TRUE(SharedTierRig::is_right(rig_.slot({*chunk, i}), number));
      }
    }
    EXPECT_EQ(num_chunks, kShape.num_chunks) << "a chunk was lost";
  }

  const SharedTierRig rig_{kShape};
  TierTally* tally_ = nullptr;
  std::vector<pid_t> processes_;
};

TEST_F(TierDeathsTest, KilledAtRandomNothingIsWrongAndNothingIsLost) {
  const std::uint64_t num_deaths = asked("KVFERRY_NUM_DEATHS", 150);
  std::mt19937_64 random(asked("KVFERRY_SEED", 1));
  std::uint64_t number = 0;
  while (processes_.size() < kNumProcesses) begin(number++);
  std::uint64_t num_stopped = 0;
  auto told = std::chrono::steady_clock::now();
  for (std::uint64_t death = 0; death < num_deaths; ++death) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    const std::size_t victim = random() % processes_.size();
    if (random() % 4 == 0) {
      // Stopped first: the others go on meanwhile, and do not take it for dead.
      ::kill(processes_[victim], SIGSTOP);
      const std::uint64_t before = tally_->num_steps.load();
      for (int wait = 0; wait < 2000 && tally_->num_steps.load() < before + 20; ++wait) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      ASSERT_GE(tally_->num_steps.load(), before + 20) << "who is stopped stops others";
      ++num_stopped;
    }
    end(processes_[victim], SIGKILL);
    if (HasFatalFailure()) return;
    processes_.erase(processes_.begin() + static_cast<std::ptrdiff_t>(victim));
    begin(number++);
    ASSERT_EQ(tally_->num_wrong.load(), 0U) << "read under a lease, after " << death << " deaths";
    if (std::chrono::steady_clock::now() - told > std::chrono::seconds(30)) {
      told = std::chrono::steady_clock::now();
      std::printf("%llu deaths, %llu steps, %llu read\n", static_cast<unsigned long long>(death),
                  static_cast<unsigned long long>(tally_->num_steps.load()),
                  static_cast<unsigned long long>(tally_->num_read.load()));
      std::fflush(stdout);
    }
  }
  for (const pid_t process : std::exchange(processes_, {})) end(process, SIGKILL);
  EXPECT_EQ(tally_->num_wrong.load(), 0U);
  EXPECT_GT(tally_->num_stored.load(), 0U);
  EXPECT_GT(tally_->num_read.load(), 0U);
  EXPECT_GT(tally_->num_swept.load(), 0U);
  EXPECT_GT(tally_->num_adopted.load(), 0U);
  EXPECT_GT(num_stopped, 0U);
  expect_everything_is_whole();
}

}  // namespace
}  // namespace kvferry::cpu_tier
