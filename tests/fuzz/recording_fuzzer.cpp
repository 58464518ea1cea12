// SPDX-License-Identifier: Apache-2.0
// Events in a small ring, and damage to its file. The first two bytes say how many events are
// recorded, the next one how the damage is meant, the rest is damage: a place (3 bytes) and what is
// xor-ed there (1 byte); or the whole file is cut and begins with these bytes.
#include "kvferry/recorder/recorder.hpp"
#include "kvferry/recorder/recording.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace kvferry::fuzz {
namespace {

using recorder::Event;
using recorder::EventKind;
using recorder::Recorder;
using recorder::Recording;

void expect(bool condition) {
  if (!condition) std::abort();
}

void put_numbered(Recorder& recorder, std::uint32_t number) {
  const std::uint32_t num_words = number % 29;
  Recorder::Draft draft = recorder.draft(EventKind::kCancels, 0, number, num_words + number % 3);
  for (std::uint32_t i = 0; i < num_words; ++i) draft.add(number);
  draft.end();
}

/// Returns the number of events.
std::size_t read_all(const Recording& recording, bool is_damaged) {
  std::size_t num_events = 0;
  std::uint64_t at = recording.begin_position();
  std::uint32_t number = 0;
  for (const Event& event : recording) {
    expect(event.position == at && event.head.num_words() == event.words.size() + 1);
    expect(!recorder::to_text(event).empty());
    at += event.head.num_words();
    if (!is_damaged) {
      expect(num_events == 0 || event.number() == number + 1);
      expect(event.words.size() == event.number() % 29);
    }
    number = event.number();
    ++num_events;
  }
  expect(at == recording.end_position());
  return num_events;
}

void run(std::span<const std::uint8_t> data) {
  Recorder recorder(Recorder::kMinRingBytes, {"fuzz", 1, "a configuration"});
  const std::uint32_t num_events = data[0] | data[1] << 8U;
  for (std::uint32_t number = 0; number < num_events; ++number) put_numbered(recorder, number);
  const Recording whole = Recording::from_bytes(recorder.bytes());
  const std::size_t num_left = read_all(whole, false);
  expect(num_left == num_events || (!whole.is_whole() && num_left > 250));

  std::vector<std::byte> file(recorder.bytes().begin(), recorder.bytes().end());
  const bool replaces = data[2] % 4 == 0;
  data = data.subspan(3);
  if (replaces) {
    std::memcpy(file.data(), data.data(), std::min(file.size(), data.size()));
    file.resize(data.size() + (data.empty() ? 0 : data[0] * std::size_t{300}));
  }
  for (; !replaces && data.size() >= 4; data = data.subspan(4)) {
    // Half of the damage is in the head and the tables.
    std::size_t place = data[0] | data[1] << 8U | std::size_t{data[2]} << 16U;
    place %= data[2] % 2 == 0 ? std::size_t{2'600} : file.size();
    file[place] ^= std::byte{data[3]};
  }
  try {
    static_cast<void>(read_all(Recording::from_bytes(file), true));
  } catch (const recorder::RecordingError& error) {
    expect(std::string(error.what()).find("a recording ") == 0);
  }
}

}  // namespace
}  // namespace kvferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size >= 3) kvferry::fuzz::run({data, size});
  return 0;
}
