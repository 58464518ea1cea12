// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/outcome.hpp"
#include "kvferry/recorder/recording.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvferry {

/// What a rank's recording says: its transfers, and how those of them ended that did.
struct RankRecording {
  std::set<std::uint64_t> stores;
  std::set<std::uint64_t> loads;
  std::map<std::uint64_t, Outcome> ends;
  /// Transfers in the order in which the rank saw their ends.
  std::vector<std::uint64_t> in_order;
};

/// Reads a rank's recording and expects of it what holds in each: plans come in sequence, a
/// transfer ends once at most and behind its order, as what it was ordered as, and times do not go
/// back. A refused plan orders nothing.
class RankRecordingReader {
 public:
  explicit RankRecordingReader(const recorder::Recording& recording)
      : is_whole_(recording.is_whole()) {
    for (const recorder::Event& event : recording) take(event);
    accept();
  }
  [[nodiscard]] const RankRecording& found() const { return found_; }

 private:
  using EventKind = recorder::EventKind;

  void take(const recorder::Event& event) {
    const std::string text = recorder::to_text(event);
    if (recorder::has_time(event.kind())) {
      EXPECT_GE(event.words[0], now_) << text;
      now_ = event.words[0];
    }
    const bool may_be_refused = std::exchange(is_complete_, false);
    switch (event.kind()) {
      case EventKind::kBound:
      case EventKind::kStore:
      case EventKind::kLoad:
      case EventKind::kCancels:
      case EventKind::kExpiries:
      case EventKind::kNotice:
      case EventKind::kChunks:
        if (may_be_refused) accept();
        plan_.push_back({event.kind(), event.words.empty() ? 0 : event.words[0],
                         event.kind() == EventKind::kLoad && event.words.size() == 1,
                         event.number()});
        return;
      case EventKind::kPlanned:
        EXPECT_FALSE(plan_.empty()) << text;
        is_complete_ = true;
        return;
      case EventKind::kThrew:
        // A ProtocolError.
        if (may_be_refused && event.number() == 1) plan_.clear();
        break;
      default:
        break;
    }
    accept();
    if (event.kind() == EventKind::kGathered) {
      EXPECT_TRUE(found_.stores.contains(event.words[0]) || !is_whole_) << text;
      if (event.head.has(recorder::kHasEnded)) end(event.words[0], Outcome::kDone);
    }
    if (event.kind() == EventKind::kCopied) {
      const auto& of = event.head.has(recorder::kIsLoad) ? found_.loads : found_.stores;
      EXPECT_TRUE(of.contains(event.words[1]) || !is_whole_) << text;
      end(event.words[1], static_cast<Outcome>(event.head.flags() & 3U));
    }
  }

  void end(std::uint64_t transfer, Outcome outcome) {
    EXPECT_TRUE(found_.ends.emplace(transfer, outcome).second) << transfer << " ended twice";
    found_.in_order.push_back(transfer);
  }

  /// The plan was taken.
  void accept() {
    for (const Order& order : plan_) {
      if (order.kind == EventKind::kBound) {
        EXPECT_TRUE(last_plan_ == 0 || order.number == last_plan_ + 1) << order.number;
        last_plan_ = order.number;
      }
      if (order.kind != EventKind::kStore && order.kind != EventKind::kLoad) continue;
      auto& of = order.kind == EventKind::kStore ? found_.stores : found_.loads;
      EXPECT_TRUE(of.insert(order.transfer).second) << order.transfer << " was ordered twice";
      if (order.is_empty_load) end(order.transfer, Outcome::kDone);
    }
    plan_.clear();
  }

  struct Order {
    EventKind kind;
    std::uint64_t transfer;
    bool is_empty_load;
    std::uint32_t number;
  };
  const bool is_whole_;
  RankRecording found_;
  std::vector<Order> plan_;  ///< Of the last plan, until it is clear that it was not refused.
  bool is_complete_ = false;
  std::uint32_t last_plan_ = 0;
  std::uint64_t now_ = 0;
};

inline RankRecording expect_rank_recording(const recorder::Recording& recording) {
  return RankRecordingReader(recording).found();
}

}  // namespace kvferry
