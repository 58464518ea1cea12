// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/wire/step_report.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvferry::connector {

/// What every rank has reported about one transfer. Success needs every rank, and one failure is a
/// failure. A second report of a rank about the same thing is refused. Called by the scheduler's
/// thread alone.
class RankRoll {
 public:
  explicit RankRoll(std::uint32_t world_size) : ranks_(world_size) {}

  /// False if this rank has reported it before. For a rank that gathered nothing, a store ends with
  /// this.
  [[nodiscard]] bool gathered(RankId rank, std::uint32_t num_gathered) {
    Rank& of = ranks_.at(rank.value());
    if (of.gathered) return false;
    of.gathered = num_gathered;
    ++num_gathered_;
    if (num_gathered == 0) static_cast<void>(ended(rank, Outcome::kDone));
    return true;
  }
  /// False if this rank has reported it before.
  [[nodiscard]] bool ended(RankId rank, Outcome outcome) {
    Rank& of = ranks_.at(rank.value());
    if (of.ended) return false;
    of.ended = true;
    ++num_ended_;
    if (outcome != Outcome::kDone) all_done_ = false;
    if (outcome == Outcome::kFailed) any_failed_ = true;
    return true;
  }

  /// Calls `visit` for each rank that has not ended it.
  template <class Visit>
  void for_each_silent(Visit visit) const {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!ranks_[rank].ended) visit(RankId(static_cast<std::uint32_t>(rank)));
    }
  }
  [[nodiscard]] bool is_silent(RankId rank) const { return !ranks_.at(rank.value()).ended; }
  [[nodiscard]] bool has_gathered(RankId rank) const {
    return ranks_.at(rank.value()).gathered.has_value();
  }
  [[nodiscard]] bool all_gathered() const { return num_gathered_ == ranks_.size(); }
  [[nodiscard]] bool all_ended() const { return num_ended_ == ranks_.size(); }
  [[nodiscard]] bool all_done() const { return all_ended() && all_done_; }
  [[nodiscard]] bool any_failed() const { return any_failed_; }
  /// The least and the most blocks that a rank gathered. Call it after all_gathered().
  [[nodiscard]] std::uint32_t least_gathered() const {
    return extreme([](auto a, auto b) { return a < b; });
  }
  [[nodiscard]] std::uint32_t most_gathered() const {
    return extreme([](auto a, auto b) { return a > b; });
  }

 private:
  struct Rank {
    std::optional<std::uint32_t> gathered;
    bool ended = false;
  };

  template <class Before>
  [[nodiscard]] std::uint32_t extreme(Before before) const {
    std::uint32_t best = *ranks_.front().gathered;
    for (const Rank& rank : ranks_) {
      if (before(*rank.gathered, best)) best = *rank.gathered;
    }
    return best;
  }

  std::vector<Rank> ranks_;
  std::uint32_t num_gathered_ = 0;
  std::uint32_t num_ended_ = 0;
  bool all_done_ = true;
  bool any_failed_ = false;
};

}  // namespace kvferry::connector
