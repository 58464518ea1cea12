// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

namespace kvferry::connector {

/// What happened, so that a run in which something never happens is noticed: it proves nothing
/// about it.
struct ToyTotals {
  std::uint64_t steps = 0;
  // Blocks.
  std::uint64_t stored = 0;
  std::uint64_t early_blocks = 0;  ///< Gathered at the bind, out of the backlog.
  std::uint64_t loaded_blocks = 0;
  std::uint64_t evicted = 0;
  std::uint64_t skipped_ring = 0;
  std::uint64_t skipped_exhausted = 0;
  std::uint64_t skipped_declined = 0;
  std::uint64_t skipped_reallocated = 0;
  std::uint64_t skipped_unwanted = 0;
  std::uint64_t failed_stores = 0;
  // Loads.
  std::uint64_t failed_loads = 0;   ///< Told to a request that waited.
  std::uint64_t damaged_loads = 0;  ///< Ends on one rank.
  std::uint64_t undone_loads = 0;   ///< Of these: ended well on every rank, and then came a reset.
  std::uint64_t refused_loads = 0;  ///< Reset between lookup and allocation.
  std::uint64_t aborted_loads = 0;
  std::uint64_t unsent_aborts = 0;   ///< Of these: before their plan.
  std::uint64_t expiries = 0;        ///< Loads whose time was over.
  std::uint64_t expired_loads = 0;   ///< Of these: that some rank had not begun.
  std::uint64_t whole_loads = 0;     ///< Of a request's last token, too.
  std::uint64_t orphaned_loads = 0;  ///< Whose id was reused.
  std::uint64_t stale_notices = 0;   ///< Of these: while the failure was on its way.
  std::uint64_t together_loads = 0;  ///< Steps in which two loads of one id were under way.
  std::uint64_t rule_switches = 0;   ///< Of an adaptive tier.
  // Requests.
  std::uint64_t awaiting_arrivals = 0;  ///< Blocks were awaited then.
  std::uint64_t limited_loads = 0;      ///< Lookups of a request that wants to load less than all.
  std::uint64_t followed_hints = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t resets = 0;
  std::uint64_t late_resets = 0;     ///< Between a step's execution and its output.
  std::uint64_t running_resets = 0;  ///< Of the engine's cache, with the running requests' blocks.
  std::uint64_t dropped_samples =
      0;                    ///< Of steps before such a reset, or of a turn that had ended.
  std::uint64_t turns = 0;  ///< Of sessions, behind the first.
  std::uint64_t hashes_taken_back = 0;
  std::uint64_t long_take_backs = 0;  ///< Of more than the one that the last token completed.
  std::uint64_t double_finishes = 0;
  std::uint64_t finished_in_step = 0;  ///< Between its scheduling and the plan.
  // Ranks.
  std::uint64_t silent_steps = 0;
  std::uint64_t rests = 0;
  std::uint64_t stops = 0;  ///< With a step out.
  std::uint64_t lost_ranks = 0;
  std::uint64_t quarantined = 0;  ///< Slots.
  // Windows.
  std::uint64_t window_loads = 0;
  std::uint64_t null_blocks = 0;  ///< Positions of loads that nothing is loaded for.
  std::uint64_t slid_blocks = 0;
  std::uint64_t load_waits = 0;
  // Slots of two sizes.
  std::uint64_t two_class_loads = 0;  ///< That take slots of both.
  std::uint64_t moved_chunks = 0;     ///< From one to the other.
  // A tier that is resized: chunks.
  std::uint64_t retired_chunks = 0;
  std::uint64_t restored_chunks = 0;
  // Ranks that keep one copy: blocks, aborted ones too.
  std::uint64_t stored_by_first = 0;
  std::uint64_t stored_by_second = 0;

  /// Calls `visit(name, member pointer)` for each.
  template <class Visit>
  static void for_each(Visit visit) {
    using T = ToyTotals;
    visit("steps", &T::steps);
    visit("stored", &T::stored);
    visit("early_blocks", &T::early_blocks);
    visit("loaded_blocks", &T::loaded_blocks);
    visit("evicted", &T::evicted);
    visit("skipped_unwanted", &T::skipped_unwanted);
    visit("limited_loads", &T::limited_loads);
    visit("followed_hints", &T::followed_hints);
    visit("skipped_ring", &T::skipped_ring);
    visit("skipped_exhausted", &T::skipped_exhausted);
    visit("skipped_declined", &T::skipped_declined);
    visit("skipped_reallocated", &T::skipped_reallocated);
    visit("failed_stores", &T::failed_stores);
    visit("failed_loads", &T::failed_loads);
    visit("whole_loads", &T::whole_loads);
    visit("damaged_loads", &T::damaged_loads);
    visit("undone_loads", &T::undone_loads);
    visit("refused_loads", &T::refused_loads);
    visit("aborted_loads", &T::aborted_loads);
    visit("unsent_aborts", &T::unsent_aborts);
    visit("expiries", &T::expiries);
    visit("expired_loads", &T::expired_loads);
    visit("orphaned_loads", &T::orphaned_loads);
    visit("stale_notices", &T::stale_notices);
    visit("together_loads", &T::together_loads);
    visit("rule_switches", &T::rule_switches);
    visit("awaiting_arrivals", &T::awaiting_arrivals);
    visit("preemptions", &T::preemptions);
    visit("resets", &T::resets);
    visit("late_resets", &T::late_resets);
    visit("running_resets", &T::running_resets);
    visit("dropped_samples", &T::dropped_samples);
    visit("turns", &T::turns);
    visit("hashes_taken_back", &T::hashes_taken_back);
    visit("long_take_backs", &T::long_take_backs);
    visit("double_finishes", &T::double_finishes);
    visit("finished_in_step", &T::finished_in_step);
    visit("silent_steps", &T::silent_steps);
    visit("rests", &T::rests);
    visit("stops", &T::stops);
    visit("lost_ranks", &T::lost_ranks);
    visit("quarantined", &T::quarantined);
    visit("window_loads", &T::window_loads);
    visit("null_blocks", &T::null_blocks);
    visit("slid_blocks", &T::slid_blocks);
    visit("load_waits", &T::load_waits);
    visit("two_class_loads", &T::two_class_loads);
    visit("moved_chunks", &T::moved_chunks);
    visit("retired_chunks", &T::retired_chunks);
    visit("restored_chunks", &T::restored_chunks);
    visit("stored_by_first", &T::stored_by_first);
    visit("stored_by_second", &T::stored_by_second);
  }
  /// Whether enough seeds make it happen on any machine. Whether a load has begun when its time is
  /// over is up to the threads: SchedulerExpiryTest and tests/python/test_time_outs.py show both.
  [[nodiscard]] static bool is_certain(std::uint64_t ToyTotals::*member) {
    return member != &ToyTotals::expired_loads;
  }
  [[nodiscard]] bool all_happened() const {
    bool all = true;
    for_each([&](const char*, auto member) {
      all = all && (!is_certain(member) || this->*member != 0);
    });
    return all;
  }
  void add(const ToyTotals& other) {
    for_each([&](const char*, auto member) { this->*member += other.*member; });
  }
};

}  // namespace kvferry::connector
