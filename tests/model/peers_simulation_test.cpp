// SPDX-License-Identifier: Apache-2.0
// Engines that share a tier, in virtual time and on one thread, all from one seed: each lives a
// random life, stalls, ends or is killed, and its ranks' devices go on writing for a while. A load
// must find in each slot the block that its plan names. Each engine records its life into a file,
// and the life has to come again in a replay, without the tier and without its peers.
#include "kvferry/cpu_tier/peers/member_lock.hpp"
#include "kvferry/recorder/recording.hpp"

#include "other_process.hpp"
#include "random_life.hpp"
#include "seeded_runs.hpp"
#include "shared_tier_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <string>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kvferry::connector {
namespace {

using cpu_tier::MemberLock;
using cpu_tier::SharedTierRig;
using cpu_tier::TierDirectory;
using std::chrono::milliseconds;
using TimePoint = std::chrono::steady_clock::time_point;

constexpr std::uint32_t kNumRanks = 2;
constexpr std::uint32_t kNumChunks = 8;
constexpr cpu_tier::TierShape kShape{.num_chunks = kNumChunks,
                                     .chunk_bytes = cpu_tier::kTierPageBytes,
                                     .max_chunk_slots = 8,
                                     .num_ranks = kNumRanks};
/// Of the slab classes: slots in a chunk, and bytes of a slot on each rank.
const std::vector<SlabClass> kClasses{{4, {100, 200}}, {8, {50, 100}}};
/// How long a device writes at most when its process is dead.
constexpr milliseconds kGrace{400};

/// This process's descriptors of a file.
std::set<int> descriptors_of(const std::filesystem::path& file) {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code is_closed;
    if (std::filesystem::read_symlink(entry.path(), is_closed) != file) continue;
    found.insert(std::stoi(entry.path().filename().string()));
  }
  return found;
}

/// What happened, in all processes of a run.
struct Totals {
  std::uint64_t num_steps = 0;
  std::uint64_t num_foreign_blocks = 0;
  std::uint64_t num_kills = 0;
  std::uint64_t num_ends = 0;
  std::uint64_t num_late_writes = 0;
  /// By recorder::PeerAnswer: recorded answers that say more than that there is nothing.
  std::array<std::uint64_t, recorder::kNumPeerAnswers> num_answers{};

  void count(const recorder::Event& event) {
    if (event.kind() != recorder::EventKind::kPeers) return;
    if (event.number() > 0 || !event.words.empty()) ++num_answers[event.head.flags()];
  }
  [[nodiscard]] bool all_happened() const {
    // No block is damaged here, so peers withdraw none.
    const auto num_kinds = std::count_if(num_answers.begin(), num_answers.end(),
                                         [](std::uint64_t count) { return count > 0; });
    return num_foreign_blocks > 0 && num_kills > 0 && num_ends > 0 && num_late_writes > 0 &&
           num_kinds >= static_cast<std::ptrdiff_t>(recorder::kNumPeerAnswers) - 1;
  }
};

/// An engine in the shared tier.
class PeerLife final : public RandomLife {
 public:
  /// With one KV cache group, or with a second one that has a window and a slab class of its own.
  /// `now` and `totals` outlive it.
  PeerLife(const SharedTierRig& rig, std::uint64_t number, std::size_t num_groups, TimePoint& now,
           std::array<VirtualMemory, kNumRanks>& memories, Totals& totals)
      : number_(number), name_("engine " + std::to_string(number)), totals_(totals) {
    recording_path_ = ::testing::TempDir() + "peers-simulation-" + std::to_string(::getpid()) +
                      "-" + std::to_string(number) + ".kvferry-recording";
    const std::set<int> before = descriptors_of(rig.path());
    directory_ = rig.join(
        {.name = name_, .name_space = 1, .grace = kGrace, .clock = [&now] { return now; }});
    std::ranges::set_difference(descriptors_of(rig.path()), before, std::back_inserter(locks_));
    for (std::uint32_t rank = 0; rank < kNumRanks; ++rank) {
      rank_locks_.push_back(std::make_unique<MemberLock>(cpu_tier::LockFile(rig.path()),
                                                         cpu_tier::lock_base_of(name_), rank + 1));
    }
    shared_tier_ = directory_.get();
    num_chunks_ = kNumChunks;
    classes_.assign(kClasses.begin(), kClasses.begin() + static_cast<std::ptrdiff_t>(num_groups));
    if (num_groups > 1) add_window(9, SlabClassId(1));
    now_ = now;
    begin_life(number);
    for (std::uint32_t rank = 0; rank < kNumRanks; ++rank) ranks_[rank].use(memories[rank], number);
  }
  ~PeerLife() override {
    engine_.reset();
    directory_.reset();
    replay_life();
  }

  void play(TimePoint& now, int num_steps) {
    now_ = now;
    for (int i = 0; i < num_steps; ++i) {
      live(1);
      engine_->check_invariants(i % 8 == 0 ? CheckDepth::kAll : CheckDepth::kCounts);
    }
    now = now_;
  }
  /// Its requests and its work end, and its part of the tier is as it should be.
  void come_to_rest(TimePoint& now) {
    now_ = now;
    end_all();
    engine_->check_invariants(CheckDepth::kAll);
    now = now_;
  }
  /// The scheduler's process is gone; what it wrote last stays. The objects are for nobody then:
  /// their destructors would tidy up, which a killed process does not.
  void lose_scheduler() {
    for (const int lock : locks_) ::close(lock);
    replay_life();
  }
  /// The processes of the ranks, each with its lock, to outlive their scheduler.
  [[nodiscard]] std::vector<std::unique_ptr<MemberLock>> take_rank_locks() {
    return std::move(rank_locks_);
  }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::vector<PlacedBlock> writes_under_way(std::uint32_t rank) const {
    return ranks_[rank].writes_under_way();
  }
  [[nodiscard]] std::uint64_t num_foreign_blocks() const {
    return ranks_[0].num_foreign_blocks() + ranks_[1].num_foreign_blocks();
  }

 private:
  void TestBody() override {}
  void replay_life() {
    const bool had_failed = HasFailure();
    const auto recording = recorder::Recording::from_bytes(recorder_->bytes());
    EXPECT_TRUE(recording.is_whole());
    for (const recorder::Event& event : recording) totals_.count(event);
    expect_replay(*recorder_);
    if (!HasFailure()) {
      ::unlink(recording_path_.c_str());
    } else if (!had_failed) {
      ADD_FAILURE() << "`kvferry replay " << recording_path_ << "` makes the same calls again";
    }
  }

  const std::uint64_t number_;
  const std::string name_;
  Totals& totals_;
  std::unique_ptr<TierDirectory> directory_;
  std::vector<int> locks_;  ///< The descriptors of the scheduler's lock.
  std::vector<std::unique_ptr<MemberLock>> rank_locks_;
};

/// A node: a shared tier, its engines, and the devices of those that are gone.
class Node {
 public:
  Node(std::uint64_t seed, Totals& totals)
      : random_(seed), totals_(totals), num_groups_(1 + seed % 2) {
    for (int i = 0; i < 2; ++i) join();
  }

  void step() {
    ++totals_.num_steps;
    write_late();
    if (lives_.size() < 4 && one_in(lives_.size() < 2 ? 4 : 60)) join();
    if (lives_.empty()) {
      now_ += milliseconds(1);
      return;
    }
    const std::size_t who = below(lives_.size());
    if (one_in(80)) return lose(who, below(2) == 0);
    // All others stand still: the time of a stopped process passes, too.
    if (one_in(100)) now_ += milliseconds(below(200));
    lives_[who]->play(now_, static_cast<int>(1 + below(6)));
  }
  /// Every engine ends, and a newcomer finds no slot that cannot be used.
  void end() {
    for (const auto& life : lives_) life->come_to_rest(now_);
    for (const auto& life : lives_) totals_.num_foreign_blocks += life->num_foreign_blocks();
    lives_.clear();
    for (Remains& of : remains_) of.locks.clear();
    const auto heir = rig_.join(
        {.name = "heir", .name_space = 1, .grace = kGrace, .clock = [this] { return now_; }});
    static_cast<void>(heir->sweep());
    std::vector<ChunkId> chunks;
    while (const auto chunk = heir->take_chunk()) chunks.push_back(*chunk);
    EXPECT_EQ(chunks.size(), kNumChunks);
    for (const ChunkId chunk : chunks) static_cast<void>(heir->clear(chunk));
    static_cast<void>(heir->free_quarantined());
    now_ += 2 * kGrace;
    static_cast<void>(heir->free_quarantined());
    for (const ChunkId chunk : chunks) EXPECT_TRUE(heir->clear(chunk)) << chunk.value();
    EXPECT_EQ(heir->num_damaged(), 0U);
  }

 private:
  /// What is left of an engine: processes of ranks, and writes of their devices.
  struct Remains {
    std::uint64_t engine = 0;
    TimePoint ranks_until;
    TimePoint writes_until;
    std::vector<std::unique_ptr<MemberLock>> locks;
    std::array<std::vector<PlacedBlock>, kNumRanks> writes;
  };

  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  [[nodiscard]] bool one_in(std::uint64_t number) { return below(number) == 0; }

  void join() {
    lives_.push_back(
        std::make_unique<PeerLife>(rig_, ++num_engines_, num_groups_, now_, memories_, totals_));
  }
  /// An engine is gone: killed, or told to end whatever is under way. Its ranks end later, and
  /// their devices still later.
  void lose(std::size_t who, bool is_killed) {
    std::unique_ptr<PeerLife> life = std::move(lives_[who]);
    lives_.erase(lives_.begin() + static_cast<std::ptrdiff_t>(who));
    totals_.num_foreign_blocks += life->num_foreign_blocks();
    Remains remains;
    remains.engine = life->number();
    remains.ranks_until = now_ + milliseconds(one_in(2) ? 0 : below(100));
    remains.writes_until = remains.ranks_until + kGrace;
    for (std::uint32_t rank = 0; rank < kNumRanks; ++rank) {
      remains.writes[rank] = life->writes_under_way(rank);
    }
    remains.locks = life->take_rank_locks();
    if (is_killed) {
      ++totals_.num_kills;
      life->lose_scheduler();
      static auto& never_destroyed = *new std::vector<std::unique_ptr<PeerLife>>;
      never_destroyed.push_back(std::move(life));
    } else {
      ++totals_.num_ends;
    }
    life.reset();
    remains_.push_back(std::move(remains));
  }
  /// Devices of ranks that are gone write what they were told to, at any moment of the grace.
  void write_late() {
    std::erase_if(remains_, [this](Remains& of) {
      if (now_ >= of.ranks_until) of.locks.clear();
      if (now_ >= of.writes_until) return true;
      for (std::uint32_t rank = 0; rank < kNumRanks; ++rank) {
        for (const PlacedBlock& block : of.writes[rank]) {
          if (!one_in(10)) continue;
          ++totals_.num_late_writes;
          const bool is_whole = one_in(2);
          memories_[rank].write(block, is_whole ? block.pair.identity : VirtualMemory::kTorn,
                                of.engine);
        }
      }
      return false;
    });
  }

  std::mt19937_64 random_;
  Totals& totals_;
  TimePoint now_{std::chrono::hours(1)};
  SharedTierRig rig_{kShape};
  std::array<VirtualMemory, kNumRanks> memories_{VirtualMemory(kClasses), VirtualMemory(kClasses)};
  const std::size_t num_groups_;
  std::uint64_t num_engines_ = 0;
  std::vector<Remains> remains_;
  std::vector<std::unique_ptr<PeerLife>> lives_;
};

TEST(PeersSimulation, EveryLoadFindsItsBlocksWhoeverEndsOrDies) {
  void* const memory =
      ::mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Totals& totals = *new (memory) Totals;
  SeededRuns runs;
  runs.num_seeds = 6;
  runs.steps_per_seed = 600;
  runs.run = [&totals](std::uint64_t seed, int steps, const std::function<bool()>& failed) {
    // What killed engines leave in a process goes with it.
    const int status = in_a_process([&] {
      Node node(seed, totals);
      for (int i = 0; i < steps && !failed(); ++i) node.step();
      if (!failed()) node.end();
      return failed() ? 1 : 0;
    });
    EXPECT_EQ(status, 0) << "of the process of seed " << seed;
  };
  runs.num_steps_done = [&totals] { return totals.num_steps; };
  runs.has_seen_everything = [&totals] { return totals.all_happened(); };
  const RunKind kind = run_seeds(runs);
  std::cout << "  answers of peers, by kind:";
  for (const std::uint64_t count : totals.num_answers) std::cout << ' ' << count;
  std::cout << '\n';
  std::cout << "  " << totals.num_steps << " steps, " << totals.num_foreign_blocks
            << " blocks of others loaded, " << totals.num_kills << " engines killed, "
            << totals.num_ends << " ended, " << totals.num_late_writes << " late writes\n";
  if (kind != RunKind::kWhole || HasFailure()) return;
  EXPECT_TRUE(totals.all_happened());
}

}  // namespace
}  // namespace kvferry::connector
