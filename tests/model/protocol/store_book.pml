/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of store.pml: the slots, the stores under way, and what planning, folding and resetting do with both.
 */

/* ---- the tier: SlotLedger ---- */
#define FREE 0
#define WRITABLE 1
#define ABORTED 2
#define READABLE 3
byte slot_state[NUM_SLOTS];
byte slot_key[NUM_SLOTS];    /* of a writable or readable slot, from 1 */
byte count[4];
byte slot_owner[NUM_SLOTS];  /* ghost: the store it was reserved for, + 1 */
byte good[NUM_RANKS];        /* ghost: a bit per slot that holds its key's bytes on that rank */

#define MOVE(s, from, to) \
  REQUIRE(state_is_as_expected, slot_state[s] == from); \
  slot_state[s] = to; count[from]--; count[to]++; \
  if \
  :: to == FREE -> slot_owner[s] = 0; good[0] = good[0] & ~(1 << s); good[1] = good[1] & ~(1 << s) \
  :: else \
  fi; \
  if \
  :: to == FREE || to == ABORTED -> slot_key[s] = 0 \
  :: else \
  fi

/* ---- StoreBook ---- */
#define NOTHING 3  /* a rank has not said how much it gathered */
#define DONE 1
#define FAILED 2
#define CANCELLED 3
#define SLOT(t, i) slots[(t) * MAX_BLOCKS + (i)]
byte num_stores;
byte num_blocks[NUM_STORES];
byte slots[NUM_STORES * MAX_BLOCKS];
byte num_writable[NUM_STORES];
byte num_owned[NUM_STORES];  /* writable and aborted */
bool was_aborted[NUM_STORES];
bool gathers_settled[NUM_STORES];
bool over[NUM_STORES];
byte said_gathered[NUM_RANKS * NUM_STORES];
byte said_ended[NUM_RANKS * NUM_STORES];
byte held_blocks;            /* ghost: blocks that the engine cannot have because of stores */
bool was_reset;

inline check_tier() {
  REQUIRE(conservation, count[FREE] + count[WRITABLE] + count[ABORTED] + count[READABLE] == NUM_SLOTS &&
                        count[WRITABLE] + count[ABORTED] == num_owned[0] + num_owned[1]);
  REQUIRE(one_slot_per_key, slot_key[0] == 0 || slot_key[0] != slot_key[1])
}

#ifdef MUTANT_CHECK_THEN_USE
byte room_seen = NUM_SLOTS;  /* as of the last fold */
#endif

inline reserve_one(t) {
  /* a free slot, else the one that is evicted */
  s = 0;
  do
  :: s < NUM_SLOTS && slot_state[s] != FREE -> s++
  :: else -> break
  od;
  if
  :: s == NUM_SLOTS ->
     s = 0;
     do
     :: s < NUM_SLOTS && slot_state[s] != READABLE -> s++
     :: else -> break
     od;
#ifdef MUTANT_CHECK_THEN_USE
     if
     :: s == NUM_SLOTS -> s = 0
     :: else
     fi;
#endif
     EVENT("evicted\n");
     MOVE(s, READABLE, FREE)
  :: else
  fi;
  MOVE(s, FREE, WRITABLE);
  slot_key[s] = k;
  slot_owner[s] = t + 1;
  SLOT(t, num_blocks[t]) = s;
  num_blocks[t]++
}

inline key_is_absent(key) {
  absent = true;
  s = 0;
  do
  :: s < NUM_SLOTS ->
     if
#ifdef MUTANT_STORE_WHAT_IS_ON_ITS_WAY
     :: slot_state[s] == READABLE && slot_key[s] == key -> absent = false
#else
     :: (slot_state[s] == WRITABLE || slot_state[s] == READABLE) && slot_key[s] == key -> absent = false
#endif
     :: else
     fi;
     s++
  :: else -> break
  od
}

/* Reserves for as many of the offered keys as the tier has room for. */
inline plan_store(want) {
  num_blocks[num_stores] = 0;
#ifdef MUTANT_CHECK_THEN_USE
  room = room_seen;
#else
  room = count[FREE] + count[READABLE];
#endif
  k = 1;
  do
  :: k <= NUM_KEYS && num_blocks[num_stores] < want ->
     key_is_absent(k);
     if
     :: absent && room > 0 -> reserve_one(num_stores); room--
     :: absent && room == 0 -> EVENT("exhausted\n"); break
     :: else
     fi;
     k++
  :: else -> break
  od;
  if
  :: num_blocks[num_stores] > 0 ->
     num_writable[num_stores] = num_blocks[num_stores];
     num_owned[num_stores] = num_blocks[num_stores];
     said_gathered[AT(0, num_stores)] = NOTHING;
     said_gathered[AT(1, num_stores)] = NOTHING;
#ifdef MUTANT_HOLD_BLOCKS
     held_blocks = held_blocks + num_blocks[num_stores];
#endif
     new_stores = 1 << num_stores;
     num_stores++
  :: else
  fi
}

inline release_owned(t, first, last, from) {
  i = first;
  do
  :: i < last -> s = SLOT(t, i); MOVE(s, from, FREE); i++
  :: else -> break
  od
}

inline abort_writable(t, first) {
  i = first;
  do
  :: i < num_writable[t] -> s = SLOT(t, i); MOVE(s, WRITABLE, ABORTED); i++
  :: else -> break
  od;
  num_writable[t] = first
}

inline settle_gathers(t) {
  if
  :: said_gathered[AT(0, t)] < said_gathered[AT(1, t)] ->
     least = said_gathered[AT(0, t)]; most = said_gathered[AT(1, t)]
  :: else ->
     least = said_gathered[AT(1, t)]; most = said_gathered[AT(0, t)]
  fi;
  gathers_settled[t] = true;
#ifdef MUTANT_FREE_WHAT_ONE_RANK_SKIPPED
  most = least;
#endif
  if
  :: was_aborted[t]
  :: else ->
     if
     :: least < num_writable[t] ->
        EVENT("a rank skipped blocks\n");
        abort_writable(t, least);
#ifndef MUTANT_LOSE_THE_SKIPPED
        release_owned(t, most, num_owned[t], ABORTED);
#endif
        num_owned[t] = most
     :: else
     fi
  fi
}

inline commit(t) {
  i = 0;
  do
  :: i < num_writable[t] ->
     s = SLOT(t, i);
     MOVE(s, WRITABLE, READABLE);
     REQUIRE(readable_means_stored_on_every_rank, HAS(good[0], s) && HAS(good[1], s));
     i++
  :: else -> break
  od
}

inline settle_end(t) {
#ifdef MUTANT_COMMIT_ON_FIRST_RANK
  all_done = said_ended[AT(0, t)] == DONE || said_ended[AT(1, t)] == DONE;
#else
  all_done = said_ended[AT(0, t)] == DONE && said_ended[AT(1, t)] == DONE;
#endif
  release_owned(t, num_writable[t], num_owned[t], ABORTED);
  if
  :: all_done -> EVENT("committed or nothing left\n"); commit(t)
  :: else ->
     EVENT("freed\n");
     num_owned[t] = num_writable[t];
     abort_writable(t, 0);
     release_owned(t, 0, num_owned[t], ABORTED)
  fi;
#ifdef MUTANT_HOLD_BLOCKS
  held_blocks = held_blocks - num_blocks[t];
#endif
  over[t] = true;
  /* Forgotten. */
  num_owned[t] = 0;
  num_writable[t] = 0;
  was_aborted[t] = false;
  gathers_settled[t] = false;
  said_gathered[AT(0, t)] = NOTHING;
  said_gathered[AT(1, t)] = NOTHING;
  said_ended[AT(0, t)] = 0;
  said_ended[AT(1, t)] = 0
}

inline mark(r, gathered, ended) {
  t = 0;
  do
  :: t < num_stores ->
     if
     :: FIELD(gathered, t) != NOTHING && said_gathered[AT(r, t)] == NOTHING ->
        said_gathered[AT(r, t)] = FIELD(gathered, t);
        if
        :: FIELD(gathered, t) == 0 -> said_ended[AT(r, t)] = DONE
        :: else
        fi
     :: else
     fi;
     if
     :: FIELD(ended, t) != 0 && said_ended[AT(r, t)] == 0 -> said_ended[AT(r, t)] = FIELD(ended, t)
     :: else
     fi;
     t++
  :: else -> break
  od
}

inline settle() {
  t = 0;
  do
  :: t < num_stores ->
     all_gathered = said_gathered[AT(0, t)] != NOTHING && said_gathered[AT(1, t)] != NOTHING;
#ifdef MUTANT_COMMIT_ON_FIRST_RANK
     all_ended = said_ended[AT(0, t)] != 0 || said_ended[AT(1, t)] != 0;
#else
     all_ended = said_ended[AT(0, t)] != 0 && said_ended[AT(1, t)] != 0;
#endif
     if
     :: !over[t] && all_gathered && !gathers_settled[t] -> settle_gathers(t)
     :: else
     fi;
     if
     :: !over[t] && all_gathered && all_ended -> settle_end(t)
     :: else
     fi;
     t++
  :: else -> break
  od
}

inline reset_cache() {
  t = 0;
  do
  :: t < num_stores ->
     if
     :: !over[t] ->
        EVENT("store aborted by a reset\n");
        was_aborted[t] = true;
        abort_writable(t, 0);
#ifdef MUTANT_FREE_ON_RESET
        release_owned(t, 0, num_owned[t], ABORTED);
        num_owned[t] = 0;
#endif
        cancels = cancels | (1 << t)
     :: else
     fi;
     t++
  :: else -> break
  od;
  s = 0;
  do
  :: s < NUM_SLOTS ->
     if
     :: slot_state[s] == READABLE -> MOVE(s, READABLE, FREE)
     :: else
     fi;
     s++
  :: else -> break
  od
}
