// SPDX-License-Identifier: Apache-2.0
#include "replayed_world.hpp"

#include "kvferry/recorder/recording.hpp"

#include <algorithm>
#include <cstring>

namespace kvferry::connector {

using recorder::Event;
using recorder::EventKind;
using recorder::RecordingError;

namespace {

/// No request has more hashes. It bounds what a damaged event can cost.
constexpr std::uint64_t kMostHashes = std::uint64_t{1} << 24U;

}  // namespace

void refuse(const Event& event, const std::string& why) {
  throw RecordingError("a recording cannot be replayed: its event at " +
                       std::to_string(event.position) + " (" + recorder::to_text(event) + ") " +
                       why);
}

void expect_words(const Event& event, std::size_t num_words) {
  if (event.words.size() < num_words) {
    refuse(event, "has " + std::to_string(event.words.size()) + " words; expected at least " +
                      std::to_string(num_words));
  }
}

std::span<const std::byte> ReplayedHashes::hash(std::size_t index) const {
  // Of a call that was cut it may lack some. In any other one what this throws is a difference.
  return std::span(hashes_.at(index)).first(hash_bytes_);
}

void ReplayedHashes::set_size(std::uint32_t size, const Event& from) {
  if (size > kMostHashes) refuse(from, "has more hashes than any request");
  size_ = size;
}

void ReplayedHashes::take(const Event& event) {
  expect_words(event, 2);
  const std::uint64_t first = event.low(1);
  const std::uint64_t step = event.high(1);
  const std::span<const std::uint64_t> words = event.words.subspan(2);
  set_size(event.low(0), event);
  if (words.empty()) return;
  const std::uint64_t last = first + (words.size() - 1) * step;
  if (last >= size_ || event.high(0) == 0 || event.high(0) > 32) {
    refuse(event, "contradicts itself");
  }
  hash_bytes_ = event.high(0);
  if (hashes_.size() < size_) hashes_.resize(size_);
  for (std::size_t i = 0; i < words.size(); ++i) {
    hashes_[first + i * step] = {};
    std::memcpy(hashes_[first + i * step].data(), &words[i],
                std::min(hash_bytes_, sizeof(std::uint64_t)));
  }
}

std::optional<Event> ReplayedPool::next(EventKind kind) const {
  if (answers_.empty() || answers_.front().kind() != kind) return std::nullopt;
  const Event answer = answers_.front();
  answers_.pop_front();
  return answer;
}

bool ReplayedPool::holds(BlockId, const cpu_tier::BlockKey&) const {
  const std::optional<Event> answer = next(EventKind::kPoolHolds);
  return answer && answer->number() != 0;
}

void ReplayedPool::mark_held(std::span<const BlockId>, std::span<const cpu_tier::BlockKey>,
                             std::span<std::uint8_t> held) const {
  const std::optional<Event> answer = next(EventKind::kPoolMarks);
  if (!answer) return;
  const std::size_t count = std::min(held.size(), answer->words.size() * 64);
  for (std::size_t i = 0; i < count; ++i) {
    if ((answer->words[i / 64] >> (i % 64) & 1U) != 0) held[i] = 1;
  }
}

std::optional<cpu_tier::BlockKey> ReplayedPool::key(BlockId) const {
  const std::optional<Event> answer = next(EventKind::kPoolKey);
  if (!answer || answer->words.size() < 2) return std::nullopt;
  cpu_tier::BlockKey key;
  const std::uint64_t rest = answer->words[1];
  std::memcpy(key.hash.data(), answer->words.data(), sizeof(std::uint64_t));
  key.weights = static_cast<std::uint32_t>(rest >> 32U);
  key.group = static_cast<std::uint16_t>(rest >> 16U);
  key.hash_bytes = static_cast<std::uint16_t>(rest);
  return key;
}

const ReplayedRequests::One& ReplayedRequests::arrive(const Event& event) {
  expect_words(event, 3);
  const std::span<const std::uint64_t> words = event.words.subspan(3);
  std::string id(words.size_bytes(), '\0');
  if (!words.empty()) std::memcpy(id.data(), words.data(), words.size_bytes());
  id.resize(std::min(id.find('\0'), id.size()));
  One& one = requests_[event.number()];
  one.id_was_cut = event.has(recorder::kIdWasCut);
  // Ids with the same beginning stay different.
  if (one.id_was_cut) id += "#" + std::to_string(event.words[2]);
  one.engine_id = std::move(id);
  one.hashes = std::make_shared<ReplayedHashes>();
  return one;
}

const ReplayedRequests::One& ReplayedRequests::of(const Event& event) const {
  static const One kNone{};
  const auto found = requests_.find(event.number());
  if (found != requests_.end()) return found->second;
  if (event.number() != 0) refuse(event, "is about a request that has not arrived");
  return kNone;
}

}  // namespace kvferry::connector
