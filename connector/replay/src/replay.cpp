// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/replay/replay.hpp"

#include "kvferry/connector/scheduler/recorded_options.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/recorder/recorder.hpp"

#include "replayed_calls.hpp"
#include "replayed_events.hpp"

#include <cerrno>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
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
        // As long an event as the recorder could keep is as long as this one can.
        recorder_(recording.head().ring_bytes, {}),
        calls_(options_from(recording.head().config), recorder_) {}

  ReplayResult run() {
    auto at = recording_.begin();
    while (at != recording_.end() && !result_.difference) {
      std::vector<Event> call{*at};
      for (++at; at != recording_.end() && !recorder::is_input((*at).kind()); ++at) {
        call.push_back(*at);
      }
      run_call(call, at == recording_.end());
    }
    result_.books = calls_.engine().books();
    return std::move(result_);
  }

 private:
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
    result_.last_error.reset();
    const std::uint64_t begin = recorder_.position();
    if (call.back().kind() == EventKind::kBroken) {
      break_in_child(call);
    } else {
      if (!calls_.run(call)) {
        if (is_last) return;
        throw RecordingError("a recording cannot be replayed: it lacks reports of the fold at " +
                             std::to_string(call.front().position));
      }
      if (checks_) {
        calls_.engine().check_invariants(is_check_due() ? CheckDepth::kAll : CheckDepth::kCounts);
      }
    }
    compare(call, Recording::from_bytes(recorder_.bytes(), begin), is_last);
  }

  /// A broken invariant stops the process that finds it. What it recorded is in shared memory.
  void break_in_child(const std::vector<Event>& call) {
    const pid_t child = ::fork();
    if (child < 0) throw ResourceError("a replay cannot fork the process of its last call");
    if (child == 0) {
      const rlimit none{0, 0};
      ::setrlimit(RLIMIT_CORE, &none);
      static_cast<void>(calls_.run(call));
      ::_exit(0);
    }
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) continue;
  }

  /// In long events it takes long to see what is different.
  static std::string where_not(const Event& event, const Event& other) {
    for (std::size_t i = 0; i < event.words.size(); ++i) {
      if (i < other.words.size() && event.words[i] == other.words[i]) continue;
      return "; word " + std::to_string(i + 1) + " is " + std::to_string(event.words[i]);
    }
    return "";
  }

  [[nodiscard]] bool is_check_due() const {
    return result_.num_calls % options_.check_tier_every == 0;
  }

  void compare(const std::vector<Event>& call, const Recording& replayed, bool is_last) {
    auto at = replayed.begin();
    for (const Event& event : call) {
      const bool has_one = at != replayed.end();
      if (!has_one || !is_same(event, *at, calls_.has_id_of(call.front()))) {
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
    const Event& last = call.back();
    differ(last.position + last.head.num_words(), call.front(), "nothing", to_text(*at));
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
  ReplayedCalls calls_;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const Recording& recording, const ReplayOptions& options) {
  if (!recording.is_whole()) {
    throw RecordingError(
        "a recording cannot be replayed: its first " + std::to_string(recording.begin_position()) +
        " words were overwritten, and a replay needs the beginning; make the recorder larger, or "
        "record a shorter run");
  }
  return Replay(recording, options).run();
}

}  // namespace kvferry::connector
