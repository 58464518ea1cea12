/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What blocks are known to hold: nothing is stored because the engine's pool has it under a key.
 *
 * Covers: two requests of one prompt of two blocks, and one that comes when one of them has ended or was preempted, in three blocks of the
 *   engine, planned one step ahead of the output. The engine gives a block its key when it schedules the block, may
 *   preempt the request in the same pass (and zero the block), finds blocks by their keys, frees them and hands them out
 *   anew. Another connector loads blocks within the step that computes what follows; a load may fail, and its failure
 *   comes with the step's output. Both of the engine's policies for failed loads. Witnesses and ends of stores that come
 *   with their step's output, or with the next one.
 * Abstracts: ranks (an output holds what all of them say: a block is right if it is right on each), the ring, and the
 *   backlog's order (store.pml, backlog.pml), streams (fence.pml), our own loads (load.pml), blocks that are computed in
 *   part (they have no key), drafts, groups. A slot holds one key; the tier evicts the second key once.
 * Mirrors: connector/scheduler/src/{block_prover,block_cover}.cpp, store_offers.cpp (offer_proven), store_planner.cpp (take_backlog),
 *   SchedulerSide.on_worker_output, and of vLLM's scheduler _update_requests_with_invalid_blocks.
 */
#include "properties.pml"

#define NUM_REQUESTS 2
#define NUM_BLOCKS 3
#define NUM_KEYS 2
#define MAX_RUNS 3
#define MAX_LOADS 1
#ifndef MAX_LEAVING
#define MAX_LEAVING 1
#endif
#ifndef STEPS_OUT
#define STEPS_OUT 2    /* 1: synchronous scheduling */
#endif

bool nothing_wrong_is_kept = true;
bool what_came_is_kept = true;

/* What a step does to each block, what it gathers (blocks for keys 1 and 2 at the bind, then behind the forward), and a witness. */
#define IDLE 0
#define ZERO 1
#define LOAD(p) (2 + (p))
#define FIRST 4
#define BEHIND(b) (5 + (b))  /* the second block of a prompt, computed from that first one */
chan plans = [STEPS_OUT] of { byte, byte, byte, byte, byte };
/* blocks whose load failed, witnesses, keys whose stores ended, and which of those are right */
chan reports = [STEPS_OUT] of { byte, byte, byte, byte };
byte steps_out;
byte content[NUM_BLOCKS];    /* the key that a block's bytes are right for */
byte late_answer;
byte under_way;              /* copies: a bit per key */
bool was_late;
bool has_failed;

#ifdef MUTANT_ANSWER_FIRST
byte failed_before;          /* heard as a message of its own, behind the answers of the same output */
#endif
bool was_hit[NUM_REQUESTS];  /* ghost: a failure took something from it */
#include "proof_book.pml"

/* ---- the engine ---- */
#define WAITING 0
#define RUNNING 1
byte request[NUM_REQUESTS];
byte computed[NUM_REQUESTS];     /* blocks, of running ones */
byte found[NUM_REQUESTS];
byte num_runs;
byte num_loads;
byte num_leaving;                /* so many requests are preempted, or end */
bool was_evicted;
bool fails_requests;             /* kv_load_failure_policy */
bool was_preempted;              /* ghost: which voids its keys on every block, right ones too */
bool was_calm = true;            /* ghost: nothing was preempted, nothing ended, nothing failed */

#define IS_FREE(b) (table[0] != (b) + 1 && table[1] != (b) + 1 && table[2] != (b) + 1 && table[3] != (b) + 1)
#define NUM_FREE (IS_FREE(0) + IS_FREE(1) + IS_FREE(2))
#define IS_CACHED(k) (cached[0] == (k) || cached[1] == (k) || cached[2] == (k))
#define CAN_BEGIN(q) (request[q] == WAITING && num_runs < MAX_RUNS && !has_preempted && (NUM_FREE > 0 || IS_CACHED(1)))
#define CAN_GO_ON(q) (request[q] == RUNNING && computed[q] < NUM_POSITIONS && \
  (TABLE(q, computed[q]) != NO_BLOCK || NUM_FREE > 0))
#define CAN_PREEMPT(q) (request[q] == RUNNING && num_leaving > 0)
#define CAN_SCHEDULE(q) (CAN_BEGIN(q) || CAN_GO_ON(q))
#define IS_WORTH_A_STEP (late_answer != 0 || under_way != 0 || witness[0] == UNSENT || witness[1] == UNSENT || \
  entry[0] + entry[1] + entry[2] != 0)

inline allocate(q, p) {
  if
  :: IS_FREE(0) -> b = 0
  :: IS_FREE(1) -> b = 1
  :: IS_FREE(2) -> b = 2
  fi;
  TABLE(q, p) = b + 1;
  cached[b] = KEY(p)
}

inline find(q, p) {
  if
  :: cached[0] == KEY(p) -> TABLE(q, p) = 1
  :: cached[1] == KEY(p) -> TABLE(q, p) = 2
  :: cached[2] == KEY(p) -> TABLE(q, p) = 3
  fi
}

inline compute(q, p) {
  if
  :: p == 0 -> op[BLOCK(q, 0)] = FIRST
  :: else -> op[BLOCK(q, 1)] = BEHIND(BLOCK(q, 0))
  fi
}

inline begin(q) {
  num_runs++;
  found[q] = 0;
  if
  :: IS_CACHED(1) ->
     find(q, 0); found[q] = 1;
     if
     :: IS_CACHED(2) -> EVENT("finds all\n"); find(q, 1); found[q] = 2
     :: else
     fi
  :: else
  fi;
  if
  :: found[q] > 0
  :: found[q] < 2 && NUM_FREE >= 1 -> num_computed = 1
  :: found[q] == 0 && NUM_FREE >= 2 -> num_computed = 2
  :: found[q] < 2 && NUM_FREE >= 1 && num_loads < MAX_LOADS -> num_loaded = 1
  :: found[q] == 0 && NUM_FREE >= 2 && num_loads < MAX_LOADS -> num_loaded = 1; num_computed = 1
  :: found[q] == 0 && NUM_FREE >= 2 && num_loads < MAX_LOADS -> num_loaded = 2
  fi;
  if
  :: num_loaded > 0 -> EVENT("another connector loads\n"); num_loads++
  :: else
  fi;
  p = found[q];
  do
  :: p < found[q] + num_loaded -> allocate(q, p); op[b] = LOAD(p); p++
  :: p >= found[q] + num_loaded && p < found[q] + num_loaded + num_computed -> allocate(q, p); compute(q, p); p++
  :: else -> break
  od;
  p = 0; b = 0;
  request[q] = RUNNING;
  computed[q] = found[q] + num_loaded + num_computed;
  was_hit[q] = false;
  admit(q, found[q], num_loaded, num_computed);
  num_loaded = 0; num_computed = 0
}

inline leave(q) {
  request[q] = WAITING;
  TABLE(q, 0) = NO_BLOCK; TABLE(q, 1) = NO_BLOCK;
  computed[q] = 0; found[q] = 0;
  was_hit[q] = false;
  was_calm = false
}

inline schedule(q) {
  if
  :: CAN_BEGIN(q) -> begin(q)
  :: CAN_GO_ON(q) ->
     p = computed[q];
     if
     :: TABLE(q, p) == NO_BLOCK -> allocate(q, p)
     :: else -> EVENT("computes again\n")
     fi;
     compute(q, p);
     computed[q]++;
     p = 0; b = 0;
     go_on(q, computed[q] - 1, 1)
  fi
}

/* Blocks that it was given in this very pass keep the keys of what it was to compute. */
inline preempt(q) {
  num_leaving--;
  has_preempted = true;
  was_preempted = true;
  if
  :: CAN_GO_ON(q) && TABLE(q, computed[q]) == NO_BLOCK ->
     allocate(q, computed[q]);
     if
     :: EVENT("hashed and never computed\n")
     :: EVENT("hashed, zeroed and never computed\n"); op[b] = ZERO
     fi;
     b = 0
  :: EVENT("preempted\n")
  fi;
  on_preempted(q);
  leave(q)
}

inline finish(q) {
  on_finished(q);
  leave(q)
}

/* What the engine makes of a failure for one request: who comes first computes what others share with it. */
inline suffer(q) {
  p = 0;
  do
  :: p < computed[q] && !(HAS(invalid, BLOCK(q, p)) && !HAS(marked, BLOCK(q, p))) -> p++
  :: else -> break
  od;
  if
  :: p < computed[q] ->
     if
     :: fails_requests ->
        do
        :: p < NUM_POSITIONS ->
           if
           :: TABLE(q, p) != NO_BLOCK -> cached[BLOCK(q, p)] = NONE; marked = marked | (invalid & (1 << BLOCK(q, p)))
           :: else
           fi;
           p++
        :: else -> break
        od;
        finish(q)
     :: else ->
        computed[q] = p;
        do
        :: p < NUM_POSITIONS ->
           if
           :: TABLE(q, p) != NO_BLOCK -> marked = marked | (invalid & (1 << BLOCK(q, p)))
           :: else
           fi;
           p++
        :: else -> break
        od
     fi
  :: p >= computed[q] && computed[q] > 0 && HAS(invalid, BLOCK(q, 0)) ->
     /* All that failed is another one's to compute. With asynchronous scheduling it is not taken back. */
     if
     :: fails_requests -> finish(q)
     :: !fails_requests -> computed[q] = found[q]
#if STEPS_OUT > 1
     :: !fails_requests -> EVENT("goes on behind what failed\n")
#endif
     fi
  :: else
  fi;
  p = 0
}

inline end_action() {
  b = 0; k = 0; q = 0; p = 0; invalid = 0; answered = 0; ended = 0; good = 0; marked = 0; lost = 0
}

#define IS_KEPT(q, p) (to[q] <= (p) || was_kept[KEY(p)])
#define IS_TO_BE_KEPT(q) (request[q] == RUNNING && (was_calm || (!was_preempted && found[q] == 0 && !was_hit[q])))

active proctype scheduler() {
  byte b, k, q, p, num_loaded, num_computed, invalid, answered, ended, good, marked, lost, asked, ready, gathers;
  byte op[NUM_BLOCKS];
  bool has_preempted;
  atomic {
    if
    :: num_leaving = MAX_LEAVING
    :: true
    fi;
    if
    :: fails_requests = true
    :: true
    fi
  };
end:
  do
  :: atomic { steps_out < STEPS_OUT && (CAN_PREEMPT(0) || CAN_PREEMPT(1) || CAN_SCHEDULE(0) || CAN_SCHEDULE(1) || IS_WORTH_A_STEP) ->
       /* The connector hears of preempted requests first. */
       if
       :: CAN_PREEMPT(0) -> preempt(0)
       :: CAN_PREEMPT(1) -> preempt(1)
       :: CAN_SCHEDULE(0) || CAN_SCHEDULE(1) || IS_WORTH_A_STEP
       fi;
       if
       :: CAN_SCHEDULE(0) ->
          schedule(0);
          if
          :: CAN_SCHEDULE(1) -> schedule(1)
          :: true
          fi
       :: CAN_SCHEDULE(1) -> schedule(1)
       :: IS_WORTH_A_STEP || has_preempted
       fi;
       finish_plan();
       plans!op[0], op[1], op[2], gathers, asked;
       steps_out++;
       op[0] = IDLE; op[1] = IDLE; op[2] = IDLE; gathers = 0; asked = 0; has_preempted = false;
       end_action()
     }
#ifdef MUTANT_ANSWER_FIRST
  :: atomic { failed_before == 0 && nempty(reports) ->
       reports?invalid, answered, ended, good;
       fold();
       failed_before = invalid;
       if
       :: invalid == 0 -> steps_out--
       :: else
       fi;
       end_action()
     }
  :: atomic { failed_before != 0 ->
       invalid = failed_before;
       failed_before = 0;
       on_blocks_invalid();
#else
  :: atomic { reports?invalid, answered, ended, good ->
       on_blocks_invalid();
       fold();
#endif
       if
       :: invalid != 0 -> suffer(0); suffer(1); was_calm = false
       :: else
       fi;
       steps_out--;
       end_action()
     }
  :: atomic { num_leaving > 0 && request[0] == RUNNING -> num_leaving--; finish(0); end_action() }
  :: atomic { num_leaving > 0 && request[1] == RUNNING -> num_leaving--; finish(1); end_action() }
  :: atomic { !was_evicted && slot[2] == READABLE -> was_evicted = true; slot[2] = FREE }
  :: atomic { timeout ->
       REQUIRE(what_came_is_kept, !IS_TO_BE_KEPT(0) || (IS_KEPT(0, 0) && IS_KEPT(0, 1)));
       REQUIRE(what_came_is_kept, !IS_TO_BE_KEPT(1) || (IS_KEPT(1, 0) && IS_KEPT(1, 1)));
       break
     }
  od
}

inline gather(k, block) {
  if
  :: block != NO_BLOCK ->
     under_way = under_way | (1 << k);
     if
     :: content[block - 1] == k -> right = right | (1 << k)
     :: else
     fi
  :: else
  fi
}

/* A rank's step, with what every rank says of it. */
active proctype rank() {
  byte op[NUM_BLOCKS];
  byte b, k, gathers, asked, invalid, answered, ended, right;
end:
  do
  :: atomic { plans?op[0], op[1], op[2], gathers, asked ->
       gather(1, FIELD(gathers, 0));
       gather(2, FIELD(gathers, 1));
       b = 0;
       do
       :: b < NUM_BLOCKS ->
          if
          :: op[b] == ZERO -> content[b] = NONE
          :: op[b] == LOAD(0) || op[b] == LOAD(1) ->
             if
             :: content[b] = KEY(op[b] - LOAD(0))
             :: (!has_failed || invalid != 0) ->
                EVENT("its load fails\n"); content[b] = NONE; has_failed = true; invalid = invalid | (1 << b)
             fi
          :: op[b] == FIRST -> content[b] = KEY(0)
          :: else
          fi;
          b++
       :: else -> break
       od;
       b = 0;
       do
       :: b < NUM_BLOCKS ->
          if
          :: op[b] >= BEHIND(0) && content[op[b] - BEHIND(0)] == KEY(0) -> content[b] = KEY(1)
          :: op[b] >= BEHIND(0) && content[op[b] - BEHIND(0)] != KEY(0) ->
             EVENT("computed on what is wrong\n"); content[b] = NONE
          :: else
          fi;
          b++
       :: else -> break
       od;
       gather(1, FIELD(gathers, 2));
       gather(2, FIELD(gathers, 3));
       if
       :: late_answer != 0 -> answered = 1 << late_answer; late_answer = 0
       :: else
       fi;
       if
       :: asked != 0 -> answered = answered | (1 << asked)
       :: asked != 0 && !was_late -> EVENT("answers with the next step\n"); late_answer = asked; was_late = true
       :: asked == 0
       fi;
       k = 1;
       do
       :: k <= NUM_KEYS ->
          if
          :: HAS(under_way, k) -> ended = ended | (1 << k)
          :: HAS(under_way, k) && !was_late -> EVENT("a store ends later\n"); was_late = true
          :: !HAS(under_way, k)
          fi;
          k++
       :: else -> break
       od;
       under_way = under_way & ~ended;
       reports!invalid, answered, ended, right & ended;
       right = right & under_way;
       op[0] = IDLE; op[1] = IDLE; op[2] = IDLE;
       b = 0; k = 0; gathers = 0; asked = 0; invalid = 0; answered = 0; ended = 0
     }
  od
}
