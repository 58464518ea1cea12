// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/recorder/recording.hpp"

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::python {

/// A recording in which events are found by number, by block and by time. Each index is made when
/// it is first asked, in one pass, and takes 16 bytes for each entry. Thread-safe. The events that
/// it returns are views into it.
class IndexedRecording {
 public:
  explicit IndexedRecording(recorder::Recording events) : events_(std::move(events)) {}

  [[nodiscard]] const recorder::Recording& events() const { return events_; }
  /// Events that have this number (recorder/event.hpp says of what), in their order.
  [[nodiscard]] std::vector<recorder::Event> with(std::uint32_t number) const;
  struct Change {
    recorder::Event event;
    std::optional<std::uint64_t> store;  ///< The one that the event is about, if any.
  };
  /// What became of a key's block, in order: kStore, kSkipped, kLeft and kCame that name it, and
  /// kStoreEnded and kAborted of its stores.
  [[nodiscard]] std::vector<Change> about(std::uint64_t key) const;
  /// The newest time that was recorded up to the position, with it; 0: none.
  [[nodiscard]] std::uint64_t time_at(std::uint64_t position) const;

 private:
  /// What events are found by, and a position.
  using Entry = std::pair<std::uint64_t, std::uint64_t>;
  /// Sorted entries; `fill` finds them the first time.
  class Index {
   public:
    using Fill = std::function<void(std::vector<Entry>&)>;
    const std::vector<Entry>& all(const Fill& fill) const;
    /// Those that have `wanted` first.
    std::span<const Entry> of(std::uint64_t wanted, const Fill& fill) const;

   private:
    mutable std::once_flag once_;
    mutable std::vector<Entry> entries_;
  };

  recorder::Recording events_;
  Index by_number_;
  Index by_block_;
  Index by_store_;  ///< Their ends.
  Index times_;     ///< By position, with the time instead of another position.
};

}  // namespace kvferry::python
