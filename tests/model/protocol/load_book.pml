/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of load.pml: the slot, the engine, and the books of the scheduler side with what each of its hooks does.
 */

/* ---- the one slot: SlotLedger ---- */
#define READABLE 0
#define LEASED 1
#define DYING 2      /* its key is forgotten, a rank may still read it */
#define FREE 3
#define TAKEN 4      /* by another store */
byte slot_state;
byte num_leases;
bool slot_failed;    /* ghost: a load from it failed */

/* ---- the engine ---- */
#define WAITING 0
#define LOADING 1
#define ZOMBIE 2     /* finished while loading; keeps its blocks until it is told */
#define RUNNING 3
#define GONE 4
byte request[NUM_REQUESTS];
byte load_of[NUM_REQUESTS];
bool marked_failed[NUM_REQUESTS];
#define IS_PENDING(q) (request[q] == LOADING || request[q] == ZOMBIE)

/* ---- LoadBook ---- */
#define BEGUN 1      /* LoadState */
#define SENT 2
#define FAILED 3
#define ANNOUNCED 4
#define OVER 5
byte state[NUM_LOADS];
byte num_loads;
byte owner[NUM_LOADS];
bool doomed[NUM_LOADS];
bool has_lease[NUM_LOADS];
byte said_ended[NUM_RANKS * NUM_LOADS];
byte num_announced[NUM_LOADS];      /* ranks */
bool told[NUM_LOADS];               /* ghost */
bool loaded[NUM_RANKS * NUM_LOADS]; /* ghost: the right bytes are in the block */
bool was_reset;
bool is_expired;                    /* the first load has waited for too long */

inline check_conservation() {
  REQUIRE(conservation, num_leases == has_lease[0] + has_lease[1] &&
                        (num_leases > 0) == (slot_state == LEASED || slot_state == DYING))
}

inline release_lease(t) {
  if
  :: has_lease[t] ->
#ifndef MUTANT_LEASE_ENDS_TWICE
     has_lease[t] = false;
#endif
     num_leases--;
     if
     :: num_leases == 0 && slot_state == LEASED -> slot_state = READABLE
     :: num_leases == 0 && slot_state == DYING -> slot_state = FREE; slot_failed = false
     :: else
     fi
  :: else
  fi
}

inline forget_slot() {
  if
  :: slot_state == LEASED -> slot_state = DYING
  :: slot_state == READABLE -> slot_state = FREE; slot_failed = false
  :: else
  fi
}

/* What the engine does with an id in `finished_recving`. */
inline tell(t) {
  q = owner[t];
  REQUIRE(a_load_is_told_once, !told[t]);
  REQUIRE(only_who_waits_is_told, IS_PENDING(q) && load_of[q] == t);
  told[t] = true;
  state[t] = OVER;
  if
  :: request[q] == ZOMBIE -> EVENT("an aborted load is told, its blocks are freed\n"); request[q] = GONE
  :: request[q] == LOADING && marked_failed[q] ->
     EVENT("a failed load is told, the request computes\n");
     request[q] = WAITING
  :: request[q] == LOADING && !marked_failed[q] ->
     EVENT("a load is told, the request runs\n");
     REQUIRE(nothing_is_computed_on_bad_data, loaded[AT(0, t)] && loaded[AT(1, t)] && !doomed[t]);
     request[q] = RUNNING
  fi;
  marked_failed[q] = false;
  /* Forgotten. */
  load_of[q] = 0;
  doomed[t] = false;
  loaded[AT(0, t)] = false;
  loaded[AT(1, t)] = false
}

/* LoadBook::fail, of what no rank has seen. */
inline fail_begun(t) {
#ifndef MUTANT_LEASE_LEAKS
  release_lease(t);
#endif
#ifdef MUTANT_DROP_UNSENT
  state[t] = OVER
#else
  state[t] = FAILED
#endif
}

inline begin_load(q) {
  t = num_loads;
  num_loads++;
  owner[t] = q;
  request[q] = LOADING;
  load_of[q] = t;
  if
  :: slot_state == READABLE || slot_state == LEASED ->
     REQUIRE(failed_data_is_not_offered_again, !slot_failed);
     slot_state = LEASED;
     num_leases++;
     has_lease[t] = true;
     state[t] = BEGUN
  :: else -> EVENT("allocated without a valid lease\n"); state[t] = FAILED
  fi
}

/* finish_plan(), behind all allocations, is the only place where something is evicted and reserved. */
inline evict_and_reserve() {
  if
  :: slot_state == READABLE -> EVENT("evicted\n"); slot_state = FREE
  :: slot_state == FREE -> EVENT("the slot is used again\n"); slot_state = TAKEN
  :: slot_state != FREE
  fi
}

inline make_plan() {
  t = 0;
  do
  :: t < NUM_LOADS ->
     if
     :: state[t] == BEGUN -> state[t] = SENT; loads = loads | (1 << t)
     :: state[t] == FAILED -> state[t] = ANNOUNCED; notices = notices | (1 << t)
     :: else
     fi;
     t++
  :: else -> break
  od
}

/* Of a request that loads; any other ends without us. */
inline finish(q) {
  t = load_of[q];
  request[q] = ZOMBIE;
  if
  :: state[t] == SENT ->
     EVENT("aborted while loading\n");
     cancels = cancels | (1 << t)
#ifdef MUTANT_RELEASE_ON_ABORT
     ; release_lease(t)
#endif
  :: state[t] == BEGUN ->
     EVENT("aborted before its plan\n");
     fail_begun(t)
#ifdef MUTANT_FREE_UNSENT_ABORT
     ; request[q] = GONE
#endif
  :: else -> EVENT("aborted while its failure is on its way\n")
  fi;
#ifdef MUTANT_TELL_ON_ABORT
  tell(t);
#endif
  /* dynamo#6681: any number of calls in one step; find() does not see a tombstone */
  if
  :: true
  :: EVENT("finished twice\n")
#ifdef MUTANT_FREE_ON_SECOND_FINISH
     ; request[q] = GONE
#endif
  fi
}

inline reset_cache() {
  t = 0;
  do
  :: t < NUM_LOADS ->
     if
     :: state[t] == SENT -> EVENT("doomed\n"); doomed[t] = true; cancels = cancels | (1 << t)
     :: state[t] == BEGUN -> EVENT("reset before its plan\n"); fail_begun(t)
     :: else
     fi;
     t++
  :: else -> break
  od;
  forget_slot()
}

inline mark(r, ends, announcements) {
  t = 0;
  do
  :: t < NUM_LOADS ->
     if
     :: FIELD(ends, t) != 0 && state[t] == SENT -> said_ended[AT(r, t)] = FIELD(ends, t)
     :: else
     fi;
     num_announced[t] = num_announced[t] + HAS(announcements, t);
     t++
  :: else -> break
  od
}

#ifdef WITH_EXPIRY
/* finish_plan() finds that the load's time is over. What the ranks have begun of it only they know. */
inline expire(t) {
  EVENT("a load's time is over\n");
  is_expired = true;
  cancels = cancels | EXPIRY(t)
#ifdef MUTANT_FAIL_ON_EXPIRY
  ; release_lease(t);
  state[t] = FAILED
#endif
}
#endif

inline settle_end(t) {
#ifdef MUTANT_EXPIRY_IS_SUCCESS
  all_done = (t == 0 && is_expired) || (said_ended[AT(0, t)] == DONE && said_ended[AT(1, t)] == DONE);
#else
  all_done = said_ended[AT(0, t)] == DONE && said_ended[AT(1, t)] == DONE;
#endif
#ifdef WITH_EXPIRY
  /* Nothing says that its blocks are bad. */
  REQUIRE(what_expired_stays, t != 0 || !is_expired || has_failed || was_reset || slot_state == LEASED);
  if
  :: t == 0 && is_expired && !all_done && request[owner[t]] == LOADING -> EVENT("failed, for its time was over\n")
  :: t == 0 && is_expired && all_done -> EVENT("had begun on every rank, and succeeded\n")
  :: else
  fi;
#endif
  release_lease(t);
  said_ended[AT(0, t)] = 0;
  said_ended[AT(1, t)] = 0;
  if
  :: request[owner[t]] == ZOMBIE -> tell(t)
#ifdef MUTANT_TELL_DOOMED
  :: request[owner[t]] == LOADING && all_done -> tell(t)
  :: request[owner[t]] == LOADING && !all_done ->
#elif defined(MUTANT_TELL_FAILED)
  :: request[owner[t]] == LOADING && !doomed[t] -> tell(t)
  :: request[owner[t]] == LOADING && doomed[t] ->
#else
  :: request[owner[t]] == LOADING && all_done && !doomed[t] ->
     tell(t)
#ifdef MUTANT_ANNOUNCE_SUCCESS
     ; state[t] = FAILED
#endif
  :: request[owner[t]] == LOADING && !(all_done && !doomed[t]) ->
#endif
     if
     :: doomed[t] && all_done -> EVENT("had ended well before the ranks heard of the reset\n")
     :: else -> EVENT("failed\n")
     fi;
#ifdef MUTANT_NO_NOTICE
     state[t] = OVER
#else
     state[t] = FAILED
#endif
  :: else  /* nobody waits for it: dropped */
  fi
}

#define IS_AT_END(t) (state[t] == SENT && said_ended[AT(0, t)] != 0 && said_ended[AT(1, t)] != 0)

inline fold() {
  /* The engine: failures first. */
  t = 0;
  do
  :: t < NUM_LOADS ->
     if
     :: num_announced[t] == NUM_RANKS && request[owner[t]] == LOADING -> marked_failed[owner[t]] = true
     :: num_announced[t] == NUM_RANKS && request[owner[t]] == LOADING ->
        EVENT("the engine fails requests whose load failed\n");
        request[owner[t]] = ZOMBIE
     :: else
     fi;
     t++
  :: else -> break
  od;
  /* LoadBook::settle_failures */
  t = 0;
  do
  :: t < NUM_LOADS ->
#ifdef MUTANT_FORGET_EXPIRED
     if
     :: IS_AT_END(t) && t == 0 && is_expired && said_ended[AT(0, t)] == DROPPED -> forget_slot()
     :: else
     fi;
#endif
     if
     :: IS_AT_END(t) && (said_ended[AT(0, t)] == BROKEN || said_ended[AT(1, t)] == BROKEN) ->
        slot_failed = slot_state != TAKEN && slot_state != FREE;
#ifndef MUTANT_OFFER_FAILED_AGAIN
        forget_slot()
#endif
     :: else
     fi;
     t++
  :: else -> break
  od;
  /* LoadBook::settle_ends */
  t = 0;
  do
  :: t < NUM_LOADS ->
     if
#ifdef MUTANT_FIRST_RANK
     :: state[t] == SENT && (said_ended[AT(0, t)] != 0 || said_ended[AT(1, t)] != 0) -> settle_end(t)
#else
     :: IS_AT_END(t) -> settle_end(t)
#endif
     :: num_announced[t] == NUM_RANKS -> num_announced[t] = 0; tell(t)
     :: else
     fi;
     t++
  :: else -> break
  od
}
