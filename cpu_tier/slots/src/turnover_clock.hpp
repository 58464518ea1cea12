// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvferry::cpu_tier {

/// Translates ages by one class's own clock (SlotLists::clock()) into the time that all classes
/// share: how much has been stored in the whole memory since then. Times are in sixteenths of a
/// turnover, at most four turnovers. One thread at a time.
class TurnoverClock {
 public:
  static constexpr std::uint32_t kMarksPerTurnover = 16;
  static constexpr std::uint32_t kMostAge = 64;

  explicit TurnoverClock(std::uint32_t clock) { marks_.fill(clock); }

  /// Records that a sixteenth of the memory has been stored since the last mark.
  void mark(std::uint32_t clock) {
    marks_[num_marks_ % kMostAge] = clock;
    ++num_marks_;
  }

  /// The number of marks since a use that was `age` before `clock`.
  [[nodiscard]] std::uint32_t marks_since(std::uint32_t clock, std::uint32_t age) const {
    const std::uint32_t most = num_marks_ < kMostAge ? num_marks_ : kMostAge;
    std::uint32_t num_since = 0;
    // Differences are compared, because the clock wraps. A mark at the clock of the use came after
    // it.
    while (num_since < most && clock - marks_[(num_marks_ - 1 - num_since) % kMostAge] <= age) {
      ++num_since;
    }
    return num_since;
  }

 private:
  std::array<std::uint32_t, kMostAge> marks_{};
  std::uint32_t num_marks_ = 0;
};

}  // namespace kvferry::cpu_tier
