// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/replay/replay.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/recorder/recorded_error.hpp"

#include "complaint.hpp"
#include "edited_recording.hpp"
#include "other_process.hpp"
#include "random_life.hpp"

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

class ReplayTest : public RandomLife {
 protected:
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
  /// Goes on in a child, which a broken invariant stops: two blocks of one content that are not the
  /// same to the engine, which never does that. Returns the status that waitpid() tells.
  [[nodiscard]] int break_in_a_process() {
    return in_a_process([&] {
      const rlimit none{0, 0};
      ::setrlimit(RLIMIT_CORE, &none);
      arrive("a", {7, 7});
      schedule("a", {50, 51}, 0, 8);
      static_cast<void>(plan());
      return 0;
    });
  }
  [[nodiscard]] static Event last_event(const Recording& of) {
    Event last;
    for (const Event& event : of) last = event;
    return last;
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
  expect_named(recorded_books(), {R"("status": "quarantined", "blocks": 3, "plan": )",
                                  R"("num_silent_ranks": 2, "silent_ranks": [0, 1])"});
  EXPECT_EQ(result.books, recorded_books());
}

TEST_F(ReplayTest, ABrokenInvariantThatStoppedTheProcessComesAgain) {
  live(10);
  const int status = break_in_a_process();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
  const ReplayResult result = replay(recorded());
  EXPECT_FALSE(result.difference) << result.difference->recorded << result.difference->replayed;
  ASSERT_TRUE(result.last_error);
  expect_named(*result.last_error, {"broken invariant", ".cpp:"});
  EXPECT_EQ(recorded_books(), "");  // They could not be trusted.
  expect_named(result.books, {R"("id": "a")", R"("status": "idle")"});
  forget_recording();  // The child went on in the ring, and this process did not.
}

TEST_F(ReplayTest, WhatCannotBeReplayedIsRefusedByALineThatSaysWhy) {
  live(30);
  const Recording good = recorded();
  const std::vector<std::uint64_t> words = words_of(good);
  expect_named(complaint_of<RecordingError>([&] {
                 static_cast<void>(replay({good.head(), 77, words}));
               }),
               {"first 77 words were overwritten", "larger"});
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

TEST_F(ReplayTest, ABrokenInvariantThatIsNotRecordedIsADifference) {
  live(10);
  const int status = break_in_a_process();
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  std::vector<std::uint64_t> words = words_of(recorded());
  const std::string broken = to_text(last_event(recorded()));
  words.resize(last_event(recorded()).position);
  const ReplayResult result =
      replay({recorded().head(), 0, words}, {.where = ReplayWhere::kInChild});
  ASSERT_TRUE(result.difference);
  EXPECT_EQ(result.difference->position, words.size());
  EXPECT_EQ(result.difference->recorded, "nothing");
  EXPECT_EQ(result.difference->replayed, broken);
  EXPECT_EQ(result.difference->call.find("plan"), 0U);
  EXPECT_FALSE(result.last_error);
  forget_recording();  // The child went on in the ring, and this process did not.
}

TEST_F(ReplayTest, AnswersOfPeersThatAreMissingAreADifference) {
  live(30);
  recorder::RecordingHead shared = recorded().head();
  shared.config.replace(shared.config.find("shared_tier 0"), 13, "shared_tier 1");
  const ReplayResult result = replay({shared, 0, words_of(recorded())});
  ASSERT_TRUE(result.difference);
  expect_named(result.difference->replayed, {"peers (answer"});
}

TEST_F(ReplayTest, AChildFindsWhatThisProcessFinds) {
  live(40);
  const Recording recording = recorded();
  const auto expect_both_find_the_same = [](const Recording& of) {
    const ReplayResult here = replay(of);
    const ReplayResult there = replay(of, {.where = ReplayWhere::kInChild});
    EXPECT_EQ(there.num_calls, here.num_calls);
    EXPECT_EQ(there.num_events, here.num_events);
    EXPECT_EQ(there.books, here.books);
    EXPECT_EQ(there.last_error, here.last_error);
    ASSERT_EQ(there.difference.has_value(), here.difference.has_value());
    if (!here.difference) return;
    EXPECT_EQ(there.difference->position, here.difference->position);
    EXPECT_EQ(there.difference->call, here.difference->call);
    EXPECT_EQ(there.difference->recorded, here.difference->recorded);
    EXPECT_EQ(there.difference->replayed, here.difference->replayed);
  };
  expect_both_find_the_same(recording);
  for (const Event& event : recording) {
    if (event.kind() != EventKind::kFound) continue;
    expect_both_find_the_same(with(recording, event.position, std::uint64_t{1} << 33U));
    break;
  }
  EXPECT_THROW(fold({report_of(RankId(9))}), TopologyError);
  expect_both_find_the_same(recorded());
}

TEST_F(ReplayTest, EditedRecordingsAreTheSameDifferOrAreRefused) {
  live(40);
  const Recording recording = recorded();
  std::mt19937_64 random(5);
  int num_found = 0;
  for (int i = 0; i < 80; ++i) {
    std::vector<std::uint8_t> edits(6 * (1 + random() % 3));
    for (std::uint8_t& byte : edits) byte = static_cast<std::uint8_t>(random());
    try {
      const Recording one = recorder::edited(recording, edits);
      num_found += replay(one, {.where = ReplayWhere::kInChild}).difference ? 1 : 0;
    } catch (const RecordingError& error) {
      EXPECT_GT(std::string(error.what()).size(), 30U);
      ++num_found;
    }
  }
  EXPECT_GT(num_found, 40);
}

}  // namespace
}  // namespace kvferry::connector
