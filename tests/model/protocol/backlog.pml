/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backlog: a block that was not stored in its step is gathered at the bind of a later one, if it still is what it was.
 *
 * Covers: one block and one rank through any steps, planned one ahead of the execution; the engine caches a block under
 *   its hash when it *schedules* its computation, maybe under the very key that the backlog knows it by; evictions, and
 *   blocks handed out anew.
 * Abstracts: slots, ranks and ends (store.pml), streams (fence.pml), a load's end (the engine caches the block then, when
 *   it holds what it is cached as).
 * Mirrors: connector/scheduler/src/backlog.cpp, store_offers.cpp (offer_step: drop_rewritten), store_planner.cpp
 *   (plan_backlog), worker_engine.cpp (bind gathers what is ready, before the forward).
 */
#include "properties.pml"

#define NONE 0

bool a_gather_reads_its_key = true;

byte cached_as;      /* block.block_hash in the engine's pool */
byte entry;          /* the backlog's entry of the block */
byte content;        /* on the rank */

#define NO_WRITE 3
#define LOAD 4
/*
 * What the step writes into the block (a key; NONE: a part of a block; LOAD: an asynchronous load does), and what is
 * gathered before and after the forward.
 */
chan steps = [2] of { byte, byte, byte };

active proctype scheduler() {
  byte write, ready, after;
end:
  do
  :: atomic { nfull(steps) ->
       /* The engine schedules. */
       write = NO_WRITE;
       if
       :: true
       :: EVENT("the engine drops the block's hash\n"); cached_as = NONE
       :: EVENT("the block is computed as key 1\n"); write = 1
       :: write = 2
       :: EVENT("the block is computed in part\n"); write = NONE
       :: EVENT("the block is loaded into\n"); write = LOAD
       fi;
       if
       :: write == LOAD || write == NONE -> cached_as = NONE
       :: write == 1 || write == 2 ->
          cached_as = write;
          /* on_scheduled() */
#ifdef MUTANT_TRUST_POOL
          skip
#else
          entry = NONE
#endif
       :: write == NO_WRITE
       fi;
       /* finish_plan(): the backlog first, then what this step completes. */
       ready = NONE;
       after = NONE;
       if
       :: EVENT("not its turn\n")
#ifdef MUTANT_NO_POOL_CHECK
       :: entry != NONE ->
#else
       :: entry != NONE && cached_as == entry ->
#endif
          EVENT("gathered out of the backlog\n");
          ready = entry;
          entry = NONE
       :: entry != NONE && cached_as != entry -> EVENT("reallocated before its turn\n"); entry = NONE
       fi;
       if
       :: write == 1 || write == 2 ->
          if
          :: after = write
          :: EVENT("refused, enters the backlog\n"); entry = write
          fi
       :: else
       fi;
       steps!write, ready, after;
       write = 0; ready = 0; after = 0
     }
  od
}

active proctype rank() {
  byte write, ready, after;
end:
  do
  :: atomic { steps?write, ready, after ->
       if
       :: ready != NONE -> REQUIRE(a_gather_reads_its_key, content == ready)
       :: else
       fi;
       if
       :: write == LOAD -> content = NONE  /* what it will be, and when, no plan can rely on */
       :: write == NONE || write == 1 || write == 2 -> content = write
       :: else
       fi;
       if
       :: after != NONE -> REQUIRE(a_gather_reads_its_key, content == after)
       :: else
       fi;
       write = 0; ready = 0; after = 0
     }
  od
}
