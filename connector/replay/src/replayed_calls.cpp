// SPDX-License-Identifier: Apache-2.0
#include "replayed_calls.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/recorder/recording.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

namespace kvferry::connector {

using recorder::Event;
using recorder::EventKind;
using recorder::RecordingError;

namespace {

/// No clock is later, and no wait longer: about a century. So sums of both are times too.
constexpr std::int64_t kMostNanoseconds = std::int64_t{1} << 61U;

/// 32-bit values from an event's word `at` on.
class Halves {
 public:
  Halves(const Event& event, std::size_t at) : event_(event), at_(2 * at) {}

  [[nodiscard]] std::uint32_t next() {
    expect_words(event_, at_ / 2 + 1);
    return event_.half(at_++);
  }
  [[nodiscard]] std::vector<BlockId> blocks(std::uint32_t count) {
    expect_words(event_, (at_ + count + 1) / 2);
    std::vector<BlockId> blocks;
    for (std::uint32_t i = 0; i < count; ++i) blocks.emplace_back(next());
    return blocks;
  }

 private:
  const Event& event_;
  std::size_t at_;
};

/// Blocks by group, as the engine gives them.
class Table {
 public:
  Table(Halves values, std::size_t num_groups) {
    for (std::size_t i = 0; i < num_groups; ++i) {
      const std::uint32_t count = values.next();
      groups_.push_back(values.blocks(count));
    }
    views_.assign(groups_.begin(), groups_.end());
  }
  [[nodiscard]] GroupBlocks view() const { return views_; }

 private:
  std::vector<std::vector<BlockId>> groups_;
  std::vector<std::span<const BlockId>> views_;
};

/// A session by its mark: as many sessions as there were have different names.
std::string session_of(std::uint64_t mark) { return mark == 0 ? "" : std::to_string(mark); }

}  // namespace

ReplayedCalls::ReplayedCalls(SchedulerOptions options, recorder::Recorder& recorder)
    : num_groups_(options.groups.size()) {
  options.recorder = &recorder;
  options.clock = [this] {
    if (!times_.empty()) {
      now_ = times_.front();
      times_.pop_front();
    }
    return now_;
  };
  if (options.replayed_peers) {
    options.replayed_peers = [this] { return replayed_peers(peer_answers_); };
  }
  engine_ = std::make_unique<SchedulerEngine>(std::move(options));
}

bool ReplayedCalls::run(std::span<const Event> call) {
  const Event& event = call.front();
  if (!is_complete(call)) return false;
  if (event.kind() == EventKind::kRequest) requests_.arrive(event);
  take_answers(call);
  // Later the request can be forgotten.
  const ReplayedRequests::One* request = nullptr;
  if (event.kind() >= EventKind::kRequest && event.kind() <= EventKind::kFinished &&
      event.kind() != EventKind::kBlocksInvalid && event.kind() != EventKind::kPlan &&
      event.kind() != EventKind::kFold) {
    request = &requests_.of(event);
  }
  has_id_ = request == nullptr || (event.number() != 0 && !request->id_was_cut);
  try {
    make(call);
  } catch (const RecordingError&) {
    throw;
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it is recorded.
  }
  if (event.kind() == EventKind::kFinished) requests_.drop(event.number());
  return true;
}

bool ReplayedCalls::is_complete(std::span<const Event> call) {
  if (call.front().kind() != EventKind::kFold) return true;
  const auto is_report = [](const Event& event) { return event.kind() == EventKind::kReport; };
  return std::count_if(call.begin(), call.end(), is_report) >= call.front().number();
}

bool ReplayedCalls::has_id_of(const Event&) const { return has_id_; }

void ReplayedCalls::take_answers(std::span<const Event> call) {
  times_.clear();
  pool_.clear();
  peer_answers_.clear();
  if (recorder::has_time(call.front().kind())) take_time(call.front());
  for (const Event& event : call) {
    switch (event.kind()) {
      case EventKind::kTime:
        take_time(event);
        break;
      case EventKind::kHashes:
        if (requests_.of(event).hashes != nullptr) requests_.of(event).hashes->take(event);
        break;
      case EventKind::kPoolHolds:
      case EventKind::kPoolMarks:
      case EventKind::kPoolKey:
        pool_.add(event);
        break;
      case EventKind::kPeers:
        peer_answers_.add(event);
        break;
      default:
        break;
    }
  }
}

void ReplayedCalls::take_time(const Event& event) {
  expect_words(event, 1);
  const auto word = static_cast<std::int64_t>(event.words[0]);
  const std::chrono::steady_clock::time_point time{std::chrono::nanoseconds(word)};
  if (time < latest_ || word > kMostNanoseconds) refuse(event, "has a time that no clock has then");
  times_.push_back(latest_ = time);
}

void ReplayedCalls::make(std::span<const Event> call) {
  const Event& event = call.front();
  const auto id = [&]() -> const std::string& { return requests_.of(event).engine_id; };
  switch (event.kind()) {
    case EventKind::kRequest:
      engine_->on_request(id(), requests_.of(event).hashes, {event.low(1), event.high(1)});
      break;
    case EventKind::kHints:
      hint(event);
      break;
    case EventKind::kLookup:
      expect_words(event, 2);
      static_cast<void>(engine_->lookup(id(), event.low(1), event.high(1)));
      break;
    case EventKind::kAllocated:
      allocate(event);
      break;
    case EventKind::kLocal:
      expect_words(event, 1);
      static_cast<void>(engine_->note_local(id(), event.low(0)));
      break;
    case EventKind::kBlocksInvalid:
      engine_->on_blocks_invalid(Halves(event, 0).blocks(event.number()));
      break;
    case EventKind::kPreempted:
      engine_->on_preempted(id());
      break;
    case EventKind::kScheduled:
      schedule(event);
      break;
    case EventKind::kState:
      expect_words(event, 2);
      engine_->on_state(id(), GroupId(event.low(0)), BlockId(event.high(0)), event.low(1));
      break;
    case EventKind::kPlan:
      static_cast<void>(engine_->finish_plan());
      break;
    case EventKind::kFold:
      fold(call);
      break;
    case EventKind::kFinished:
      expect_words(event, 2);
      engine_->on_finished(id(), event.low(1));
      break;
    case EventKind::kReset:
      engine_->reset_cache();
      break;
    case EventKind::kWeights:
      expect_words(event, 2);
      engine_->change_weights(WeightsId(event.words[1]), event.has(recorder::kForgotten)
                                                             ? OldBlocks::kForgotten
                                                             : OldBlocks::kKept);
      break;
    case EventKind::kResize:
      engine_->resize(event.number());
      break;
    case EventKind::kPool:
      engine_->set_pool(event.number() == 0 ? nullptr : &pool_);
      break;
    case EventKind::kTended:
      engine_->tend();
      break;
    case EventKind::kTakeKeyEvents:
      static_cast<void>(engine_->take_key_events());
      break;
    default:
      break;
  }
}

void ReplayedCalls::hint(const Event& event) {
  expect_words(event, 1);
  std::vector<ClientHint> hints;
  for (std::size_t at = 1; at + 2 < event.words.size(); at += 3) {
    const auto action =
        static_cast<HintAction>(std::min<std::uint64_t>(event.words[at], kNumHintActions - 1));
    const auto time_to_live =
        std::chrono::nanoseconds(static_cast<std::int64_t>(event.words[at + 1]));
    if (time_to_live.count() > kMostNanoseconds || time_to_live.count() < 0) {
      refuse(event, "has a time to live that is none");
    }
    hints.push_back({action, time_to_live, session_of(event.words[at + 2])});
  }
  engine_->on_hints(requests_.of(event).engine_id, session_of(event.words[0]), hints);
}

void ReplayedCalls::allocate(const Event& event) {
  expect_words(event, 2);
  const Table table(Halves(event, 2), event.high(1));
  engine_->on_allocated(requests_.of(event).engine_id, table.view(), event.low(1));
}

void ReplayedCalls::schedule(const Event& event) {
  const ReplayedRequests::One& request = requests_.of(event);
  expect_words(event, 1);
  StepTokens tokens{event.low(0), event.high(0)};
  std::size_t at = 1;
  if (event.has(recorder::kHasDrafts)) {
    expect_words(event, at + 1);
    tokens.num_drafts = event.low(at);
    if (event.high(at) != 0 && request.hashes != nullptr) {
      request.hashes->set_size(event.high(at), event);
    }
    ++at;
  }
  if (event.has(recorder::kHasPrompt)) {
    expect_words(event, at + 1);
    tokens.num_prompt = event.low(at++);
  }
  std::size_t num_groups = event.has(recorder::kHasBlocks) ? num_groups_ : 0;
  if (event.has(recorder::kOddGroups)) {
    expect_words(event, at + 1);
    num_groups = event.low(at++);
  }
  const Table table(Halves(event, at), num_groups);
  const auto update = event.has(recorder::kReplaces) ? TableUpdate::kReplace : TableUpdate::kAppend;
  engine_->on_scheduled(request.engine_id, update, table.view(), tokens);
}

void ReplayedCalls::fold(std::span<const Event> call) {
  std::vector<std::span<const std::byte>> reports;
  for (const Event& event : call) {
    if (event.kind() != EventKind::kReport) continue;
    const auto bytes = std::as_bytes(event.words);
    if (bytes.size() < event.number()) expect_words(event, event.words.size() + 1);
    reports.push_back(bytes.first(event.number()));
  }
  static_cast<void>(engine_->fold(reports));
}

}  // namespace kvferry::connector
