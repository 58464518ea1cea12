/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores: from the plan to readable slots, or back to free ones.
 *
 * Covers: two ranks with asynchronous scheduling (a plan is made while two steps are out, before their reports are
 *   folded), rings that take all, some or nothing of a store, a plan that is bound but never saved (early return),
 *   failed copies, reset_cache, a full tier (partial reservation, refusal, eviction), conservation.
 * Abstracts: requests (a store owns slots and no block, so that their ends do not matter: `held_blocks` stays 0), the
 *   bytes (a gather is right if it ran in the step that planned it; fence.pml and backlog.pml say why that is enough),
 *   leases (load.pml). Transfer ids are never reused, as in the code.
 * Mirrors: StoreBook, RankRoll, SchedulerEngine::finish_plan (plan_store), WorkerEngine (bind, save, collect), SlotLedger.
 */
#include "properties.pml"

#define NUM_RANKS 2
#define NUM_SLOTS 2
#define NUM_KEYS 3
#define NUM_STORES 2
#ifndef MAX_BLOCKS
#define MAX_BLOCKS 2   /* of a store */
#endif
#ifndef STEPS_OUT
#define STEPS_OUT 2    /* 1: synchronous scheduling */
#endif

bool slot_is_written_by_its_owner_only = true;
bool readable_means_stored_on_every_rank = true;
bool conservation = true;
bool state_is_as_expected = true;
bool no_block_is_held_for_a_store = true;
bool one_slot_per_key = true;
bool every_reservation_ends = true;

/* ---- what a rank knows ---- */
#define AT(r, t) ((r) * NUM_STORES + (t))
#define UNKNOWN 0
#define OPEN 1               /* bound, not sealed */
#define SEALED 2
byte rank_store[NUM_RANKS * NUM_STORES];
byte num_gathered[NUM_RANKS * NUM_STORES];
bool told_cancel[NUM_RANKS * NUM_STORES];
bool gathered_late[NUM_RANKS * NUM_STORES];  /* ghost */
#define IDLE 0
#define QUEUED 1
#define COPIED 2
#define BROKEN 3
#define DROPPED 4
byte copy[NUM_RANKS * NUM_STORES];
bool has_failed;             /* one copy of all fails */

/* new stores, cancelled stores: a bit each */
chan plan0 = [STEPS_OUT] of { byte, byte };
chan plan1 = [STEPS_OUT] of { byte, byte };
/* per store two bits: blocks gathered; how it ended */
chan report0 = [STEPS_OUT] of { byte, byte };
chan report1 = [STEPS_OUT] of { byte, byte };
byte steps_out;

#include "store_book.pml"

/*
 * A step that would neither say nor hear anything changes nothing. Without such steps the model has no cycle, and what
 * must happen at last is what has happened where it stops.
 */
#define SAYS(r, t) \
  (rank_store[AT(r, t)] == OPEN || copy[AT(r, t)] == COPIED || copy[AT(r, t)] == BROKEN || copy[AT(r, t)] == DROPPED)
#define ANY_SAYS (SAYS(0, 0) || SAYS(0, 1) || SAYS(1, 0) || SAYS(1, 1))
#define KNOWN_KEYS (count[WRITABLE] + count[READABLE])
#define CAN_STORE (num_stores < NUM_STORES && count[FREE] + count[READABLE] > 0 && KNOWN_KEYS < NUM_KEYS)
#define IS_WORTH_A_STEP (cancels != 0 || ANY_SAYS)

active proctype scheduler() {
  byte t, s, i, k, room, least, most, cancels, new_stores, g, e;
  bool absent, all_done, all_gathered, all_ended;
  atomic { count[FREE] = NUM_SLOTS };
end:
  do
  :: atomic { steps_out < STEPS_OUT && (CAN_STORE || IS_WORTH_A_STEP) ->
       /* The engine has everything that earlier requests left. */
       REQUIRE(no_block_is_held_for_a_store, held_blocks == 0);
       new_stores = 0;
       if
       :: num_stores < NUM_STORES -> plan_store(1)
       :: num_stores < NUM_STORES -> plan_store(MAX_BLOCKS)
       :: IS_WORTH_A_STEP
       fi;
       plan0!new_stores, cancels;
       plan1!new_stores, cancels;
       cancels = 0;
       steps_out++;
       t = 0; s = 0; i = 0; k = 0; room = 0; new_stores = 0; absent = false;
       check_tier()
     }
  :: atomic { nempty(report0) && nempty(report1) ->
       report0?g, e; mark(0, g, e);
       report1?g, e; mark(1, g, e);
       settle();
       steps_out--;
#ifdef MUTANT_CHECK_THEN_USE
       room_seen = count[FREE] + count[READABLE];
#endif
       t = 0; s = 0; i = 0; least = 0; most = 0; g = 0; e = 0;
       all_done = false; all_gathered = false; all_ended = false;
       check_tier()
     }
  :: atomic { !was_reset ->
       was_reset = true;
       reset_cache();
       t = 0; s = 0; i = 0;
       check_tier()
     }
  :: atomic { timeout -> REQUIRE(every_reservation_ends, count[WRITABLE] + count[ABORTED] == 0); break }
  od
}

/* ---- a rank: one step is bind, save (or an early return) and collect ---- */

inline seal(r, t) {
  SET_FIELD(g, t, num_gathered[AT(r, t)]);
  if
  :: num_gathered[AT(r, t)] == 0 -> rank_store[AT(r, t)] = UNKNOWN
  :: else -> rank_store[AT(r, t)] = SEALED
  fi
}

inline gather(r, t) {
  if
  :: num_gathered[AT(r, t)] = num_blocks[t]
  :: num_gathered[AT(r, t)] = num_blocks[t] - 1
  fi;
  if
  :: num_gathered[AT(r, t)] > 0 -> copy[AT(r, t)] = QUEUED
  :: else
  fi
}

proctype rank(byte r; chan plan; chan report) {
  byte t, new_stores, cancels, g, e;
end:
  do
  :: atomic { plan?new_stores, cancels ->
       t = 0;
       do
       :: t < NUM_STORES ->
          if
          :: HAS(new_stores, t) ->
             rank_store[AT(r, t)] = OPEN;
             if
             :: gather(r, t); seal(r, t)
             :: gather(r, t); EVENT("early return, ready blocks gathered\n"); SET_FIELD(g, t, NOTHING)
             :: EVENT("early return\n"); SET_FIELD(g, t, NOTHING)
             fi
          :: rank_store[AT(r, t)] == OPEN ->
             /* bound by the step before and never saved */
#ifdef MUTANT_GATHER_LATE
             if
             :: num_gathered[AT(r, t)] == 0 -> gathered_late[AT(r, t)] = true; gather(r, t)
             :: else
             fi;
#endif
#ifdef MUTANT_FORGET_UNSAVED
             if
             :: num_gathered[AT(r, t)] == 0 -> rank_store[AT(r, t)] = UNKNOWN; SET_FIELD(g, t, NOTHING)
             :: else -> seal(r, t)
             fi
#else
             seal(r, t)
#endif
          :: else -> SET_FIELD(g, t, NOTHING)
          fi;
          if
          :: HAS(cancels, t) && copy[AT(r, t)] != IDLE -> told_cancel[AT(r, t)] = true
          :: else
          fi;
          if
          :: rank_store[AT(r, t)] == SEALED && copy[AT(r, t)] == COPIED -> SET_FIELD(e, t, DONE)
          :: rank_store[AT(r, t)] == SEALED && copy[AT(r, t)] == BROKEN -> SET_FIELD(e, t, FAILED)
          :: rank_store[AT(r, t)] == SEALED && copy[AT(r, t)] == DROPPED -> SET_FIELD(e, t, CANCELLED)
          :: else
          fi;
          if
          :: FIELD(e, t) != 0 ->
             rank_store[AT(r, t)] = UNKNOWN;
             copy[AT(r, t)] = IDLE;
             num_gathered[AT(r, t)] = 0;
             told_cancel[AT(r, t)] = false
          :: else
          fi;
          t++
       :: else -> break
       od;
       report!g, e;
       t = 0; new_stores = 0; cancels = 0; g = 0; e = 0
     }
  od
}

/* ---- its transfer thread and device ---- */

/*
 * One action for submit, run and end: what is handed out while a copy runs is found at its end. A copy that runs already
 * is not dropped.
 */
inline serve(r, t) {
  atomic {
    if
    :: told_cancel[AT(r, t)] -> EVENT("dropped\n"); copy[AT(r, t)] = DROPPED
    :: copy[AT(r, t)] = COPIED
    :: !has_failed -> EVENT("copy failed\n"); copy[AT(r, t)] = BROKEN; has_failed = true
    fi;
    i = 0;
    do
    :: i < num_gathered[AT(r, t)] && copy[AT(r, t)] != DROPPED ->
       s = SLOT(t, i);
       REQUIRE(slot_is_written_by_its_owner_only,
               slot_owner[s] == t + 1 && (slot_state[s] == WRITABLE || slot_state[s] == ABORTED));
       if
       :: copy[AT(r, t)] == COPIED && !gathered_late[AT(r, t)] -> good[r] = good[r] | (1 << s)
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0; s = 0
  }
}

proctype device(byte r) {
  byte i, s;
end:
  do
  :: copy[AT(r, 0)] == QUEUED -> serve(r, 0)
  :: copy[AT(r, 1)] == QUEUED -> serve(r, 1)
  od
}

init {
  atomic {
    run rank(0, plan0, report0);
    run rank(1, plan1, report1);
    run device(0);
    run device(1)
  }
}

/* Stores are bounded in number: that no reservation is left at last means that each ends. */
ltl reservations_end { <>[] (count[WRITABLE] + count[ABORTED] == 0) }
