// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/engine_view.hpp"
#include "kvferry/recorder/event.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvferry::connector {

/// A request's hashes, as far as the recorded scheduler side read them.
class ReplayedHashes final : public BlockHashes {
 public:
  [[nodiscard]] std::size_t size() const override { return size_; }
  [[nodiscard]] std::span<const std::byte> hash(std::size_t index) const override;

  /// Takes over how many the engine knows. Throws RecordingError if it cannot be.
  void set_size(std::uint32_t size, const recorder::Event& from);
  /// Takes over a kHashes. Throws RecordingError if it is none.
  void take(const recorder::Event& event);

 private:
  std::size_t size_ = 0;
  std::size_t hash_bytes_ = 32;
  std::vector<std::array<std::byte, 32>> hashes_;
};

/// The pool's recorded answers, in their order. If the replay asks for more than there are, its own
/// events differ from the recorded ones, so any answer does.
class ReplayedPool final : public BlockPool {
 public:
  void add(const recorder::Event& answer) { answers_.push_back(answer); }
  void clear() { answers_.clear(); }

  [[nodiscard]] bool holds(BlockId block, const cpu_tier::BlockKey& key) const override;
  void mark_held(std::span<const BlockId> blocks, std::span<const cpu_tier::BlockKey> keys,
                 std::span<std::uint8_t> held) const override;
  [[nodiscard]] std::optional<cpu_tier::BlockKey> key(BlockId block) const override;

 private:
  [[nodiscard]] std::optional<recorder::Event> next(recorder::EventKind kind) const;

  mutable std::deque<recorder::Event> answers_;
};

/// The engine's requests: their ids and hashes, by their numbers.
class ReplayedRequests {
 public:
  /// An id that no request has.
  static constexpr const char* kUnknown = "\x01 unknown";

  struct One {
    std::string engine_id = kUnknown;
    std::shared_ptr<ReplayedHashes> hashes;
    bool id_was_cut = false;
  };
  /// Throws RecordingError if the kRequest lacks something.
  const One& arrive(const recorder::Event& event);
  /// The request of an event, or an unknown one.
  [[nodiscard]] const One& of(const recorder::Event& event) const;
  void drop(std::uint32_t number) { requests_.erase(number); }

 private:
  std::map<std::uint32_t, One> requests_;
};

/// Throws a RecordingError that names the event.
[[noreturn]] void refuse(const recorder::Event& event, const std::string& why);
/// Throws RecordingError unless the event has at least so many words after its head.
void expect_words(const recorder::Event& event, std::size_t num_words);

}  // namespace kvferry::connector
