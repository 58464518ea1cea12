/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler side of proof.pml: what it knows of the engine's blocks, and what it stores of them. */

#define NONE 0
#define NO_BLOCK 0           /* tables hold a block's number plus one */
#define NUM_POSITIONS 2
#define TABLE(q, p) table[(q) * NUM_POSITIONS + (p)]
#define BLOCK(q, p) (TABLE(q, p) - 1)
#define KEY(p) ((p) + 1)

/* ---- the engine's pool, which the connector sees ---- */
byte cached[NUM_BLOCKS];     /* block.block_hash */
byte table[NUM_REQUESTS * NUM_POSITIONS];

/* ---- ProvenBlocks and Backlog ---- */
byte proven[NUM_BLOCKS];
byte writer[NUM_BLOCKS];     /* a request's present incarnation, plus one */
byte entry[NUM_BLOCKS];
byte deferred[NUM_BLOCKS];   /* enters the backlog when the plan is made: it may be this step that writes the block */
bool in_step;                /* the engine has scheduled something since the last plan */

/* ---- TokenProof, in blocks ---- */
#define NOTHING_AWAITED 3
byte from[NUM_REQUESTS];
byte to[NUM_REQUESTS];
byte awaited[NUM_REQUESTS] = NOTHING_AWAITED;
byte witness[NUM_REQUESTS];
#define UNSENT 7
byte num_witnesses;
byte rewritten_to[NUM_REQUESTS]; /* what a failure took back is written anew up to here */
byte num_proven[NUM_REQUESTS];   /* and offered: what is proven is offered at once */
bool is_in_step[NUM_REQUESTS];

/* ---- the tier: what a key's slot is, and the block that it is written out of ---- */
#define FREE 0
#define WRITABLE 1
#define ABORTED 2
#define READABLE 3
byte slot[NUM_KEYS + 1];
byte stored_block[NUM_KEYS + 1];
bool was_kept[NUM_KEYS + 1];     /* ghost */
byte after[NUM_KEYS + 1];        /* candidates of this step: a block, plus one */

#ifdef MUTANT_BELIEVE_POOL
#define HOLDS(b, k) (cached[b] == (k))
#else
#define HOLDS(b, k) (proven[b] == (k))
#endif
#define IS_COVERED(q, p) ((p) >= from[q] && writer[BLOCK(q, p)] == (q) + 1)

inline begin_write(b, q) {
  proven[b] = NONE;
  entry[b] = NONE;
  writer[b] = (q) + 1
}

/* offer_proven(): what is in the step is gathered after its forward, else it enters the backlog. */
inline offer_proven(q) {
  do
  :: num_proven[q] < to[q] && (IS_COVERED(q, num_proven[q]) || HOLDS(BLOCK(q, num_proven[q]), KEY(num_proven[q]))) ->
     if
     :: IS_COVERED(q, num_proven[q]) -> proven[BLOCK(q, num_proven[q])] = KEY(num_proven[q])
     :: else
     fi;
     if
     :: is_in_step[q] && after[KEY(num_proven[q])] == NO_BLOCK ->
        after[KEY(num_proven[q])] = TABLE(q, num_proven[q])
     :: is_in_step[q] && after[KEY(num_proven[q])] != NO_BLOCK
#ifdef MUTANT_READ_BEFORE_IT_IS_WRITTEN
     :: !is_in_step[q] -> entry[BLOCK(q, num_proven[q])] = KEY(num_proven[q])
#else
     :: !is_in_step[q] && in_step -> deferred[BLOCK(q, num_proven[q])] = KEY(num_proven[q])
     :: !is_in_step[q] && !in_step -> entry[BLOCK(q, num_proven[q])] = KEY(num_proven[q])
#endif
     fi;
     num_proven[q]++
  :: else -> break
  od
}

/* A request that found another one's blocks may stand before it. */
inline settle_doubt() {
  offer_proven(0);
  offer_proven(1);
  offer_proven(0)
}

/* admit(): `hits` blocks were found in the engine's cache, `loaded` more another connector loads within the step. */
inline admit(q, hits, loaded, computed) {
  num_proven[q] = 0;
  to[q] = hits + loaded + computed;
  from[q] = hits + loaded;
  awaited[q] = NOTHING_AWAITED;
  witness[q] = NONE;
  is_in_step[q] = true;
  in_step = true;
  b = hits;
  do
  :: b < to[q] -> begin_write(BLOCK(q, b), q); b++
  :: else -> break
  od;
  if
  :: loaded > 0 ->
#ifdef MUTANT_NO_WITNESS
     from[q] = hits
#else
     awaited[q] = hits;
     witness[q] = UNSENT
#endif
  :: else
  fi;
  b = 0;
  offer_proven(q)
}

/* on_rewritten(): what others computed behind these blocks in earlier plans they computed on what was there before. */
inline on_rewritten(q, first, end) {
#if !defined(MUTANT_BELIEVE_WHAT_IS_REWRITTEN) && !defined(MUTANT_KEEP_WHAT_FOLLOWS)
  b = first;
  do
  :: b < end && (TABLE(1 - q, b) == TABLE(q, b)) ->
     from[1 - q] = to[1 - q];
     awaited[1 - q] = NOTHING_AWAITED;
     witness[1 - q] = NONE;
     b++
  :: b < end && (TABLE(1 - q, b) != TABLE(q, b)) -> b++
  :: else -> break
  od;
  b = 0
#else
  skip
#endif
}

/* cover() of a request that goes on, maybe from where a failure took it back to. */
inline go_on(q, first, computed) {
  if
  :: num_proven[q] > first -> num_proven[q] = first
  :: else
  fi;
  if
  :: first < from[q] || first > to[q] -> from[q] = first; awaited[q] = NOTHING_AWAITED; witness[q] = NONE
  :: else
  fi;
  b = first;
  do
  :: b < first + computed || b < to[q] -> begin_write(BLOCK(q, b), q); b++
  :: else -> break
  od;
  if
  :: first < to[q] -> rewritten_to[q] = to[q]
  :: else
  fi;
  if
  :: first < rewritten_to[q] -> on_rewritten(q, first, first + computed)
  :: else
  fi;
  to[q] = first + computed;
  is_in_step[q] = true;
  in_step = true;
  b = 0;
  offer_proven(q)
}

/* Its incarnation writes nothing any more. */
inline end_incarnation(q) {
  awaited[q] = NOTHING_AWAITED;
  witness[q] = NONE;
  num_proven[q] = 0;
  from[q] = 0;
  to[q] = 0;
  rewritten_to[q] = 0;
  is_in_step[q] = false;
  b = 0;
  do
  :: b < NUM_BLOCKS ->
     if
     :: writer[b] == (q) + 1 -> writer[b] = 0
     :: else
     fi;
     b++
  :: else -> break
  od;
  b = 0
}

inline on_finished(q) {
  is_in_step[q] = false;
  offer_proven(q);
  end_incarnation(q)
}

/* The keys of what it has not computed are void, on whatever block they are. */
inline forget_uncomputed(q) {
#ifndef MUTANT_KEEP_PROOF
  b = 0;
  do
  :: b < NUM_BLOCKS ->
     if
     :: proven[b] > to[q] -> proven[b] = NONE
     :: else
     fi;
     b++
  :: else -> break
  od;
  b = 0
#else
  skip
#endif
}

inline on_preempted(q) {
  is_in_step[q] = false;
  offer_proven(q);
  forget_uncomputed(q);
  end_incarnation(q)
}

inline forget(b) {
  proven[b] = NONE;
  writer[b] = 0;
  entry[b] = NONE;
  deferred[b] = NONE;
  if
  :: slot[1] == WRITABLE && stored_block[1] == b + 1 -> slot[1] = ABORTED
  :: slot[2] == WRITABLE && stored_block[2] == b + 1 -> EVENT("a store of what is lost is aborted\n"); slot[2] = ABORTED
  :: else
  fi
}

/* on_blocks_invalid(): of one request; what it computed behind the block it computed from it. */
inline doubt_all_of(q) {
  p = 0;
  do
  :: p < to[q] && !HAS(invalid, BLOCK(q, p)) -> p++
  :: else -> break
  od;
  if
  :: p < to[q] ->
     was_hit[q] = true;
     if
     :: num_proven[q] > p -> num_proven[q] = p
     :: else
     fi;
     awaited[q] = NOTHING_AWAITED;
     witness[q] = NONE;
#ifndef MUTANT_KEEP_WHAT_FOLLOWS
     from[q] = to[q];
     do
     :: p < to[q] ->
        if
        :: writer[BLOCK(q, p)] == (q) + 1 -> lost = lost | (1 << BLOCK(q, p))
        :: else
        fi;
        p++
     :: else -> break
     od
#endif
  :: else
  fi;
  p = 0
}

inline on_blocks_invalid() {
  if
  :: invalid != 0 ->
     lost = invalid;
     doubt_all_of(0);
     doubt_all_of(1);
     b = 0;
     do
     :: b < NUM_BLOCKS ->
        if
        :: HAS(lost, b) -> forget(b)
        :: else
        fi;
        b++
     :: else -> break
     od;
     b = 0; lost = 0
  :: else
  fi
}

/* settle() and hear_witnesses() */
inline fold() {
  k = 1;
  do
  :: k <= NUM_KEYS ->
     if
     :: HAS(ended, k) ->
        if
        :: slot[k] == WRITABLE ->
           REQUIRE(nothing_wrong_is_kept, HAS(good, k));
           slot[k] = READABLE;
           was_kept[k] = true
        :: else -> slot[k] = FREE
        fi;
        stored_block[k] = NO_BLOCK
     :: else
     fi;
     k++
  :: else -> break
  od;
  k = 0;
  if
  :: answered != 0 ->
     q = 0;
     do
     :: q < NUM_REQUESTS ->
        if
        :: HAS(answered, witness[q]) ->
#ifndef MUTANT_FORGET_THE_ANSWER
           from[q] = awaited[q];
#endif
           awaited[q] = NOTHING_AWAITED;
           witness[q] = NONE
        :: else
        fi;
        q++
     :: else -> break
     od;
     q = 0;
     settle_doubt()
  :: else
  fi
}

/* finish_plan(): a witness if one is wanted, the backlog, then what the step proves. */
inline finish_plan() {
  settle_doubt();
  if
  :: witness[0] == UNSENT || witness[1] == UNSENT ->
     num_witnesses++;
     asked = num_witnesses;
     if
     :: witness[0] == UNSENT -> witness[0] = asked
     :: else
     fi;
     if
     :: witness[1] == UNSENT -> witness[1] = asked
     :: else
     fi
  :: else
  fi;
  b = 0;
  do
  :: b < NUM_BLOCKS ->
     k = entry[b];
     if
     :: k == NONE
     :: k != NONE && slot[k] == ABORTED  /* its turn comes when the key's last store has ended */
     :: k != NONE && slot[k] != ABORTED ->
        entry[b] = NONE;
        if
        :: HOLDS(b, k) && cached[b] == k && slot[k] == FREE ->
           slot[k] = WRITABLE; stored_block[k] = b + 1; ready = ready | ((b + 1) << (2 * k - 2))
        :: else
        fi
     fi;
     if
     :: deferred[b] != NONE -> entry[b] = deferred[b]; deferred[b] = NONE
     :: else
     fi;
     b++
  :: else -> break
  od;
  k = 1;
  do
  :: k <= NUM_KEYS ->
     if
     :: after[k] != NO_BLOCK && slot[k] == FREE -> slot[k] = WRITABLE; stored_block[k] = after[k]
     :: after[k] != NO_BLOCK && slot[k] == ABORTED -> entry[after[k] - 1] = k; after[k] = NO_BLOCK
     :: else -> after[k] = NO_BLOCK
     fi;
     k++
  :: else -> break
  od;
  gathers = ready | (after[1] << 4) | (after[2] << 6);
  after[1] = NO_BLOCK; after[2] = NO_BLOCK;
  is_in_step[0] = false; is_in_step[1] = false; in_step = false;
  b = 0; k = 0; ready = 0
}
