/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names: two incarnations of one request id, and who counts the ranks' words by which name.
 *
 * Covers: an aborted load whose id comes again and loads while the old load still runs on some rank (vllm#51637); the
 *   engine's aggregator, which counts the id in the ranks' passes up to the world size; failures, which the ranks announce
 *   under the id when the scheduler side sends them a notice, and which the engine reads before the scheduler side is
 *   asked; an allocation that no valid answer covers while the id's old failure is being announced.
 * Abstracts: slots and leases (load.pml), plans (an order reaches each rank some time, not all in one step), one load per
 *   incarnation. A request that is preempted and loads again is a second incarnation here: the owner's generation is new.
 * Mirrors: RequestTable (arrive, meaning_of_end, end_load), LoadBook (plan_notices, settle_end, settle_announced),
 *   SchedulerEngine::lookup, SchedulerSide.on_worker_output, and of vLLM KVOutputAggregator and _handle_failed_recving.
 */
#include "properties.pml"

#define NUM_RANKS 2
#define NUM_LOADS 2   /* one of each incarnation */

bool only_who_waits_is_told = true;
bool told_when_every_rank_has_ended = true;
bool nothing_is_computed_on_bad_data = true;
bool a_failure_meets_its_owner = true;
bool every_load_is_told = true;

/* ---- the engine: its record of the id, and its aggregator ---- */
#define IDLE 0
#define LOADING 1
#define ZOMBIE 2     /* aborted while loading */
#define SETTLED 3    /* runs, computes or is gone */
byte request;
byte current;        /* the load of the incarnation that has the id now */
bool marked_failed;
#define WAITS (request == LOADING || request == ZOMBIE)
byte num_counted;
bool failed_pending;

/* ---- the scheduler side ---- */
#define AT(r, t) ((r) * NUM_LOADS + (t))
#define BEGUN 1      /* LoadState */
#define SENT 2
#define FAILED 3
#define ANNOUNCED 4
#define OVER 5
byte state[NUM_LOADS];
bool doomed[NUM_LOADS];
byte said_ended[NUM_RANKS * NUM_LOADS];
byte num_announced[NUM_LOADS];
bool was_reset;
bool was_held_back;  /* a second such plan changes nothing */
#ifdef MUTANT_MATCH_BY_ID
#define IS_STALE(t) (!WAITS)
#else
#define IS_STALE(t) ((t) != current)
#endif
#define IS_ANNOUNCING (state[0] == ANNOUNCED || state[1] == ANNOUNCED)

/* ---- the ranks ---- */
#define QUEUED 1
#define ENDED 2
byte copy[NUM_RANKS * NUM_LOADS];
#define DONE 1
#define BROKEN 2
byte outcome[NUM_RANKS * NUM_LOADS];
bool must_announce[NUM_RANKS * NUM_LOADS];

/* the id is in finished_recving; in failed_recving; ends, two bits per load; announcements, a bit per load */
chan pass0 = [2] of { bool, bool, byte, byte };
chan pass1 = [2] of { bool, bool, byte, byte };

/* What the engine does with the id in `finished_recving`. */
inline tell() {
  REQUIRE(only_who_waits_is_told, WAITS);
  REQUIRE(told_when_every_rank_has_ended,
          state[current] == OVER && copy[AT(0, current)] == 0 && copy[AT(1, current)] == 0);
  if
  :: request == ZOMBIE -> EVENT("an aborted load is told\n")
  :: request == LOADING && marked_failed -> EVENT("a failed load is told\n")
  :: request == LOADING && !marked_failed ->
     EVENT("a load is told\n");
     REQUIRE(nothing_is_computed_on_bad_data,
             outcome[AT(0, current)] == DONE && outcome[AT(1, current)] == DONE && !doomed[current])
  fi;
  marked_failed = false;
  request = SETTLED
}

inline send(t) {
  state[t] = SENT;
  copy[AT(0, t)] = QUEUED;
  copy[AT(1, t)] = QUEUED
}

inline announce(t) {
  state[t] = ANNOUNCED;
  must_announce[AT(0, t)] = true;
  must_announce[AT(1, t)] = true
}

/* LoadBook::plan */
#ifdef MUTANT_TWO_NOTICES
#define MAY_ANNOUNCE true
#else
#define MAY_ANNOUNCE (!IS_ANNOUNCING)
#endif
#define CAN_PLAN(t) (state[t] == BEGUN || (state[t] == FAILED && (IS_STALE(t) || MAY_ANNOUNCE || !was_held_back)))
inline make_plan() {
  t = 0;
  do
  :: t < NUM_LOADS ->
     if
     :: state[t] == BEGUN -> send(t)
     :: state[t] == FAILED && IS_STALE(t) -> EVENT("nobody waits for the failed load\n"); state[t] = OVER
     :: state[t] == FAILED && !IS_STALE(t) && MAY_ANNOUNCE -> announce(t)
     :: state[t] == FAILED && !IS_STALE(t) && !MAY_ANNOUNCE ->
        EVENT("a failure waits for the notice of an earlier one\n");
        was_held_back = true
#ifdef MUTANT_DROP_THE_LATER
        ; state[t] = OVER
#endif
     :: else
     fi;
     t++
  :: else -> break
  od;
  t = 0
}

inline settle_end(t) {
  state[t] = OVER;
  if
#ifdef MUTANT_COUNT_BY_ID
  :: true  /* what the engine has counted is all */
#else
  :: IS_STALE(t) -> EVENT("a stale load ends\n")
  :: !IS_STALE(t) && request == ZOMBIE -> is_told = true
  :: !IS_STALE(t) && request == LOADING ->
#ifdef MUTANT_TELL_FAILED
     is_told = true
#else
     if
     :: said_ended[AT(0, t)] == DONE && said_ended[AT(1, t)] == DONE && !doomed[t] -> is_told = true
     :: else -> state[t] = FAILED
     fi
#endif
#endif
  fi
}

inline settle_announced(t) {
  num_announced[t] = 0;
  state[t] = OVER;
  if
  :: IS_STALE(t) -> EVENT("a stale announcement is kept from the engine\n"); is_stale = true
  :: else -> is_told = true
  fi
}

inline take(r, pass) {
  pass?is_named, is_bad, ends, announcements;
  num_counted = num_counted + is_named;
  failed_pending = failed_pending || is_bad;
  t = 0;
  do
  :: t < NUM_LOADS ->
     if
     :: FIELD(ends, t) != 0 -> said_ended[AT(r, t)] = FIELD(ends, t)
     :: else
     fi;
     num_announced[t] = num_announced[t] + HAS(announcements, t);
     t++
  :: else -> break
  od
}

inline fold() {
  /* KVOutputAggregator */
  is_named = num_counted >= NUM_RANKS;
  if
  :: is_named -> num_counted = num_counted - NUM_RANKS
  :: else
  fi;
  is_bad = failed_pending && is_named;
  failed_pending = failed_pending && !is_bad;
  /* The engine: failures first. */
  if
  :: is_bad && request == LOADING ->
     REQUIRE(a_failure_meets_its_owner, state[current] == FAILED || state[current] == ANNOUNCED);
     marked_failed = true
  :: else
  fi;
  /* LoadBook::settle_ends */
  t = 0;
  do
  :: t < NUM_LOADS ->
     if
     :: state[t] == SENT && said_ended[AT(0, t)] != 0 && said_ended[AT(1, t)] != 0 -> settle_end(t)
     :: state[t] == ANNOUNCED && num_announced[t] == NUM_RANKS -> settle_announced(t)
     :: else
     fi;
     t++
  :: else -> break
  od;
  /* on_worker_output, and the engine with what it leaves */
#ifdef MUTANT_COUNT_BY_ID
  is_told = is_named && WAITS;
#elif defined(MUTANT_PASS_STALE)
  is_told = is_told || is_named;
#else
  is_told = is_told || (is_named && !is_stale);
#endif
  if
  :: is_told -> tell()
  :: else
  fi;
  t = 0; ends = 0; announcements = 0; is_named = false; is_bad = false; is_told = false; is_stale = false
}

active proctype scheduler() {
  byte t, ends, announcements;
  bool is_named, is_bad, is_told, is_stale;
end:
  do
  :: atomic { request == IDLE ->
       if
       /* The lookup answers "nothing" while a failure of the id is announced: it would meet the new load. */
#ifdef MUTANT_LOAD_BESIDE_A_NOTICE
       :: state[current] = BEGUN
#else
       :: !IS_ANNOUNCING -> state[current] = BEGUN
#endif
       :: EVENT("allocated without a valid answer\n"); state[current] = FAILED
       fi;
       request = LOADING
     }
  :: atomic { request == LOADING ->
       request = ZOMBIE;
       marked_failed = false;
       if
       :: state[current] == BEGUN -> EVENT("aborted before its plan\n"); state[current] = FAILED
       :: else
       fi
     }
  :: atomic { request == ZOMBIE && current == 0 ->
       EVENT("the id comes again while its old load is under way\n");
       current = 1;
       request = IDLE
     }
  :: atomic { request == SETTLED && current == 0 -> current = 1; request = IDLE }
  :: atomic { (CAN_PLAN(0) || CAN_PLAN(1)) -> make_plan() }
#ifndef MUTANT_COUNT_BY_ID
  :: atomic { !was_reset ->
       was_reset = true;
       t = 0;
       do
       :: t < NUM_LOADS ->
          if
          :: state[t] == SENT -> EVENT("doomed\n"); doomed[t] = true
          :: state[t] == BEGUN -> state[t] = FAILED
          :: else
          fi;
          t++
       :: else -> break
       od;
       t = 0
     }
#endif
  :: atomic { nempty(pass0) && nempty(pass1) -> take(0, pass0); take(1, pass1); fold() }
  /* The other rank had nothing to say in this step. */
  :: atomic { nempty(pass0) -> take(0, pass0); fold() }
  :: atomic { nempty(pass1) -> take(1, pass1); fold() }
  :: atomic { timeout -> REQUIRE(every_load_is_told, !WAITS); break }
  od
}

inline collect(r, t) {
  if
  :: copy[AT(r, t)] == ENDED ->
     SET_FIELD(ends, t, outcome[AT(r, t)]);
     copy[AT(r, t)] = 0
#ifdef MUTANT_COUNT_BY_ID
     ; is_named = true
#endif
  :: else
  fi;
  if
  :: must_announce[AT(r, t)] ->
     must_announce[AT(r, t)] = false;
     announcements = announcements | (1 << t);
     is_named = true;
     is_bad = true
  :: else
  fi
}

inline run_copy(r, t) {
  atomic {
    copy[AT(r, t)] = ENDED;
    if
    :: outcome[AT(r, t)] = DONE
#ifndef MUTANT_COUNT_BY_ID
    :: EVENT("copy failed or dropped\n"); outcome[AT(r, t)] = BROKEN
#endif
    fi
  }
}

#define HAS_NEWS(r) \
  (copy[AT(r, 0)] == ENDED || copy[AT(r, 1)] == ENDED || must_announce[AT(r, 0)] || must_announce[AT(r, 1)])

proctype rank(byte r; chan pass) {
  byte ends, announcements;
  bool is_named, is_bad;
end:
  do
  :: copy[AT(r, 0)] == QUEUED -> run_copy(r, 0)
  :: copy[AT(r, 1)] == QUEUED -> run_copy(r, 1)
  :: atomic { HAS_NEWS(r) && nfull(pass) ->
       collect(r, 0);
       collect(r, 1);
       pass!is_named, is_bad, ends, announcements;
       is_named = false; is_bad = false; ends = 0; announcements = 0
     }
  od
}

init {
  atomic {
    run rank(0, pass0);
    run rank(1, pass1)
  }
}

/* Loads are bounded in number: that none is pending at last means that each is told. */
ltl loads_are_told { <>[] !WAITS }
