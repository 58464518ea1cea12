// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/recorder/recording.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

/// Recordings that a disk has damaged, or a person has edited.
namespace kvferry::recorder {

/// Makes the edits that any bytes are: six of them say what is done, to which event (two bytes), to
/// which of its words, and with which value (two bytes). Throws RecordingError if what comes out is
/// no list of events.
inline Recording edited(const Recording& of, std::span<const std::uint8_t> edits) {
  using Words = std::vector<std::uint64_t>;
  RecordingHead head = of.head();
  std::vector<Words> events;
  for (const Event& event : of) {
    events.push_back({event.head.word()});
    events.back().insert(events.back().end(), event.words.begin(), event.words.end());
  }
  const auto is_call = [](const Words& event) { return is_input(EventHead(event[0]).kind()); };
  for (; edits.size() >= 6 && events.size() > 1; edits = edits.subspan(6)) {
    const std::size_t at = (edits[1] | edits[2] << 8U) % events.size();
    const std::uint64_t value = edits[4] | std::uint64_t{edits[5]} << 8U;
    const std::size_t other = (at + value) % events.size();
    const auto place = events.begin() + static_cast<std::ptrdiff_t>(at);
    const auto call_end = std::find_if(std::next(place), events.end(), is_call);
    Words& event = events[at];
    std::uint64_t& word = event[edits[3] % event.size()];
    switch (edits[0] % 14) {
      case 0:
        word ^= std::uint64_t{1} << value % 64;
        break;
      case 1:
        word = value;
        break;
      case 2:
        word = (word & ~std::uint64_t{0xffffffff}) | value % 80;
        break;
      case 3:
        word = (word & 0xffffffff) | (value % 80) << 32U;
        break;
      case 4:
        word = events[other][edits[3] % events[other].size()];
        break;
      case 5:
        event[0] = (event[0] & 0xffffffff) | (value % 16) << 32U;
        break;
      case 6:
        events.erase(place);
        break;
      case 7:
        events.insert(events.begin() + static_cast<std::ptrdiff_t>(other), Words(event));
        break;
      case 8:
        std::swap(event, events[other]);
        break;
      case 9:
        events.erase(place, call_end);
        break;
      case 10: {
        const std::vector<Words> call(place, call_end);
        events.insert(events.begin() + static_cast<std::ptrdiff_t>(other), call.begin(),
                      call.end());
        break;
      }
      case 11:
        events.erase(place, events.end());
        break;
      case 12:
        event.resize(1 + value % 24);
        event[0] = EventHead(EventHead(event[0]).kind(), EventHead(event[0]).flags(),
                             static_cast<std::uint32_t>(event.size()), EventHead(event[0]).number())
                       .word();
        break;
      default: {
        char& letter = head.config[(at + edits[3]) % head.config.size()];
        if (std::isdigit(static_cast<unsigned char>(letter)) != 0) {
          letter = static_cast<char>('0' + value % 10);
        }
      }
    }
  }
  Words words;
  for (const Words& event : events) words.insert(words.end(), event.begin(), event.end());
  return {head, 0, std::move(words)};
}

}  // namespace kvferry::recorder
