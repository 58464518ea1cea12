/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads: from the lease to the one report that the engine waits for.
 *
 * Covers: two requests that load the same slot on two ranks with asynchronous scheduling, finish before and after the
 *   load's plan and while its failure is announced, double finish, preemption and a second load, failed copies,
 *   reset_cache (dooms loads, those that ended well before the ranks heard of it too), a load whose own time is over
 *   (ranks that have not begun it drop it, others go on), an allocation without a valid lease, both of the engine's policies for failed loads, eviction and reuse of the slot.
 * Abstracts: lookups (a request either allocates against a readable slot or, with an answer that does not hold any more,
 *   without), several slots per load, the engine's counting of ranks and the reuse of ids (reuse.pml), stores (what is
 *   free is written by somebody else).
 *   When a load's time is over is left open: at any moment behind its plan; one of the two loads, and with one step out
 *   (WITH_EXPIRY).
 * Mirrors: LoadBook (expire: plan_expiries), RequestTable (finish, meaning_of_end, end_load), WorkerEngine (bind, collect), and of vLLM's scheduler
 *   _handle_failed_recving and _update_from_kv_xfer_finished.
 */
#include "properties.pml"

#define NUM_RANKS 2
#define NUM_REQUESTS 2
#define NUM_LOADS 2
#ifndef STEPS_OUT
#define STEPS_OUT 2    /* 1: synchronous scheduling */
#endif

bool only_who_waits_is_told = true;
bool a_load_is_told_once = true;
bool nothing_is_computed_on_bad_data = true;
bool a_leased_slot_stays = true;
bool blocks_stay_until_told = true;
bool failed_data_is_not_offered_again = true;
bool conservation = true;
bool every_load_is_told = true;
bool every_lease_ends = true;
bool what_expired_stays = true;

/* ---- the ranks, and what passes between them and the scheduler side ---- */
#define AT(r, t) ((r) * NUM_LOADS + (t))
#define QUEUED 1
#define ENDED 2
byte copy[NUM_RANKS * NUM_LOADS];
#define DONE 1
#define BROKEN 2
#define DROPPED 3
byte outcome[NUM_RANKS * NUM_LOADS];
bool told_cancel[NUM_RANKS * NUM_LOADS];
bool has_failed;                    /* one copy of all fails */

/* loads, notices: a bit per load; cancels: another one for each that expires */
#define EXPIRY(t) (4 << (t))
chan plan0 = [STEPS_OUT] of { byte, byte, byte };
chan plan1 = [STEPS_OUT] of { byte, byte, byte };
/* ends: two bits per load; announcements: a bit per load */
chan report0 = [STEPS_OUT] of { byte, byte };
chan report1 = [STEPS_OUT] of { byte, byte };
byte steps_out;

/*
 * A step that would neither say nor hear anything changes nothing. Without such steps the model has no cycle, and what
 * must happen at last is what has happened where it stops.
 */
#define BOOK_SAYS(t) (state[t] == BEGUN || state[t] == FAILED)
#define RANK_SAYS(r, t) (copy[AT(r, t)] == ENDED)
#define IS_WORTH_A_STEP (cancels != 0 || BOOK_SAYS(0) || BOOK_SAYS(1) || \
  RANK_SAYS(0, 0) || RANK_SAYS(0, 1) || RANK_SAYS(1, 0) || RANK_SAYS(1, 1))

#include "load_book.pml"

active proctype scheduler() {
  byte t, q, loads, notices, cancels, ends, announcements;
  bool all_done;
end:
  do
  :: atomic { steps_out < STEPS_OUT && IS_WORTH_A_STEP ->
       make_plan();
       evict_and_reserve();
       plan0!loads, notices, cancels;
       plan1!loads, notices, cancels;
       steps_out++;
       t = 0; q = 0; loads = 0; notices = 0; cancels = 0;
       check_conservation()
     }
  :: atomic { nempty(report0) && nempty(report1) ->
       report0?ends, announcements; mark(0, ends, announcements);
       report1?ends, announcements; mark(1, ends, announcements);
       fold();
       steps_out--;
       t = 0; q = 0; ends = 0; announcements = 0; all_done = false;
       check_conservation()
     }
  :: atomic { num_loads < NUM_LOADS ->
       if
       :: request[0] == WAITING -> begin_load(0)
       :: request[1] == WAITING && num_loads > 0 -> begin_load(1)
       :: request[0] == RUNNING -> EVENT("preempted\n"); request[0] = WAITING; begin_load(0)
       fi;
       t = 0;
       check_conservation()
     }
  :: atomic { request[0] == LOADING -> finish(0); t = 0; q = 0; check_conservation() }
  :: atomic { request[1] == LOADING -> finish(1); t = 0; q = 0; check_conservation() }
#ifdef WITH_EXPIRY
  :: atomic { !is_expired && state[0] == SENT && !doomed[0] -> expire(0); check_conservation() }
#endif
  :: atomic { !was_reset -> was_reset = true; reset_cache(); t = 0; check_conservation() }
  :: atomic { timeout ->
       REQUIRE(every_load_is_told, !IS_PENDING(0) && !IS_PENDING(1));
       REQUIRE(every_lease_ends, num_leases == 0);
       break
     }
  od
}

/* One rank with its device. */
proctype rank(byte r; chan plan; chan report) {
  byte t, loads, notices, cancels, ends;
end:
  do
  :: atomic { plan?loads, notices, cancels ->
       t = 0;
       do
       :: t < NUM_LOADS ->
          if
          :: HAS(loads, t) -> copy[AT(r, t)] = QUEUED
          :: HAS(cancels, t) && copy[AT(r, t)] == QUEUED -> told_cancel[AT(r, t)] = true
#ifdef WITH_EXPIRY
          :: (cancels & EXPIRY(t)) && copy[AT(r, t)] == QUEUED && !HAS(cancels, t) ->
             if
             :: EVENT("has begun, goes on\n")
             :: EVENT("has not begun, is dropped\n");
#ifdef MUTANT_SILENT_DROP
                copy[AT(r, t)] = 0
#else
                told_cancel[AT(r, t)] = true
#endif
             fi
#ifdef MUTANT_END_AT_EXPIRY
             ; SET_FIELD(ends, t, DROPPED)
#endif
#endif
          :: else
          fi;
          if
          :: copy[AT(r, t)] == ENDED ->
             SET_FIELD(ends, t, outcome[AT(r, t)]);
             copy[AT(r, t)] = 0;
             outcome[AT(r, t)] = 0;
             told_cancel[AT(r, t)] = false
          :: else
          fi;
          t++
       :: else -> break
       od;
       report!ends, notices;
       t = 0; loads = 0; notices = 0; cancels = 0; ends = 0
     }
  :: atomic { (copy[AT(r, 0)] == QUEUED || copy[AT(r, 1)] == QUEUED) ->
       /* One action for submit, run and end: what is taken away while a copy runs is found at its end. */
       if
       :: copy[AT(r, 0)] == QUEUED -> t = 0
       :: copy[AT(r, 1)] == QUEUED -> t = 1
       fi;
       copy[AT(r, t)] = ENDED;
       if
       :: told_cancel[AT(r, t)] -> EVENT("dropped\n"); outcome[AT(r, t)] = DROPPED
       :: outcome[AT(r, t)] = DONE
       :: !has_failed -> EVENT("copy failed\n"); has_failed = true; outcome[AT(r, t)] = BROKEN
       fi;
       if
       :: outcome[AT(r, t)] != DROPPED ->
          REQUIRE(a_leased_slot_stays, slot_state == LEASED || slot_state == DYING);
          REQUIRE(blocks_stay_until_told, !told[t] && request[owner[t]] != GONE);
          loaded[AT(r, t)] = outcome[AT(r, t)] == DONE
       :: else
       fi;
       t = 0
     }
  od
}

init {
  atomic {
    run rank(0, plan0, report0);
    run rank(1, plan1, report1)
  }
}

/* Loads are bounded in number: that none is pending at last means that each is told. */
ltl loads_are_told { <>[] (!IS_PENDING(0) && !IS_PENDING(1) && num_leases == 0) }
