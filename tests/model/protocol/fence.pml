/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: a block that was gathered a moment ago is zeroed and loaded into, or computed into, at once.
 *
 * Covers: gathers in compute-stream order, the copy that waits for its gather's event, the ring region that returns when
 *   gather and copy ended, the fence of a step's loads (behind every earlier gather and behind zeroing, before the
 *   forward), a request that runs only after its load was seen ended; a host that waits for nothing of all that.
 * Abstracts: the protocol between the sides (store.pml, load.pml), ranks (streams are a rank's own: one is enough),
 *   several blocks and pieces.
 * Mirrors: transfer/src/gather_stage.cpp, copy_pump.cpp, transfer_engine.cpp (fence), worker_engine.cpp (bind).
 */
#include "properties.pml"

bool a_gather_reads_what_was_computed = true;
bool a_slot_holds_its_key = true;
bool nothing_is_computed_on_an_unfinished_load = true;

/* what a place holds */
#define NOTHING 0
#define FIRST 1      /* of the request whose block is stored */
#define ZEROS 2
#define LOADED 3
#define OTHER 4      /* of another request */
byte block = FIRST;
byte ring;
byte slot;

/* the compute stream: executed in order, some time */
mtype = { gather_block, gather_other, zero, mark_fence, compute_other, read_loaded, write_block };
chan compute = [8] of { mtype };
bool gathered;       /* the event behind the gather */
bool copied;         /* the event behind the copy */
bool fenced;
bool load_queued;
bool load_ended;
bool ring_is_free = true;
bool used_again;

/* Plans and launches; the engine's thread. */
active proctype host() {
  /* The step that completes the block: forward, then wait_for_save. */
  ring_is_free = false;
#ifdef MUTANT_GATHER_BESIDE_COMPUTE
  run side_stream();
#else
  compute!gather_block;
#endif
  run store_stream();
  /* Its request finishes: the block is free at once (G1), and the next step gives it to somebody. */
  if
  :: EVENT("the block is computed into\n");
     compute!write_block
  :: EVENT("the block is loaded into\n");
     run load_stream();
#ifdef MUTANT_FENCE_BEFORE_ZEROING
     compute!mark_fence;
     compute!zero;
#else
     if
     :: compute!zero
     :: EVENT("no zeroing\n")
     fi;
     compute!mark_fence;
#endif
     load_queued = true;
     compute!compute_other;
#ifndef MUTANT_RUN_BEFORE_REPORT
     load_ended;
#endif
     compute!read_loaded
  fi
}

/* A later store of another block, as soon as the ring has room. */
#ifdef MUTANT_RING_BACK_AFTER_GATHER
#define RING_HAS_ROOM gathered
#else
#define RING_HAS_ROOM (copied && ring_is_free)
#endif
active proctype later_store() {
end:
  atomic { RING_HAS_ROOM -> EVENT("the ring region is used again\n"); used_again = true; compute!gather_other }
}

active proctype compute_stream() {
end:
  do
  :: atomic { compute?gather_block ->
       REQUIRE(a_gather_reads_what_was_computed, block == FIRST);
       ring = block;
       gathered = true
     }
  :: atomic { compute?gather_other -> ring = OTHER }
  :: atomic { compute?zero -> block = ZEROS }
  :: atomic { compute?write_block -> block = OTHER }
  :: atomic { compute?mark_fence -> fenced = true }
  :: atomic { compute?compute_other }
  :: atomic { compute?read_loaded -> REQUIRE(nothing_is_computed_on_an_unfinished_load, block == LOADED) }
  od
}

#ifdef MUTANT_GATHER_BESIDE_COMPUTE
proctype side_stream() {
  atomic { REQUIRE(a_gather_reads_what_was_computed, block == FIRST); ring = block; gathered = true }
}
#endif

proctype store_stream() {
#ifndef MUTANT_COPY_BEFORE_GATHER
  gathered;
#endif
#ifdef MUTANT_RING_LEAKS
  atomic { slot = ring; copied = true };
#else
  atomic { slot = ring; copied = true; ring_is_free = true };
#endif
  /* The host sees the copy's event: the slot becomes readable. */
  REQUIRE(a_slot_holds_its_key, slot == FIRST)
}

proctype load_stream() {
  load_queued;
#ifndef MUTANT_NO_FENCE
  fenced;
#endif
  atomic { block = LOADED; load_ended = true }
}

/* Nobody waits for ever: the ring comes back and a load ends. */
ltl everything_happens { <> (copied && used_again && (load_queued -> load_ended)) }
