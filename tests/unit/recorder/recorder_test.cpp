// SPDX-License-Identifier: Apache-2.0
#include "kvferry/recorder/recorder.hpp"

#include "kvferry/recorder/recording.hpp"

#include "complaint.hpp"
#include "layout.hpp"
#include "recording_path.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace kvferry::recorder {
namespace {

const RecordedBy kBy{"1.2.3", 9, "groups 1\nworld_size 2\n"};

std::vector<Event> events_of(const Recording& recording) {
  return {recording.begin(), recording.end()};
}

/// Events that know what they are to hold: the number says which one it is, and how long.
void put_numbered(Recorder& recorder, std::uint32_t number) {
  const std::uint32_t num_words = number * 7 % 23;
  Recorder::Draft draft = recorder.draft(EventKind::kCancels, number % 64, number, num_words);
  for (std::uint32_t i = 0; i < num_words; ++i) draft.add(std::uint64_t{number} << 32U | i);
  draft.end();
}

/// Returns the number of the first event.
std::uint32_t expect_numbered(const Recording& recording) {
  const auto events = events_of(recording);
  if (events.empty()) return 0;
  const std::uint32_t first = events.front().number();
  std::uint32_t number = first;
  for (const Event& event : events) {
    EXPECT_EQ(event.number(), number);
    EXPECT_EQ(event.head.flags(), number % 64);
    EXPECT_EQ(event.words.size(), number * 7 % 23);
    for (std::uint32_t i = 0; i < event.words.size(); ++i) {
      EXPECT_EQ(event.words[i], std::uint64_t{number} << 32U | i);
    }
    ++number;
    if (::testing::Test::HasFailure()) break;
  }
  return first;
}

TEST(RecorderTest, GivesBackWhatWasRecordedAndSaysWhoMadeIt) {
  const RecordingPath path;
  Recorder recorder(path.text, Recorder::kMinRingBytes, kBy);
  recorder.put(EventKind::kLookup, 0, 5, std::uint64_t{1000}, halves(3, 4));
  recorder.put(EventKind::kPreempted, 0, 6);
  Recorder::Draft draft = recorder.draft(EventKind::kThrew, kTextWasCut, 0, 2);
  draft.add_text("a text of it");
  draft.end();

  const Recording recording = Recording::from_file(path.text);
  EXPECT_EQ(recording.head().version, "1.2.3");
  EXPECT_EQ(recording.head().wire_version, 9U);
  EXPECT_EQ(recording.head().config, kBy.config);
  EXPECT_EQ(recording.head().pid, ::getpid());
  EXPECT_EQ(recording.head().boot_id.size(), 36U);
  EXPECT_TRUE(recording.is_whole());
  const auto events = events_of(recording);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].kind(), EventKind::kLookup);
  EXPECT_EQ(events[0].number(), 5U);
  EXPECT_EQ(events[0].low(1), 3U);
  EXPECT_EQ(events[0].high(1), 4U);
  EXPECT_EQ(to_text(events[0]), "lookup (request 5) at 1000 3|4");
  EXPECT_EQ(to_text(events[1]), "preempted (request 6)");
  EXPECT_EQ(to_text(events[2]), "threw (class 0) flags 1 \"a text of it\"");
}

TEST(RecorderTest, TheFileIsItsUsersAloneAndItsMemoryIsTaken) {
  const RecordingPath path;
  const Recorder recorder(path.text, Recorder::kMinRingBytes, kBy);
  struct stat status {};
  ASSERT_EQ(::stat(path.text.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_GE(static_cast<std::uint64_t>(status.st_blocks) * 512, Recorder::kMinRingBytes);
}

TEST(RecorderTest, RefusesAPathInUseAndSizesThatAreNone) {
  const RecordingPath path;
  const Recorder recorder(path.text, Recorder::kMinRingBytes, kBy);
  expect_named(complaint_of<ConfigError>(
                   [&] { const Recorder again(path.text, Recorder::kMinRingBytes, kBy); }),
               {path.text, "exists already", "remove it"});
  for (const std::uint64_t size : {std::uint64_t{0}, Recorder::kMinRingBytes / 2,
                                   Recorder::kMinRingBytes + 8, 2 * Recorder::kMaxRingBytes}) {
    expect_named(complaint_of<ConfigError>([&] { const Recorder none(size, kBy); }),
                 {std::to_string(size), "power of two"});
  }
  expect_named(complaint_of<ResourceError>(
                   [&] { const Recorder none("/nowhere/at/all", Recorder::kMinRingBytes, kBy); }),
               {"/nowhere/at/all", "switch it off"});
}

TEST(RecorderTest, TheNewestEventsAreLeftAfterTheRingIsFull) {
  Recorder recorder(Recorder::kMinRingBytes, kBy);
  for (std::uint32_t number = 0; number < 20'000; ++number) {
    put_numbered(recorder, number);
    if (number % 37 != 0) continue;
    const Recording recording = Recording::from_bytes(recorder.bytes());
    ASSERT_EQ(recording.end_position(), recorder.position());
    const std::uint32_t first = expect_numbered(recording);
    EXPECT_EQ(recording.is_whole(), first == 0);
    if (::testing::Test::HasFailure()) return;
    // At most a segment and the longest event are given up early.
    const std::uint64_t left = recorder.position() - recording.begin_position();
    const std::uint64_t words = Recorder::kMinRingBytes / 8;
    if (first > 0) {
      EXPECT_GE(left, words - 2 * (words / kNumSegments) - 24);
    }
  }
}

TEST(RecorderTest, ASegmentIsClaimedBeforeItIsWrittenHoweverTheOneBeforeItEnded) {
  constexpr std::uint64_t kSegmentWords = Recorder::kMinRingBytes / 8 / kNumSegments;
  for (std::uint32_t num_words = 1; num_words <= 2 * kSegmentWords; ++num_words) {
    Recorder recorder(Recorder::kMinRingBytes, kBy);
    const auto* head = reinterpret_cast<const FileHead*>(recorder.bytes().data());
    for (int i = 0; i < 50; ++i) {
      Recorder::Draft draft = recorder.draft(EventKind::kCancels, 0, 0, num_words - 1);
      for (std::uint32_t word = 1; word < num_words; ++word) draft.add(word);
      draft.end();
      EXPECT_GT(head->claimed, recorder.position());
      recorder.put(EventKind::kPreempted, 0, 0);
      EXPECT_GT(head->claimed, recorder.position());
    }
  }
}

TEST(RecorderTest, EventsThatAreLongerThanSegmentsWrapToo) {
  Recorder recorder(Recorder::kMinRingBytes, kBy);
  std::mt19937 random(7);
  for (std::uint32_t number = 0; number < 1'500; ++number) {
    const std::uint32_t num_words = random() % 900;
    Recorder::Draft draft = recorder.draft(EventKind::kReport, 0, number, num_words + 50);
    for (std::uint32_t i = 0; i < num_words; ++i) draft.add(number);
    draft.end();
    const Recording recording = Recording::from_bytes(recorder.bytes());
    const auto events = events_of(recording);
    ASSERT_FALSE(events.empty());
    ASSERT_EQ(events.back().number(), number);
    ASSERT_EQ(events.back().words.size(), num_words);
    ASSERT_EQ(number + 1 - events.front().number(), events.size());
    for (const Event& event : events) {
      for (const std::uint64_t word : event.words) ASSERT_EQ(word, event.number());
    }
  }
}

TEST(RecorderTest, HoweverItsWordsAreAddedAnEventIsTheSame) {
  Recorder in_runs(Recorder::kMinRingBytes, kBy);
  Recorder one_by_one(Recorder::kMinRingBytes, kBy);
  std::mt19937 random(5);
  std::size_t num_lost = 0;
  for (std::uint32_t number = 0; number < 300; ++number) {
    // Now and then more words are added than the event's limit allows.
    const std::uint32_t limit = number % 30 == 0 ? in_runs.max_words() + 1 : 900;
    Recorder::Draft draft = in_runs.draft(EventKind::kReport, 0, number, limit);
    Recorder::Draft expected = one_by_one.draft(EventKind::kReport, 0, number, limit);
    for (std::uint32_t run = 0; run < (limit > 900 ? 60 : 3); ++run) {
      std::vector<std::uint32_t> values(random() % 400);  // Long ones bypass the caches.
      for (std::uint32_t& value : values) value = random();
      const auto at = [&](std::size_t i) { return values[i]; };
      if (run % 2 == 0) {
        draft.add_halves(std::span<const std::uint32_t>(values));
        for (const std::uint32_t value : values) expected.add_half(value);
      } else {
        draft.add_words(values.size(), at);
        for (const std::uint32_t value : values) expected.add(value);
      }
    }
    draft.end();
    expected.end();
    ASSERT_EQ(in_runs.position(), one_by_one.position());
    const Recording found = Recording::from_bytes(in_runs.bytes());
    const Recording other = Recording::from_bytes(one_by_one.bytes());
    const std::vector<Event> events = events_of(found);
    const std::vector<Event> others = events_of(other);
    ASSERT_EQ(events.size(), others.size());
    ASSERT_EQ(events.back().kind(), others.back().kind());
    ASSERT_TRUE(std::ranges::equal(events.back().words, others.back().words));
    num_lost += events.back().kind() == EventKind::kLost ? 1U : 0U;
  }
  EXPECT_GT(num_lost, 0U);
}

TEST(RecorderTest, AnEventThatIsTooLongIsNamedAsLost) {
  Recorder recorder(Recorder::kMinRingBytes, kBy);
  const std::uint32_t most = recorder.max_words();
  for (const std::uint32_t num_words : {most - 1, most, 2 * most}) {
    Recorder::Draft draft = recorder.draft(EventKind::kReport, 0, 1, num_words);
    for (std::uint32_t i = 0; i < num_words; ++i) draft.add(i);
    draft.end();
  }
  const Recording recording = Recording::from_bytes(recorder.bytes());
  const auto events = events_of(recording);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].words.size(), most - 1);
  for (const std::size_t i : {1U, 2U}) {
    EXPECT_EQ(events[i].kind(), EventKind::kLost);
    EXPECT_EQ(events[i].number(), static_cast<std::uint32_t>(EventKind::kReport));
  }
}

TEST(RecorderTest, WhatAKilledProcessRecordedIsReadableEachTime) {
  std::mt19937 random(11);
  std::uint32_t longest = 0;
  for (int i = 0; i < 50; ++i) {
    const RecordingPath path;
    Recorder recorder(path.text, Recorder::kMinRingBytes, kBy);
    const pid_t child = ::fork();
    if (child == 0) {
      for (std::uint32_t number = 0;; ++number) put_numbered(recorder, number);
    }
    // The last ones live long enough to fill a ring, also on a busy machine.
    ::usleep(random() % (i < 40 ? 3'000 : 100'000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const Recording recording = Recording::from_file(path.text);
    longest = std::max(longest, expect_numbered(recording));
    ASSERT_FALSE(HasFailure()) << i;
  }
  EXPECT_GT(longest, 0U) << "no ring was ever full";
}

TEST(RecorderTest, AWriterThatWasKilledAsItEnteredASegmentLeavesAllOthers) {
  Recorder recorder(Recorder::kMinRingBytes, kBy);
  const std::uint64_t segment_words = Recorder::kMinRingBytes / 8 / kNumSegments;
  std::uint32_t number = 0;
  while (recorder.position() < 3 * Recorder::kMinRingBytes / 8) put_numbered(recorder, number++);
  int num_entered = 0;
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t before = recorder.position();
    put_numbered(recorder, number++);
    if (before / segment_words == recorder.position() / segment_words) continue;
    std::vector<std::byte> file(recorder.bytes().begin(), recorder.bytes().end());
    reinterpret_cast<FileHead*>(file.data())->published = before;
    const Recording recording = Recording::from_bytes(file);
    EXPECT_EQ(recording.end_position(), before);
    expect_numbered(recording);
    EXPECT_GT(before - recording.begin_position(), (kNumSegments - 4) * segment_words);
    ++num_entered;
  }
  EXPECT_GT(num_entered, 10);
}

TEST(RecorderTest, AReaderOfALivingFileNoticesThatItWasOvertaken) {
  const RecordingPath path;
  Recorder recorder(path.text, Recorder::kMinRingBytes, kBy);
  const RecordingFile file(path.text);
  std::uint32_t number = 0;
  std::uint64_t at = 0;
  for (const std::uint32_t count : {10U, 500U, 20'000U, 3U}) {
    const bool fits = count < 1'000;
    for (std::uint32_t i = 0; i < count; ++i) put_numbered(recorder, number++);
    const Recording recording = file.read(at);
    EXPECT_EQ(recording.begin_position() == at, fits) << count;
    EXPECT_EQ(recording.end_position(), recorder.position());
    expect_numbered(recording);
    at = recording.end_position();
  }
  EXPECT_EQ(file.read(at).begin(), file.read(at).end());
  expect_named(complaint_of<RecordingError>([&] { static_cast<void>(file.read(at + 1)); }),
               {"another one"});
}

TEST(RecorderTest, AReaderBesideABusyWriterReadsWholeEventsOrNone) {
  const RecordingPath path;
  Recorder recorder(path.text, 16 * Recorder::kMinRingBytes, kBy);
  const RecordingFile file(path.text);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint32_t number = 0; !stop; ++number) put_numbered(recorder, number);
  });
  std::uint64_t at = 0;
  int num_read = 0;
  // Not a number of reads: on a busy machine the writer may not run during thousands of them.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int i = 0; (i < 300 || num_read < 10) && std::chrono::steady_clock::now() < end; ++i) {
    if (HasFailure()) break;
    try {
      const Recording recording = file.read(at);
      num_read += recording.begin_position() < recording.end_position() ? 1 : 0;
      at = recording.end_position();
      expect_numbered(recording);
    } catch (const RecordingError& error) {
      EXPECT_NE(std::string(error.what()).find("faster"), std::string::npos) << error.what();
    }
  }
  stop = true;
  writer.join();
  EXPECT_GE(num_read, 10);
}

TEST(RecorderTest, WhatIsCutForeignOrDamagedIsRefusedByALineThatSaysHow) {
  Recorder recorder(Recorder::kMinRingBytes, kBy);
  for (std::uint32_t number = 0; number < 10'000; ++number) put_numbered(recorder, number);
  const std::vector<std::byte> good(recorder.bytes().begin(), recorder.bytes().end());
  const auto complaint = [&](auto damage) {
    std::vector<std::byte> bad = good;
    damage(*reinterpret_cast<FileHead*>(bad.data()), bad);
    return complaint_of<RecordingError>([&] { static_cast<void>(Recording::from_bytes(bad)); });
  };
  expect_named(complaint([](FileHead&, auto& bad) { bad.resize(10); }), {"was cut", "10 bytes"});
  expect_named(complaint([](FileHead&, auto& bad) { bad.resize(bad.size() - 1); }), {"was cut"});
  expect_named(complaint([](FileHead& head, auto&) { head.magic[0] = 'X'; }), {"another file"});
  expect_named(complaint([](FileHead& head, auto&) { head.magic = {}; }), {"never finished"});
  expect_named(complaint([](FileHead& head, auto&) { head.file_version = 99; }),
               {"version 99", "1.2.3"});
  expect_named(complaint([](FileHead& head, auto&) { head.ring_bytes *= 2; }), {"sizes"});
  expect_named(complaint([](FileHead& head, auto&) { head.config_bytes = ~0ULL; }), {"sizes"});
  expect_named(complaint([](FileHead& head, auto&) { head.published += 1'000'000; }), {"cursors"});
  expect_named(complaint([](FileHead& head, auto&) { head.claimed = ~0ULL; }), {"cursors"});
  const Places places = places_of(kBy.config.size(), Recorder::kMinRingBytes);
  expect_named(complaint([&](FileHead&, auto& bad) {
                 std::memset(bad.data() + places.ring, 0, Recorder::kMinRingBytes);
               }),
               {"damaged", "the event at"});
  expect_named(complaint([&](FileHead&, auto& bad) {
                 std::memset(bad.data() + places.segments, 0, kNumSegments * 8);
               }),
               {"table of segments"});
}

TEST(RecorderTest, AnEventThatItsKindCannotHaveIsRefused) {
  const auto complaint = [](EventKind kind, std::uint8_t flags,
                            std::initializer_list<std::uint64_t> words) {
    Recorder recorder(Recorder::kMinRingBytes, kBy);
    recorder.put(EventKind::kPlan, 0, 1, std::uint64_t{7});
    Recorder::Draft draft = recorder.draft(kind, flags, 1, 4);
    for (const std::uint64_t word : words) draft.add(word);
    draft.end();
    return complaint_of<RecordingError>(
        [&] { static_cast<void>(Recording::from_bytes(recorder.bytes())); });
  };
  expect_named(complaint(EventKind::kLookup, 0, {7}),
               {"damaged", "the event at 2", "\"lookup\" has 1 words", "needs 2"});
  expect_named(complaint(EventKind::kRequest, 0, {7, 8}), {"\"request\" has 2 words", "needs 3"});
  expect_named(complaint(EventKind::kSkipped, 6, {7}), {"flags 6", "the largest is 5"});
  expect_named(complaint(EventKind::kLoadEnded, 4, {7}), {"flags 4", "the largest is 3"});
}

TEST(RecorderTest, ThatAFileIsMissingOrNoFileIsSaid) {
  expect_named(complaint_of<ResourceError>(
                   [] { static_cast<void>(Recording::from_file("/nowhere/at/all")); }),
               {"/nowhere/at/all"});
  expect_named(
      complaint_of<RecordingError>([] { static_cast<void>(Recording::from_file("/dev/null")); }),
      {"/dev/null", "none"});
}

TEST(RecorderTest, AnyWordsOfAnyKindHaveAText) {
  std::mt19937_64 random(3);
  for (std::uint32_t kind = 0; kind < kMaxKinds; ++kind) {
    EXPECT_FALSE(name_of(static_cast<EventKind>(kind)).empty());
    for (std::uint32_t num_words = 0; num_words < 40; ++num_words) {
      std::vector<std::uint64_t> words(num_words);
      for (std::uint64_t& word : words) word = random();
      const EventHead head(static_cast<EventKind>(kind), 5, num_words + 1, 7);
      const std::string text = to_text({0, head, words});
      EXPECT_NE(text.find(name_of(static_cast<EventKind>(kind))), std::string::npos);
      EXPECT_LT(text.size(), 1'500U);
    }
  }
}

}  // namespace
}  // namespace kvferry::recorder
