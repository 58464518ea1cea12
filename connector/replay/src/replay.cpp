// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/replay/replay.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/connector/scheduler/recorded_options.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/recorder/recorder.hpp"

#include "replay_child.hpp"
#include "replayed_calls.hpp"
#include "replayed_events.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::connector {

using recorder::Event;
using recorder::EventKind;
using recorder::Recorder;
using recorder::Recording;
using recorder::RecordingError;

namespace {

class Replay {
 public:
  Replay(const Recording& recording, const ReplayOptions& options)
      : recording_(recording),
        options_(options),
        // A release build finds a broken invariant late, so a check could stop the replay before
        // the error comes again.
        checks_(options.check_tier_every != 0 && !recorder::ends_with_error(recording)),
        // Nothing of a recording that is whole is overwritten here, nor is what a child adds to it.
        recorder_(std::min(2 * recording.head().ring_bytes, Recorder::kMaxRingBytes), {}) {}

  ReplayResult run() {
    make_engine();
    for (auto at = recording_.begin(); at != recording_.end() && !result_.difference;) {
      const std::vector<Event> call = next_call(at);
      run_call(call, at == recording_.end());
    }
    if (calls_ != nullptr) result_.books = calls_->engine().books();
    return std::move(result_);
  }

  ReplayResult run_in_child() {
    const ReplayChild child([this](ReplayChild::Tell& tell) {
      tell_books_ = [&tell](const std::string& books) { tell.books(books); };
      tell.end(run());
    });
    if (std::optional<ReplayResult> result = child.result()) return *std::move(result);
    result_.books = child.books();
    take_over(child.how_it_ended());
    return std::move(result_);
  }

 private:
  void make_engine() try {
    calls_ = std::make_unique<ReplayedCalls>(options_from(recording_.head().config), recorder_);
  } catch (const ConfigError& error) {
    throw RecordingError(std::string("a recording's configuration cannot be used: ") +
                         error.what());
  } catch (const std::bad_alloc&) {
    throw RecordingError("a recording's configuration asks for more memory than there is");
  }

  std::vector<Event> next_call(Recording::Iterator& at) const {
    std::vector<Event> call{*at};
    for (++at; at != recording_.end() && !recorder::is_input((*at).kind()); ++at) {
      call.push_back(*at);
    }
    return call;
  }

  /// Compares the call in which a child stopped. All calls before it were the same.
  void take_over(const std::string& how_it_ended) {
    const Recording replayed = Recording::from_bytes(recorder_.bytes());
    std::uint64_t begin = 0;
    std::string last = how_it_ended;
    for (const Event& event : replayed) {
      if (recorder::is_input(event.kind())) {
        begin = event.position;
        ++result_.num_calls;
      }
      if (event.kind() == EventKind::kBroken) last = to_text(event);
    }
    std::vector<Event> call;
    auto at = recording_.begin();
    for (std::uint64_t i = 0; i < result_.num_calls && at != recording_.end(); ++i) {
      result_.num_events += call.size();
      call = next_call(at);
    }
    if (call.empty()) throw RecordingError("a recording cannot be replayed: " + how_it_ended);
    compare(call, Recording::from_bytes(recorder_.bytes(), begin), true);
    if (result_.difference || result_.last_error) return;
    // What is missing may have been cut, but a broken invariant is wrong in any case.
    differ(end_of(call), call.front(), "nothing", last);
  }

  void run_call(const std::vector<Event>& call, bool is_last) {
    if (!recorder::is_input(call.front().kind())) {
      throw RecordingError("a recording cannot be replayed: it does not begin with a call");
    }
    for (const Event& event : call) {
      if (event.kind() != EventKind::kLost) continue;
      throw RecordingError(
          "a recording cannot be replayed: its ring was too small for an event at " +
          std::to_string(event.position) + "; make the recorder larger");
    }
    ++result_.num_calls;
    if (recorder::is_engine_call(call.front().kind())) result_.last_error.reset();
    const std::uint64_t begin = recorder_.position();
    const bool is_broken = call.back().kind() == EventKind::kBroken;
    if (is_broken && tell_books_) tell_books_(calls_->engine().books());
    if (!calls_->run(call)) {
      if (is_last) return;
      throw RecordingError("a recording cannot be replayed: it lacks reports of the fold at " +
                           std::to_string(call.front().position));
    }
    if (is_broken) {
      // It was found in the call, in a check after it, or when the engine ended.
      calls_->engine().check_invariants(CheckDepth::kAll);
      calls_.reset();
    } else if (checks_ && is_check_due()) {
      calls_->engine().check_invariants(CheckDepth::kAll);
    } else if (checks_) {
      calls_->engine().check_invariants(CheckDepth::kCounts);
    }
    compare(call, Recording::from_bytes(recorder_.bytes(), begin), is_last);
  }

  /// In long events it takes long to see what is different.
  static std::string where_not(const Event& event, const Event& other) {
    for (std::size_t i = 0; i < event.words.size(); ++i) {
      if (i < other.words.size() && event.words[i] == other.words[i]) continue;
      return "; word " + std::to_string(i + 1) + " is " + std::to_string(event.words[i]);
    }
    return "";
  }

  static std::uint64_t end_of(const std::vector<Event>& call) {
    return call.back().position + call.back().head.num_words();
  }

  [[nodiscard]] bool is_check_due() const {
    return result_.num_calls % options_.check_tier_every == 0;
  }

  void compare(const std::vector<Event>& call, const Recording& replayed, bool is_last) {
    auto at = replayed.begin();
    const bool has_id = calls_ == nullptr || calls_->has_id_of(call.front());
    for (const Event& event : call) {
      const bool has_one = at != replayed.end();
      if (!has_one || !is_same(event, *at, has_id)) {
        if (!has_one) return differ(event.position, call.front(), to_text(event), "nothing");
        return differ(event.position, call.front(), to_text(event) + where_not(event, *at),
                      to_text(*at) + where_not(*at, event));
      }
      if (event.kind() == EventKind::kThrew || event.kind() == EventKind::kBroken) {
        result_.last_error = to_text(event);
      }
      ++result_.num_events;
      ++at;
    }
    // The process may have been killed within its last call.
    if (at == replayed.end() || is_last) return;
    differ(end_of(call), call.front(), "nothing", to_text(*at));
  }

  void differ(std::uint64_t position, const Event& call, std::string recorded,
              std::string replayed) {
    result_.difference =
        Difference{position, to_text(call), std::move(recorded), std::move(replayed)};
  }

  const Recording& recording_;
  const ReplayOptions options_;
  const bool checks_;
  Recorder recorder_;
  std::unique_ptr<ReplayedCalls> calls_;
  ReplayResult result_;
  std::function<void(const std::string& books)> tell_books_;  ///< In a child.
};

/// Whether the recorded process was stopped by a broken invariant.
bool ends_broken(const Recording& recording) {
  bool is_broken = false;
  for (const Event& event : recording) is_broken = event.kind() == EventKind::kBroken;
  return is_broken;
}

}  // namespace

ReplayResult replay(const Recording& recording, const ReplayOptions& options) {
  if (!recording.is_whole()) {
    throw RecordingError(
        "a recording cannot be replayed: its first " + std::to_string(recording.begin_position()) +
        " words were overwritten, and a replay needs the beginning; make the recorder larger, or "
        "record a shorter run");
  }
  Replay one(recording, options);
  const bool in_child = options.where == ReplayWhere::kInChild || ends_broken(recording);
  return in_child ? one.run_in_child() : one.run();
}

}  // namespace kvferry::connector
