// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/replay/replay.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/connector/scheduler/recorded_error.hpp"

#include "complaint.hpp"
#include "other_process.hpp"
#include "scheduler_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <random>
#include <set>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

namespace kvferry::connector {
namespace {

using recorder::Event;
using recorder::EventKind;
using recorder::Recording;
using recorder::RecordingError;

/// Random lives of requests: prompts of a few families, so that some are found; loads and stores
/// that fail; aborts, preemptions, resets, other weights, promises.
class ReplayTest : public SchedulerTest {
 protected:
  static constexpr std::uint32_t kSlots = 24;

  void SetUp() override {
    for (std::uint32_t block = kNumBlocks - 1; block > 0; --block) free_.push_back(block);
    tier_options_ = {};
    max_load_wait_ = std::chrono::milliseconds(20);
    restart(kSlots);
    register_ranks({.num_slots = kSlots, .ring_blocks = 8, .max_slots = kSlots});
  }

  void live(int num_steps) {
    for (int i = 0; i < num_steps; ++i) step();
  }
  [[nodiscard]] Recording recorded() const { return Recording::from_bytes(recorder_->bytes()); }
  /// What the last event says, if it has the books.
  [[nodiscard]] std::string recorded_books() const {
    std::string text;
    const Recording recording = recorded();
    for (const Event& event : recording) {
      text.clear();
      if (event.kind() != EventKind::kBooks) continue;
      const auto bytes = std::as_bytes(event.words).first(event.number());
      text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return text;
  }
  /// The recording with one word changed, or from other words.
  [[nodiscard]] static Recording with(const Recording& of, std::uint64_t position,
                                      std::uint64_t mask) {
    std::vector<std::uint64_t> words = words_of(of);
    words[position] ^= mask;
    return {of.head(), 0, words};
  }
  [[nodiscard]] static std::vector<std::uint64_t> words_of(const Recording& of) {
    std::vector<std::uint64_t> words;
    for (const Event& event : of) {
      words.push_back(event.head.word());
      words.insert(words.end(), event.words.begin(), event.words.end());
    }
    return words;
  }

 private:
  struct Living {
    std::vector<std::uint64_t> keys;
    std::vector<std::uint32_t> table;
    std::uint32_t num_computed = 0;
    bool loads = false;
    bool is_loaded = false;  ///< Since its last step.
    bool waits = true;
  };

  [[nodiscard]] std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(random_() % bound);
  }
  [[nodiscard]] bool take_blocks(Living& of, std::size_t count) {
    if (free_.size() + of.table.size() < count) return false;
    while (of.table.size() < count) {
      of.table.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }
  void give_back(Living& of) {
    free_.insert(free_.begin(), of.table.begin(), of.table.end());
    of.table.clear();
  }
  void arrive_one() {
    Living of;
    const std::uint32_t family = below(4);
    for (std::uint32_t i = 0; i < 2 + below(4); ++i) of.keys.push_back(100 * family + i);
    while (of.keys.size() < 6) of.keys.push_back(1'000 + ++num_unique_);
    const std::string id = below(8) == 0 && !living_.empty()
                               ? living_.begin()->first
                               : "request " + std::to_string(++num_unique_) +
                                     std::string(below(10) == 0 ? 90 : 0, 'x');
    if (living_.contains(id)) give_back(living_[id]);
    const RequestLimits limits{below(6) == 0 ? 8 : RequestLimits::kNone, RequestLimits::kNone};
    arrive(id, of.keys, limits);
    if (below(4) == 0) {
      const ClientHint hint{static_cast<HintAction>(below(kNumHintActions)),
                            std::chrono::milliseconds(30), below(2) == 0 ? "a" : ""};
      engine_->on_hints(id, "session " + std::to_string(below(3)), {&hint, 1});
    }
    living_[id] = of;
  }
  void admit(const std::string& id, Living& of) {
    const auto tokens = static_cast<std::uint32_t>(of.keys.size()) * kBlockTokens;
    const auto found = engine_->lookup(id, 0, tokens + 1);
    if (!found || !take_blocks(of, of.keys.size())) return;
    of.waits = false;
    if (*found > 0) {
      of.loads = true;
      of.num_computed = *found;
      engine_->on_allocated(id, blocks_of(of.table), *found);
    } else {
      compute(id, of, TableUpdate::kReplace);
    }
  }
  void compute(const std::string& id, Living& of, TableUpdate update) {
    const auto tokens = static_cast<std::uint32_t>(of.keys.size()) * kBlockTokens;
    const std::uint32_t count = std::min(tokens + 40 - of.num_computed, 1 + below(12));
    const auto blocks =
        update == TableUpdate::kReplace ? blocks_of(of.table) : std::vector<BlockId>{};
    for (std::size_t i = 0; i < std::min(of.table.size(), of.keys.size()); ++i) {
      pool_.cache(of.table[i], of.keys[i]);
    }
    engine_->on_scheduled(id, update, blocks, of.num_computed, std::min(count, tokens));
    of.num_computed = std::min(of.num_computed + count, tokens);
  }
  void step() {
    now_ += std::chrono::microseconds(below(5'000));
    if (living_.size() < 7) arrive_one();
    if (below(60) == 0) engine_->reset_cache();
    if (below(90) == 0) engine_->change_weights(WeightsId(below(3)), OldBlocks(below(2)));
    if (below(50) == 0) engine_->resize(kSlots - below(3));
    if (below(30) == 0) engine_->on_finished("a request that never was");
    if (below(40) == 0) engine_->on_blocks_invalid(blocks_of({1 + below(kNumBlocks - 1)}));
    end_some();
    for (auto& [id, of] : living_) {
      if (of.waits || of.loads || below(12) != 0) continue;
      engine_->on_preempted(id);
      give_back(of);
      of.waits = true;
      of.num_computed = 0;
    }
    for (auto& [id, of] : living_) {
      if (of.waits) {
        admit(id, of);
      } else if (!of.loads) {
        compute(id, of,
                std::exchange(of.is_loaded, false) ? TableUpdate::kReplace : TableUpdate::kAppend);
      }
    }
    const StepPlan plan = this->plan();
    const std::vector<std::string> now_announced = notified(plan);
    announced_.insert(announced_.end(), now_announced.begin(), now_announced.end());
    const Outcome outcome = below(8) == 0 ? Outcome::kFailed : Outcome::kDone;
    std::vector<std::string> told;
    std::vector<std::string> announced;
    reports_.push_back(ends(kRankA, plan));
    for (StoreGathered& one : reports_.back().gathered) {
      if (below(4) == 0) one.num_gathered -= below(one.num_gathered + 1);
    }
    reports_.push_back(ends(kRankB, plan, outcome));
    if (below(3) == 0) {
      told = fold({});  // The ranks are busy.
    } else {
      told = fold(std::exchange(reports_, {}));
      announced = std::exchange(announced_, {});
    }
    for (const std::string& id : told) {
      const auto found = living_.find(id);
      if (found == living_.end() || !found->second.loads) continue;
      Living& of = found->second;
      of.loads = false;
      // The engine computes anew what a failed load was to bring.
      const bool has_failed = std::find(announced.begin(), announced.end(), id) != announced.end();
      if (has_failed) of.num_computed = 0;
      of.is_loaded = true;
    }
  }
  void end_some() {
    std::vector<std::string> ended;
    for (const auto& [id, of] : living_) {
      if (below(10) == 0) ended.push_back(id);
    }
    for (const std::string& id : ended) {
      engine_->on_finished(id, 3);
      if (!living_[id].loads) give_back(living_[id]);
      living_.erase(id);
    }
  }

  std::mt19937_64 random_{1};
  std::vector<std::uint32_t> free_;
  std::map<std::string, Living> living_;
  std::uint64_t num_unique_ = 0;
  std::vector<StepReport> reports_;     ///< Not folded yet.
  std::vector<std::string> announced_;  ///< In them.
};

TEST_F(ReplayTest, ARandomLifeComesAgainEventForEvent) {
  live(3'000);
  const Recording recording = recorded();
  const ReplayResult result = replay(recording);
  EXPECT_FALSE(result.difference);
  EXPECT_EQ(result.num_events,
            static_cast<std::uint64_t>(std::distance(recording.begin(), recording.end())));
  EXPECT_EQ(result.books, engine_->books());
  std::map<std::string, int> seen;
  for (const Event& event : recording) ++seen[recorder::name_of(event.kind())];
  for (const char* name :
       {"request",   "hints", "lookup",      "allocated", "blocks invalid", "preempted",
        "scheduled", "plan",  "fold",        "finished",  "reset",          "weights",
        "resize",    "pool",  "report",      "hashes",    "pool holds",     "found",
        "store",     "load",  "cancels",     "notice",    "planned",        "load begun",
        "skipped",   "left",  "store ended", "aborted",   "load ended",     "told"}) {
    EXPECT_GT(seen[name], 0) << name;
  }
}

TEST_F(ReplayTest, OneChangedDecisionIsFoundAtItsEvent) {
  live(40);
  const Recording recording = recorded();
  int num_changed = 0;
  for (const Event& event : recording) {
    if (recorder::is_input(event.kind()) || recorder::is_answer(event.kind())) continue;
    const std::uint64_t word = event.words.size();  // The last one; without words, the number.
    const Recording changed = with(recording, event.position + word, std::uint64_t{1} << 33U);
    const ReplayResult result = replay(changed, {.check_tier_every = 0});
    ASSERT_TRUE(result.difference) << recorder::to_text(event);
    ASSERT_EQ(result.difference->position, event.position) << recorder::to_text(event);
    EXPECT_EQ(result.difference->replayed.find(recorder::to_text(event)), 0U);
    EXPECT_NE(result.difference->recorded, result.difference->replayed);
    ++num_changed;
  }
  EXPECT_GT(num_changed, 100);
}

TEST_F(ReplayTest, ADecisionTooMuchOrTooFewIsFound) {
  live(60);
  const Recording recording = recorded();
  const std::vector<std::uint64_t> words = words_of(recording);
  for (const Event& event : recording) {
    if (event.kind() != EventKind::kFound) continue;
    std::vector<std::uint64_t> fewer = words;
    const auto at = fewer.begin() + static_cast<std::ptrdiff_t>(event.position);
    fewer.erase(at, at + event.head.num_words());
    const ReplayResult result = replay({recording.head(), 0, fewer});
    ASSERT_TRUE(result.difference);
    EXPECT_EQ(result.difference->position, event.position);
    EXPECT_EQ(result.difference->replayed.find(recorder::to_text(event)), 0U);

    std::vector<std::uint64_t> more = words;
    more.insert(more.begin() + static_cast<std::ptrdiff_t>(event.position), {event.head.word()});
    more[event.position] = recorder::EventHead(EventKind::kTold, 0, 1, 1).word();
    const ReplayResult other = replay({recording.head(), 0, more});
    ASSERT_TRUE(other.difference);
    EXPECT_EQ(other.difference->position, event.position);
    EXPECT_EQ(other.difference->recorded, "told (request 1)");
    break;
  }
}

TEST_F(ReplayTest, ACutRecordingIsReplayedUpToItsLastEvent) {
  live(20);
  const Recording recording = recorded();
  const std::vector<std::uint64_t> words = words_of(recording);
  for (const Event& event : recording) {
    if (event.position == 0) continue;
    const std::vector<std::uint64_t> first(
        words.begin(), words.begin() + static_cast<std::ptrdiff_t>(event.position));
    const ReplayResult result = replay({recording.head(), 0, first});
    ASSERT_FALSE(result.difference) << event.position << result.difference->replayed;
  }
}

TEST_F(ReplayTest, WhatACallThrewComesAgain) {
  live(20);
  StepReport impossible = report_of(kRankA);
  impossible.executed = PlanSeq(1'000);
  EXPECT_THROW(fold({impossible}), ProtocolError);
  ReplayResult result = replay(recorded());
  EXPECT_FALSE(result.difference);
  ASSERT_TRUE(result.last_error);
  expect_named(*result.last_error, {"threw", "executed plan 1000"});
  // A fold that throws changes nothing.
  EXPECT_EQ(recorded_books(), engine_->books());
  EXPECT_EQ(result.books, engine_->books());

  EXPECT_THROW(engine_->on_allocated("nobody", GroupBlocks{}, 4), ProtocolError);
  const std::vector<std::span<const BlockId>> three(3);
  EXPECT_THROW(engine_->on_scheduled("nobody", TableUpdate::kAppend, three, {}), ProtocolError);
  EXPECT_THROW(engine_->on_state("nobody", GroupId(0), BlockId(1), 4), ProtocolError);
  const std::vector<std::byte> no_report(5);
  const std::vector<std::span<const std::byte>> reports{no_report};
  EXPECT_THROW(static_cast<void>(engine_->fold(reports)), ProtocolError);
  result = replay(recorded());
  EXPECT_FALSE(result.difference);
  EXPECT_TRUE(result.last_error);
}

TEST_F(ReplayTest, ATimeOutComesAgainWithItsText) {
  arrive("a", {1, 2, 3});
  schedule("a", {1, 2, 3}, 0, 12);
  ASSERT_FALSE(plan().stores.empty());
  const auto wait = [this] {
    for (int i = 0; i < 100; ++i) {
      now_ += kRankTimeout / 16;
      fold({});
      static_cast<void>(plan());
    }
  };
  EXPECT_THROW(wait(), TimeoutError);
  const ReplayResult result = replay(recorded());
  EXPECT_FALSE(result.difference);
  ASSERT_TRUE(result.last_error);
  expect_named(*result.last_error, {"threw (class 3)", "rank 0, 1 of 2 has not ended"});
  // The stores of lost ranks are in quarantine already.
  expect_named(recorded_books(), {R"("state": "quarantined", "blocks": 3, "plan": )",
                                  R"("num_silent_ranks": 2, "silent_ranks": [0, 1])"});
  EXPECT_EQ(result.books, recorded_books());
}

TEST_F(ReplayTest, ABrokenInvariantThatStoppedTheProcessComesAgain) {
  live(10);
  // Two blocks of one content that are not the same to the engine: it never does that.
  const int status = in_a_process([&] {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    arrive("a", {7, 7});
    schedule("a", {50, 51}, 0, 8);
    static_cast<void>(plan());
    return 0;
  });
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
  const ReplayResult result = replay(recorded());
  EXPECT_FALSE(result.difference) << result.difference->recorded << result.difference->replayed;
  ASSERT_TRUE(result.last_error);
  expect_named(*result.last_error, {"broken invariant", ".cpp:"});
  EXPECT_EQ(recorded_books(), "");  // They could not be trusted.
  expect_named(result.books, {R"("id": "a")", R"("state": "idle")"});
  is_shared_ = true;  // The child went on in the ring, and this process did not.
}

TEST_F(ReplayTest, WhatCannotBeReplayedIsRefusedByALineThatSaysWhy) {
  live(30);
  const Recording good = recorded();
  const std::vector<std::uint64_t> words = words_of(good);
  expect_named(complaint_of<RecordingError>([&] {
                 static_cast<void>(replay({good.head(), 77, words}));
               }),
               {"first 77 words were overwritten", "larger"});
  recorder::RecordingHead shared = good.head();
  shared.config.replace(shared.config.find("shared_tier 0"), 13, "shared_tier 1");
  expect_named(complaint_of<RecordingError>([&] {
                 static_cast<void>(replay({shared, 0, words}));
               }),
               {"shares its tier", "cannot be replayed"});
  recorder::RecordingHead odd = good.head();
  odd.config += "world_size many\n";
  expect_named(complaint_of<RecordingError>([&] {
                 static_cast<void>(replay({odd, 0, words}));
               }),
               {"world_size many"});
  std::vector<std::uint64_t> lost = words;
  lost.push_back(recorder::EventHead(EventKind::kLost, 0, 1, 3).word());
  expect_named(complaint_of<RecordingError>([&] {
                 static_cast<void>(replay({good.head(), 0, lost}));
               }),
               {"too small", "larger"});
}

TEST_F(ReplayTest, DamagedEventsAreDifferencesOrErrorsAndNothingWorse) {
  live(40);
  const Recording recording = recorded();
  std::mt19937_64 random(5);
  const std::uint64_t size = recording.end_position();
  int num_found = 0;
  for (int i = 0; i < 120; ++i) {
    try {
      const Recording damaged =
          with(recording, random() % size, std::uint64_t{1} << (random() % 64));
      // Inputs can be impossible for an engine, which may break an invariant.
      std::string ended;
      const int status = in_a_process([&] {
        static_cast<void>(::freopen("/dev/null", "w", stderr));
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_CORE, &none);
        try {
          return replay(damaged, {.check_tier_every = 0}).difference ? 1 : 0;
        } catch (const RecordingError&) {
          return 2;
        }
      });
      const bool is_broken = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
      ASSERT_TRUE(WIFEXITED(status) || is_broken) << status;
      num_found += status == 0 ? 0 : 1;
    } catch (const RecordingError&) {
      ++num_found;  // Its length was changed.
    }
  }
  EXPECT_GT(num_found, 60);
}

}  // namespace
}  // namespace kvferry::connector
