/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slot of a tier that instances share: its word, its leases, and the sweep behind those that died.
 *
 * Covers: the owner's life with the slot (fill, publish, evict, refill, forget, free_dying), a reader that leases first and compares the
 *   key then; owner and reader as two processes each, a scheduler that says what is to be written and read and a rank that
 *   does it; with WITH_DAMAGE memory that loses a bit once, a reader that finds out by the block's tag and withdraws the slot;
 *   with OWNER_READS the owner as a reader of its own slot, by a lease that is in its memory and not in the word;
 *   death of each between any two steps, and a scheduler's clean end there, while its rank lives on or not; copies
 *   of a device that go on behind their rank, a sweeper that dies itself, taking a chunk over, quarantine and its end.
 * Abstracts: one slot in one chunk, two keys; a hint is the wish to look for a key in the slot, right or wrong; the member
 *   locks are what the kernel promises (they end with the process).
 *   A tag tells a broken block from a whole one, whatever is wrong with it.
 *   A rank's clean end is a death after its last copy. The grace passes when no copy of the device goes on.
 * Mirrors: SharedSlot (slot_word.cpp), TierDirectory (begin_fill, refill, publish, lease, sweep, take_chunk, free_quarantined, its
 *   destructor), Tier::leave_behind, StoreBook's and LoadBook's ends.
 */
#include "properties.pml"

bool a_reader_sees_its_key = true;
bool nobody_writes_beside_the_writer = true;
bool the_living_are_not_swept = true;
bool nothing_is_lost = true;
bool what_is_withdrawn_is_not_used = true;
bool what_is_withdrawn_was_broken = true;

/* the word */
#define FREE 0
#define FILLING 1
#define READABLE 2
#define DYING 3
#define QUARANTINED 4
byte state;
bool is_leased;       /* the reader's bit; nobody else reads */
byte key;             /* 1 or 2 */
byte content;         /* the slot's bytes: a key, or 0 while they are written */

#define BROKEN 3      /* content that is nothing that was stored */
bool is_withdrawn;
bool found_damage;    /* what the reader's rank says of its last read */

/* instances */
#define OWNER 0
#define READER 1
#define SWEEPER 2
#define SURVIVOR 3
#define NOBODY 4
byte owner = OWNER;
bool is_dead[4];      /* of owner and reader: their schedulers */
bool rank_is_dead[2];
bool is_swept[4];
byte sweeps = NOBODY; /* who holds the owner's or the reader's death lock */
byte swept_one;

/* what schedulers have told their ranks, which do it when they like: the key to be written, and the one to be read */
byte order;
byte reads;

#ifdef OWNER_READS
/* The owner's own lease, and what its rank is to read and says of it. */
bool owner_leases;
byte owner_reads;
bool owner_found_damage;
#define OWNER_MAY_REUSE (!owner_leases)
#else
#define OWNER_MAY_REUSE true
#endif

/* a device per writer: copies that were submitted and have not ended */
byte copying[4];

#define NO_BIT (!is_leased)
#define DIES(who) EVENT("a process dies\n"); is_dead[who] = true; goto dead
/* A scheduler is killed, or shut down in order. */
#define LEAVES(who) if :: DIES(who) :: EVENT("a scheduler is shut down\n"); goto ends fi

inline end_copy(who) { content = copying[who]; copying[who] = 0 }

proctype device(byte who) {
end:
  do
  :: copying[who] != 0 -> atomic { copying[who] != 0 -> end_copy(who) }
  od
}

/* What was withdrawn is never free again. */
#ifdef MUTANT_EVICT_WITHDRAWN
#define KEEPS_IT false
#else
#define KEEPS_IT is_withdrawn
#endif
#ifdef MUTANT_BURY_WITHDRAWN
#define MAY_BURY (state == DYING && NO_BIT)
#else
#define MAY_BURY (state == DYING && NO_BIT && !is_withdrawn)
#endif
#ifdef MUTANT_LEASE_WITHDRAWN
#define MAY_LEASE (state == READABLE)
#else
#define MAY_LEASE (state == READABLE && !is_withdrawn)
#endif
/* A reader's bit keeps a slot from eviction, and once more from being filled. */
#ifdef MUTANT_IGNORE_THE_BIT
#define MAY_EVICT (state == READABLE)
#define MAY_FILL (state == FREE || MAY_EVICT)
#else
#define MAY_EVICT (state == READABLE && NO_BIT && !KEEPS_IT)
#define MAY_FILL ((state == FREE && NO_BIT) || MAY_EVICT)
#endif
/* The submission of a copy. */
#define SUBMIT(who, new_key) \
  atomic { REQUIRE(nobody_writes_beside_the_writer, copying[0] + copying[2] + copying[3] == 0); \
           REQUIRE(what_is_withdrawn_is_not_used, !is_withdrawn); \
           content = 0; copying[who] = new_key }
#ifdef MUTANT_PUBLISH_EARLY
#define RANK_HAS_STORED true
#else
/* A dead rank tells nothing. */
#define RANK_HAS_STORED (order == 0 && copying[OWNER] == 0 && !rank_is_dead[OWNER])
#endif

/* A rank goes on with what it was told, whatever has become of its scheduler. */
active proctype owner_rank() {
  do
  :: atomic { order != 0 -> SUBMIT(OWNER, order); order = 0 }
#ifdef OWNER_READS
  :: atomic { owner_reads != 0 && content != BROKEN -> REQUIRE(a_reader_sees_its_key, content == owner_reads); owner_reads = 0 }
  :: atomic { owner_reads != 0 && content == BROKEN -> EVENT("damage is found by its owner\n"); owner_found_damage = true; owner_reads = 0 }
#endif
  :: EVENT("a rank dies\n"); rank_is_dead[OWNER] = true; break
  od
}

active proctype reader_rank() {
  do
  :: atomic { reads != 0 && content != BROKEN -> REQUIRE(a_reader_sees_its_key, content == reads) }
  :: atomic { reads != 0 && content != BROKEN -> REQUIRE(a_reader_sees_its_key, content == reads); reads = 0 }
#ifdef WITH_DAMAGE
  :: atomic { reads != 0 && content == BROKEN -> EVENT("damage is found\n"); found_damage = true; reads = 0 }
#endif
  :: EVENT("a rank dies\n"); rank_is_dead[READER] = true; break
  od
}

#ifdef WITH_DAMAGE
active proctype memory() {
end:
  atomic { state == READABLE && content != 0 -> EVENT("a bit is lost\n"); content = BROKEN }
}

/* By one who has leased it: nothing else may come into the slot before. */
inline withdraw() {
  atomic {
    if
    :: found_damage ->
       REQUIRE(what_is_withdrawn_was_broken, content == BROKEN);
       EVENT("withdrawn\n"); found_damage = false; is_withdrawn = true
    :: else
    fi
  }
}
#else
inline withdraw() { skip }
#endif

#ifdef OWNER_READS
/* By its owner, which may have forgotten the slot meanwhile: nobody else looks at the word of a free slot. */
#ifdef MUTANT_A_FREE_WORD_STAYS_FREE
#define AFTER_FREE FREE
#else
#define AFTER_FREE DYING
#endif
inline end_own_read() {
  atomic {
    if
    :: owner_found_damage ->
       REQUIRE(what_is_withdrawn_was_broken, content == BROKEN);
       owner_found_damage = false; is_withdrawn = true;
       if
       :: state == FREE -> EVENT("withdrawn after it was forgotten\n"); state = AFTER_FREE
       :: else -> EVENT("withdrawn by its owner\n")
       fi
    :: else
    fi;
    owner_leases = false
  }
}
#endif

/* A sweep by `me`, behind `gone`, in steps. */
#ifdef MUTANT_SWEEP_WITHOUT_PROOF
#define IS_GONE(who) true
#else
#ifdef MUTANT_SWEEP_BESIDE_A_RANK
#define NO_RANK_LIVES(who) true
#else
#define NO_RANK_LIVES(who) rank_is_dead[who]
#endif
#define IS_GONE(who) (is_dead[who] && NO_RANK_LIVES(who))
#endif
#define TAKE_DEATH_LOCK(me, gone) atomic { sweeps == NOBODY && IS_GONE(gone) && !is_swept[gone] -> sweeps = me; swept_one = gone }
#ifdef MUTANT_KEEP_THE_BIT
#define KEPT is_leased
#else
#define KEPT false
#endif
inline clear_lease(gone) {
  REQUIRE(the_living_are_not_swept, is_dead[gone] || sweeps == gone);
  if :: gone == READER -> is_leased = KEPT :: else fi
}
#ifdef MUTANT_FREE_WHAT_WAS_FILLING
#define AFTER_FILLING FREE
#else
#define AFTER_FILLING QUARANTINED
#endif
inline doubt_what_it_filled(gone) {
  atomic {
    if
    :: owner == gone && state == FILLING -> EVENT("left filling\n"); state = AFTER_FILLING
    :: else
    fi
  }
}
#ifdef MUTANT_KEEP_THE_CHUNK
#define ORPHANED owner
#else
#define ORPHANED NOBODY
#endif
inline orphan(gone) {
  if :: owner == gone -> owner = ORPHANED :: else fi
}

/* A scheduler that is shut down takes all of its instance's locks beside its own, if it can, and sweeps behind itself. */
#ifdef MUTANT_SHUTDOWN_CLEANS_UP
#define MAY_CLEAN_UP(who) (sweeps == NOBODY)
#else
#define MAY_CLEAN_UP(who) (sweeps == NOBODY && rank_is_dead[who])
#endif
#define CLEAN_UP_BEHIND_ONESELF(who) \
  atomic { \
    if \
    :: MAY_CLEAN_UP(who) -> sweeps = who; swept_one = who \
    :: else -> EVENT("leaves its rank behind\n"); is_dead[who] = true; goto dead \
    fi \
  }; \
  clear_lease(who); \
  if :: DIES(who) :: skip fi; \
  doubt_what_it_filled(who); \
  if :: DIES(who) :: skip fi; \
  orphan(who); \
  atomic { EVENT("cleans up behind itself\n"); is_swept[who] = true; is_dead[who] = true; sweeps = NOBODY }

active proctype owner_process() {
  byte lives = 2;
  run device(OWNER);
  do
#ifdef OWNER_READS
  :: atomic { state == READABLE && !is_withdrawn && !owner_leases -> owner_leases = true; owner_reads = key }
  :: owner_leases && owner_reads == 0 -> end_own_read()
  :: atomic { owner_leases && state == READABLE && NO_BIT && !is_withdrawn -> EVENT("forgotten while its owner reads\n"); state = FREE }
#endif
  :: atomic { lives > 0 && MAY_FILL && OWNER_MAY_REUSE -> lives--; state = FILLING };
     if :: LEAVES(OWNER) :: skip fi;
     order = 2 - lives;
     if
     :: EVENT("leaves while its rank writes\n"); LEAVES(OWNER)
     :: RANK_HAS_STORED
     fi;
#ifdef MUTANT_KEY_BEHIND_THE_WORD
     atomic { state == FILLING -> state = READABLE };
     key = 2 - lives
#else
     key = 2 - lives;
     if :: LEAVES(OWNER) :: skip fi;
     atomic { state == FILLING -> state = READABLE }
#endif
  :: atomic { MAY_EVICT && OWNER_MAY_REUSE -> EVENT("evicted\n"); state = FREE }
  :: atomic { state == READABLE -> EVENT("forgotten\n"); state = DYING }
  :: atomic { MAY_BURY -> EVENT("buried\n"); state = FREE }
  :: LEAVES(OWNER)
  od;
ends:
#ifdef MUTANT_SHUTDOWN_FREES
  atomic { if :: state == FILLING -> state = FREE :: else fi };
#endif
  CLEAN_UP_BEHIND_ONESELF(OWNER);
dead:
  atomic { if :: sweeps == OWNER -> sweeps = NOBODY :: else fi }
}

active proctype reader_process() {
  byte wish;
  byte looks = 3;
  do
  :: looks > 0 && state == READABLE ->
     looks--;
     if :: wish = 1 :: wish = 2 fi;
     /* the hint may be wrong, or of what the slot held a moment ago */
     if
     :: atomic { MAY_LEASE -> REQUIRE(what_is_withdrawn_is_not_used, !is_withdrawn); is_leased = true };
        if :: LEAVES(READER) :: skip fi;
#ifndef MUTANT_NO_SECOND_LOOK
        if
        :: !(state == READABLE && key == wish) -> EVENT("leased another key's\n"); is_leased = false; goto again
        :: else
        fi;
#endif
        reads = wish;
        if
        :: EVENT("leaves while its rank reads\n"); LEAVES(READER)
        :: reads == 0
        fi;
#ifdef MUTANT_WITHDRAW_BEHIND_THE_LEASE
        is_leased = false;
        withdraw()
#else
        withdraw();
        if :: LEAVES(READER) :: skip fi;
        is_leased = false
#endif
     :: !MAY_LEASE -> EVENT("too late\n")
     fi;
again:
     skip
  :: LEAVES(READER)
  od;
ends:
#ifdef MUTANT_SHUTDOWN_ENDS_LEASES
  is_leased = false;
#endif
  CLEAN_UP_BEHIND_ONESELF(READER);
dead:
  atomic { if :: sweeps == READER -> sweeps = NOBODY :: else fi }
}

/* One that sweeps and may die in the middle of it: its locks end with it. */
active proctype sweeper_process() {
  byte gone;
  do
  :: if
     :: TAKE_DEATH_LOCK(SWEEPER, OWNER)
     :: TAKE_DEATH_LOCK(SWEEPER, READER)
     :: DIES(SWEEPER)
     fi;
     gone = swept_one;
     if :: DIES(SWEEPER) :: skip fi;
     clear_lease(gone);
     if :: DIES(SWEEPER) :: skip fi;
     doubt_what_it_filled(gone);
     if :: EVENT("dies in a sweep\n"); DIES(SWEEPER) :: skip fi;
     orphan(gone);
     if :: DIES(SWEEPER) :: skip fi;
     atomic { is_swept[gone] = true; sweeps = NOBODY }
  od;
dead:
  atomic { if :: sweeps == SWEEPER -> sweeps = NOBODY :: else fi }
}

/* The one that stays: sweeps, takes the chunk over, waits for the quarantine's end and uses the slot. */
active proctype survivor_process() {
  byte lives = 1;
  run device(SURVIVOR);
end:
  do
  :: TAKE_DEATH_LOCK(SURVIVOR, OWNER);
     clear_lease(OWNER); doubt_what_it_filled(OWNER); orphan(OWNER);
     atomic { is_swept[OWNER] = true; sweeps = NOBODY }
  :: TAKE_DEATH_LOCK(SURVIVOR, READER);
     clear_lease(READER); doubt_what_it_filled(READER); orphan(READER);
     atomic { is_swept[READER] = true; sweeps = NOBODY }
  :: atomic { owner == NOBODY -> EVENT("taken over\n"); owner = SURVIVOR }
#ifdef MUTANT_NO_GRACE
  :: atomic { owner == SURVIVOR && state == QUARANTINED -> state = FREE }
#else
  :: atomic { owner == SURVIVOR && state == QUARANTINED && copying[OWNER] == 0 -> EVENT("quarantine ends\n"); state = FREE }
#endif
  :: atomic { owner == SURVIVOR && MAY_BURY -> state = FREE }
  :: atomic { owner == SURVIVOR && state == READABLE && is_withdrawn -> state = DYING }
  :: atomic { owner == SURVIVOR && MAY_EVICT && lives > 0 -> EVENT("what was left is evicted\n"); state = FREE }
  :: atomic { owner == SURVIVOR && lives > 0 && MAY_FILL -> lives--; state = FILLING };
     SUBMIT(SURVIVOR, 2);
     copying[SURVIVOR] == 0;
     key = 2;
     atomic { state == FILLING -> state = READABLE }
  :: timeout ->
     /* Everybody else is dead and nothing can happen any more. */
     REQUIRE(nothing_is_lost, owner == SURVIVOR && NO_BIT && \
             (state == FREE || (state == READABLE && (content == key || content == BROKEN)) || (state == DYING && is_withdrawn)));
     break
  od
}
