// SPDX-License-Identifier: Apache-2.0
#include "indexed_recording.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>

namespace kvferry::python {
namespace {

using recorder::Event;
using recorder::EventKind;

/// Which kinds have keys among their words: from `first` on, each `step`-th word is one.
struct KeysAt {
  std::size_t first;
  std::size_t step;
};
std::optional<KeysAt> keys_of(EventKind kind) {
  switch (kind) {
    case EventKind::kStore:
      return KeysAt{2, 2};
    case EventKind::kSkipped:
      return KeysAt{0, 1};
    case EventKind::kLeft:
    case EventKind::kCame:
      return KeysAt{0, 2};
    default:
      return std::nullopt;
  }
}

}  // namespace

const std::vector<IndexedRecording::Entry>& IndexedRecording::Index::all(const Fill& fill) const {
  std::call_once(once_, [&] {
    fill(entries_);
    std::sort(entries_.begin(), entries_.end());
  });
  return entries_;
}

std::span<const IndexedRecording::Entry> IndexedRecording::Index::of(std::uint64_t wanted,
                                                                     const Fill& fill) const {
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
  const std::vector<Entry>& entries = all(fill);
  const auto first = std::lower_bound(entries.begin(), entries.end(), Entry{wanted, 0});
  return {first, std::upper_bound(first, entries.end(), Entry{wanted, kLast})};
}

std::vector<Event> IndexedRecording::with(std::uint32_t number) const {
  const auto fill = [this](std::vector<Entry>& entries) {
    for (const Event& event : events_) entries.emplace_back(event.number(), event.position);
  };
  std::vector<Event> found;
  for (const auto& [_, position] : by_number_.of(number, fill))
    found.push_back(events_.at(position));
  return found;
}

std::vector<IndexedRecording::Change> IndexedRecording::about(std::uint64_t key) const {
  const auto name_keys = [this](std::vector<Entry>& entries) {
    for (const Event& event : events_) {
      const std::optional<KeysAt> at = keys_of(event.kind());
      if (!at) continue;
      for (std::size_t i = at->first; i < event.words.size(); i += at->step) {
        entries.emplace_back(event.words[i], event.position);
      }
    }
  };
  const auto end_stores = [this](std::vector<Entry>& entries) {
    for (const Event& event : events_) {
      if (event.kind() == EventKind::kStoreEnded) {
        entries.emplace_back(event.words[0], event.position);
      } else if (event.kind() == EventKind::kAborted) {
        for (const std::uint64_t one : event.words) entries.emplace_back(one, event.position);
      }
    }
  };
  std::vector<Change> found;
  for (const auto& [_, position] : by_block_.of(key, name_keys)) {
    const Event event = events_.at(position);
    if (event.kind() != EventKind::kStore) {
      found.push_back({event, std::nullopt});
      continue;
    }
    const std::uint64_t store = event.words[0];
    found.push_back({event, store});
    for (const auto& [__, end] : by_store_.of(store, end_stores)) {
      found.push_back({events_.at(end), store});
    }
  }
  std::sort(found.begin(), found.end(), [](const Change& left, const Change& right) {
    return std::pair(left.event.position, left.store) <
           std::pair(right.event.position, right.store);
  });
  return found;
}

std::uint64_t IndexedRecording::time_at(std::uint64_t position) const {
  const std::vector<Entry>& all = times_.all([this](std::vector<Entry>& entries) {
    for (const Event& event : events_) {
      if (recorder::has_time(event.kind()) && !event.words.empty()) {
        entries.emplace_back(event.position, event.words[0]);
      }
    }
  });
  const auto after = std::lower_bound(all.begin(), all.end(), Entry{position + 1, 0});
  return after == all.begin() ? 0 : std::prev(after)->second;
}

}  // namespace kvferry::python
