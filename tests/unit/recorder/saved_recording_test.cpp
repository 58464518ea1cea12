// SPDX-License-Identifier: Apache-2.0
#include "kvferry/recorder/saved_recording.hpp"

#include "kvferry/recorder/recorder.hpp"

#include "recording_path.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace kvferry::recorder {
namespace {

const RecordedBy kSavedBy{"1.2.3", 9, "model a model\nhash_tokens 16\n"};

struct Told {
  std::uint64_t position;
  std::uint64_t head;
  std::vector<std::uint64_t> words;

  bool operator==(const Told&) const = default;
};

std::vector<Told> told_by(const Recording& recording) {
  std::vector<Told> all;
  for (const Event& event : recording) {
    all.push_back({event.position, event.head.word(), {event.words.begin(), event.words.end()}});
  }
  return all;
}

void put_events(Recorder& recorder, std::uint32_t number) {
  for (std::uint32_t i = 0; i < number; ++i) {
    Recorder::Draft draft = recorder.draft(EventKind::kCancels, 1, i, i % 40);
    for (std::uint32_t word = 0; word < i % 40; ++word) draft.add(std::uint64_t{i} << 32U | word);
    draft.end();
  }
}

TEST(SavedRecordingTest, HasTheEventsAndTheHead) {
  const RecordingPath path;
  Recorder recorder(Recorder::kMinRingBytes, kSavedBy);
  put_events(recorder, 100);
  const Recording was = Recording::from_bytes(recorder.bytes());
  save(was, path.text);
  const Recording is = Recording::from_file(path.text);
  EXPECT_EQ(told_by(is), told_by(was));
  EXPECT_TRUE(is.is_whole());
  EXPECT_EQ(is.head().config, kSavedBy.config);
  EXPECT_EQ(is.head().version, "1.2.3");
  EXPECT_EQ(is.head().pid, was.head().pid);
  EXPECT_EQ(is.head().boot_id, was.head().boot_id);
  EXPECT_EQ(is.head().wall, was.head().wall);
  struct ::stat info {};
  ASSERT_EQ(::stat(path.text.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST(SavedRecordingTest, HasTheNewestEventsOfARingThatIsFull) {
  for (std::uint32_t number = 2000; number < 2040; ++number) {
    const RecordingPath path;
    Recorder recorder(Recorder::kMinRingBytes, kSavedBy);
    put_events(recorder, number);
    const Recording was = Recording::from_bytes(recorder.bytes());
    ASSERT_FALSE(was.is_whole());
    save(was, path.text);
    const Recording is = Recording::from_file(path.text);
    EXPECT_EQ(is.end_position(), was.end_position());
    const std::uint64_t segment_words = Recorder::kMinRingBytes / 8 / 256;
    EXPECT_LE(is.begin_position(), was.begin_position() + segment_words + 41);
    std::vector<Told> all = told_by(was);
    std::erase_if(all, [&](const Told& one) { return one.position < is.begin_position(); });
    EXPECT_EQ(told_by(is), all);
    EXPECT_FALSE(all.empty());
  }
}

TEST(SavedRecordingTest, AFileCanHaveSeveral) {
  const RecordingPath path;
  std::vector<Recording> parts;
  for (std::uint32_t i = 0; i < 3; ++i) {
    Recorder recorder(Recorder::kMinRingBytes << i, {"1.2.3", 9, std::string(i * 1000, 'x')});
    put_events(recorder, 1000 * i + 10);
    parts.push_back(Recording::from_bytes(recorder.bytes()));
  }
  const std::vector<const Recording*> all{&parts[0], &parts[1], &parts[2]};
  save(all, path.text);
  EXPECT_EQ(told_by(Recording::from_file(path.text)), told_by(parts[0]));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const RecordingFile file(path.text, i);
    EXPECT_EQ(file.has_next(), i < 2);
    EXPECT_EQ(file.head().config, parts[i].head().config);
    std::vector<Told> told = told_by(parts[i]);
    const Recording is = file.read();
    std::erase_if(told, [&](const Told& one) { return one.position < is.begin_position(); });
    EXPECT_EQ(told_by(is), told);
    EXPECT_FALSE(told.empty());
  }
  EXPECT_THROW(RecordingFile(path.text, 3), RecordingError);
}

TEST(SavedRecordingTest, APartThatWasCutIsRefusedAndTheOthersAreRead) {
  const RecordingPath path;
  Recorder recorder(Recorder::kMinRingBytes, kSavedBy);
  put_events(recorder, 50);
  const Recording one = Recording::from_bytes(recorder.bytes());
  save(std::vector{&one, &one}, path.text);
  struct ::stat info {};
  ASSERT_EQ(::stat(path.text.c_str(), &info), 0);
  for (const off_t less : {1, 5000, 60000}) {
    ASSERT_EQ(::truncate(path.text.c_str(), info.st_size - less), 0);
    EXPECT_EQ(told_by(RecordingFile(path.text).read()), told_by(one));
    EXPECT_TRUE(RecordingFile(path.text).has_next());
    EXPECT_THROW(RecordingFile(path.text, 1), RecordingError);
  }
}

TEST(SavedRecordingTest, AFileThatExistsIsRefusedAndStays) {
  const RecordingPath path;
  Recorder recorder(Recorder::kMinRingBytes, kSavedBy);
  save(Recording::from_bytes(recorder.bytes()), path.text);
  put_events(recorder, 10);
  EXPECT_THROW(save(Recording::from_bytes(recorder.bytes()), path.text), ConfigError);
  EXPECT_EQ(Recording::from_file(path.text).end_position(), 0U);
  EXPECT_THROW(save(Recording::from_bytes(recorder.bytes()), "/no/such/directory/file"),
               ResourceError);
}

}  // namespace
}  // namespace kvferry::recorder
