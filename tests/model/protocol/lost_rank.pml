/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lost rank: its transfers are in doubt, and so is their memory.
 *
 * Covers: a store and a load on two ranks, one of which may stop reporting at any time, for ever or for a while, its
 *   device touching memory or not, or forget one of them and report on; steps, in each of which a rank that reports says
 *   what it has under way, and rests of the engine, in which nothing is said; the time-out of a rank's silence about
 *   either, which fails the engine by the names of who is silent; the quarantine of stores that those have not ended (a
 *   load's slot stays leased, its request is not told); a late report, which is the proof that ends it; another tenant of
 *   the tier that takes whatever is free.
 * Abstracts: plans (store.pml, load.pml); how long copies take: as many steps as they like. A step in which silence
 *   neither grows nor ends is left out, so that the model has no cycle.
 * Mirrors: SchedulerEngine::finish_plan (expect_ranks), RankPatience, StoreBook (add_overdue, quarantine, settle_end),
 *   LoadBook::add_overdue, RankRoll::for_each_silent, SlotLedger::quarantine.
 */
#include "properties.pml"

#define NUM_RANKS 2
#define STORE 0
#define LOAD 1
#define BOUND 2      /* steps in which a rank may be silent about what it owes */

bool memory_in_doubt_is_not_reused = true;
bool memory_in_doubt_is_shown = true;
bool readable_means_stored_on_every_rank = true;
bool nothing_is_computed_on_bad_data = true;
bool who_is_named_is_missing = true;
bool a_rank_that_speaks_is_not_named = true;
bool a_lost_rank_fails_the_engine = true;
bool proof_ends_the_quarantine = true;
bool without_loss_everything_ends = true;
bool conservation = true;

/* The slot of the store is 0, that of the load 1: transfer and slot have one number. */
#define FREE 0
#define WRITABLE 1
#define READABLE 2
#define LEASED 3
#define QUARANTINED 4
#define TENANT 5
byte slot_state[2];
byte count[6];

#define AT(r, t) ((r) * 2 + (t))
bool said_ended[NUM_RANKS * 2];
bool over[2];
bool told;
byte silence[NUM_RANKS * 2];  /* RankPatience: steps since the rank spoke of the transfer */
bool engine_failed;
bool has_rested;
byte named;          /* a bit per rank */
bool accuses_a_slow_one; /* ghost: the time-out hit a rank that had come back in the meantime */

#define RUNNING 0
#define ENDED 1
#define REPORTED 2
byte copy[NUM_RANKS * 2];
bool lost[NUM_RANKS];
bool was_lost[NUM_RANKS];          /* ghost */
bool forgot[NUM_RANKS * 2];

#define MOVE(s, to) count[slot_state[s]]--; count[to]++; slot_state[s] = to
#define HAS(mask, r) (((mask) >> (r)) & 1)
#define ALL_ENDED(t) (said_ended[AT(0, t)] && said_ended[AT(1, t)])
#define IS_KNOWN(r, t) (said_ended[AT(r, t)] || HAS(named, r))
#define IS_OUT(t) (!over[t] && !ALL_ENDED(t))
#define OWES(r, t) (!over[t] && !said_ended[AT(r, t)])
#ifdef MUTANT_ANY_WORD_VOUCHES
#define VOUCHES(r, t) (!lost[r])
#else
#define VOUCHES(r, t) (!lost[r] && !forgot[AT(r, t)])
#endif
#ifdef MUTANT_JUDGE_BY_OLD_SILENCE
#define IS_SILENT(r, t) (silence[AT(r, t)] >= BOUND)
#else
#define IS_SILENT(r, t) (OWES(r, t) && silence[AT(r, t)] >= BOUND)
#endif
#define HAS_FORGOTTEN(r) (forgot[AT(r, STORE)] || forgot[AT(r, LOAD)])
/* Whether a step says anything new of it. */
#define TELLS(r, t) (OWES(r, t) && \
  ((VOUCHES(r, t) && silence[AT(r, t)] > 0) || (!VOUCHES(r, t) && silence[AT(r, t)] < BOUND)))

/* A step's output: what ranks have under way they say. */
inline hear(r, t) {
  if
  :: OWES(r, t) && VOUCHES(r, t) ->
#ifdef MUTANT_COUNT_AGE
     if
     :: silence[AT(r, t)] < BOUND -> silence[AT(r, t)]++
     :: else
     fi
#else
     silence[AT(r, t)] = 0
#endif
  :: OWES(r, t) && !VOUCHES(r, t) && silence[AT(r, t)] < BOUND -> silence[AT(r, t)]++
  :: else
  fi
}

inline check_conservation() {
  REQUIRE(conservation, count[FREE] + count[WRITABLE] + count[READABLE] + count[LEASED] + count[QUARANTINED]
                        + count[TENANT] == 2)
}

/* All ranks have ended it. */
inline settle(t) {
  over[t] = true;
  if
  :: slot_state[t] == QUARANTINED ->
     EVENT("proof of quiescence: out of quarantine\n");
#ifndef MUTANT_PROOF_IGNORED
     MOVE(t, FREE)
#endif
  :: slot_state[t] == WRITABLE ->
     MOVE(t, READABLE);
     REQUIRE(readable_means_stored_on_every_rank, copy[AT(0, t)] == REPORTED && copy[AT(1, t)] == REPORTED)
#ifdef MUTANT_KEEP_A_LATE_LEASE
  :: slot_state[t] == LEASED && engine_failed
#endif
  :: slot_state[t] == LEASED ->
     MOVE(t, READABLE);
     REQUIRE(nothing_is_computed_on_bad_data, copy[AT(0, t)] == REPORTED && copy[AT(1, t)] == REPORTED);
     told = true
  :: else
  fi;
  check_conservation()
}

#define NAME_SILENT named = (IS_SILENT(0, STORE) || IS_SILENT(0, LOAD)) | \
  ((IS_SILENT(1, STORE) || IS_SILENT(1, LOAD)) << 1)
/* A rank that is named has not ended it. */
#define IS_IN_DOUBT(t) (IS_OUT(t) && ((HAS(named, 0) && !said_ended[AT(0, t)]) || (HAS(named, 1) && !said_ended[AT(1, t)])))

inline quarantine() {
#ifdef MUTANT_FREE_ON_TIMEOUT
  MOVE(STORE, FREE);
  over[STORE] = true
#elif defined(MUTANT_COMMIT_ON_TIMEOUT)
  settle(STORE)
#elif defined(MUTANT_NO_QUARANTINE)
  skip
#else
#ifndef MUTANT_NOT_COUNTED
  count[slot_state[STORE]]--; count[QUARANTINED]++;
#endif
  slot_state[STORE] = QUARANTINED
#endif
}

inline take_report(r, t) {
  atomic { copy[AT(r, t)] == ENDED && !lost[r] && !forgot[AT(r, t)] ->
    copy[AT(r, t)] = REPORTED;
    said_ended[AT(r, t)] = true;
    if
    :: !over[t] && ALL_ENDED(t) -> settle(t)
#ifdef MUTANT_PROOF_OF_ONE_RANK
    :: !over[t] && slot_state[t] == QUARANTINED -> MOVE(t, FREE)
#endif
    :: else
    fi
  }
}

proctype scheduler() {
end:
  do
  :: take_report(0, STORE)
  :: take_report(0, LOAD)
  :: take_report(1, STORE)
  :: take_report(1, LOAD)
  :: atomic { TELLS(0, STORE) || TELLS(0, LOAD) || TELLS(1, STORE) || TELLS(1, LOAD) ->
       EVENT("a step's output\n");
       hear(0, STORE); hear(0, LOAD); hear(1, STORE); hear(1, LOAD)
     }
  :: atomic { !has_rested && !engine_failed && (IS_OUT(STORE) || IS_OUT(LOAD)) ->
       EVENT("the engine rests, longer than any time-out\n");
       has_rested = true
#ifdef MUTANT_COUNT_A_REST
       ; silence[0] = BOUND; silence[1] = BOUND; silence[2] = BOUND; silence[3] = BOUND
#endif
     }
#ifndef MUTANT_NO_TIMEOUT
  :: atomic { !engine_failed && (IS_SILENT(0, STORE) || IS_SILENT(0, LOAD) || IS_SILENT(1, STORE) || IS_SILENT(1, LOAD)) ->
       EVENT("the engine fails by the names of the silent ranks\n");
       engine_failed = true;
       NAME_SILENT;
#ifdef MUTANT_BLAME_EVERYBODY
       named = 3;
#endif
       REQUIRE(who_is_named_is_missing,
               (!HAS(named, 0) || copy[AT(0, STORE)] != REPORTED || copy[AT(0, LOAD)] != REPORTED) &&
               (!HAS(named, 1) || copy[AT(1, STORE)] != REPORTED || copy[AT(1, LOAD)] != REPORTED));
       REQUIRE(a_rank_that_speaks_is_not_named,
               (!HAS(named, 0) || was_lost[0] || HAS_FORGOTTEN(0)) &&
               (!HAS(named, 1) || was_lost[1] || HAS_FORGOTTEN(1)));
       accuses_a_slow_one = (HAS(named, 0) && !lost[0] && !HAS_FORGOTTEN(0)) ||
                            (HAS(named, 1) && !lost[1] && !HAS_FORGOTTEN(1));
       if
       :: IS_IN_DOUBT(STORE) -> EVENT("into quarantine\n"); quarantine()
       :: else
       fi;
#ifdef MUTANT_TELL_ON_TIMEOUT
       if
       :: IS_OUT(LOAD) -> settle(LOAD)
       :: else
       fi;
#endif
       check_conservation()
     }
#endif
  /* Another instance of the tier, or a later store. */
  :: atomic { slot_state[STORE] == FREE -> EVENT("the store's slot is taken again\n"); MOVE(STORE, TENANT) }
  :: atomic { slot_state[LOAD] == FREE -> EVENT("the load's slot is taken again\n"); MOVE(LOAD, TENANT) }
  :: atomic { slot_state[STORE] == READABLE -> EVENT("evicted\n"); MOVE(STORE, FREE) }
  :: atomic { slot_state[LOAD] == READABLE -> MOVE(LOAD, FREE) }
  :: atomic { timeout ->
       REQUIRE(proof_ends_the_quarantine, slot_state[STORE] != QUARANTINED || !ALL_ENDED(STORE));
       REQUIRE(without_loss_everything_ends,
               lost[0] || lost[1] || HAS_FORGOTTEN(0) || HAS_FORGOTTEN(1) ||
               (count[WRITABLE] + count[LEASED] + count[QUARANTINED] == 0 && over[STORE] && over[LOAD]));
       REQUIRE(a_lost_rank_fails_the_engine,
               (!(IS_OUT(STORE) || IS_OUT(LOAD)) || engine_failed) &&
               (!IS_OUT(STORE) || accuses_a_slow_one || (IS_KNOWN(0, STORE) && IS_KNOWN(1, STORE))) &&
               (!IS_OUT(LOAD) || accuses_a_slow_one || (IS_KNOWN(0, LOAD) && IS_KNOWN(1, LOAD))));
       REQUIRE(memory_in_doubt_is_shown,
               (!IS_IN_DOUBT(STORE) || slot_state[STORE] == QUARANTINED) &&
               (!IS_OUT(LOAD) || (slot_state[LOAD] == LEASED && !told)));
       break
     }
  od
}

/* The device goes on or hangs, whatever becomes of the rank's process. */
inline run_copy(r, t) {
  atomic { copy[AT(r, t)] == RUNNING && !hangs ->
    REQUIRE(memory_in_doubt_is_not_reused,
            slot_state[t] == WRITABLE || slot_state[t] == LEASED || slot_state[t] == QUARANTINED);
    copy[AT(r, t)] = ENDED
  }
}

proctype device(byte r) {
  bool hangs;
end:
  do
  :: run_copy(r, STORE)
  :: run_copy(r, LOAD)
  :: atomic { lost[r] && !hangs && (copy[AT(r, STORE)] == RUNNING || copy[AT(r, LOAD)] == RUNNING) ->
       EVENT("its device hangs\n"); hangs = true }
  :: atomic { hangs && !lost[r] -> hangs = false }
  od
}

/* One rank is lost, and comes back or not; or it forgets a transfer and does not know. */
proctype fate() {
  byte r;
  atomic {
    if
    :: r = 0
    :: r = 1
    :: goto done
    fi
  };
  if
  :: atomic { copy[AT(r, STORE)] != REPORTED -> EVENT("a store is forgotten\n"); forgot[AT(r, STORE)] = true; goto done }
  :: atomic { copy[AT(r, LOAD)] != REPORTED -> EVENT("a load is forgotten\n"); forgot[AT(r, LOAD)] = true; goto done }
  :: atomic { EVENT("a rank is lost\n"); lost[r] = true; was_lost[r] = true }
  fi;
  if
  :: EVENT("for ever\n")
  :: atomic { engine_failed -> EVENT("it comes back, late\n"); lost[r] = false }
  :: atomic { EVENT("it comes back\n"); lost[r] = false }
  fi;
done:
  skip
}

init {
  atomic {
    slot_state[STORE] = WRITABLE;
    slot_state[LOAD] = LEASED;
    count[WRITABLE] = 1;
    count[LEASED] = 1;
    run scheduler();
    run device(0);
    run device(1);
    run fate()
  }
}

/* The last word on every transfer: it ended on every rank, or the engine failed. */
ltl loss_fails_the_engine { <>[] ((over[STORE] && over[LOAD]) || engine_failed) }
