# SPDX-License-Identifier: Apache-2.0
"""What is checked: each search of each model, and each mutant with the property that it breaks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One search of one model.

    Parameters
    ----------
    model
        File without suffix.
    what
        Name within the model; a mutant's name is that of its macro, ``MUTANT_<what>``.
    breaks
        Property that the mutant breaks; empty for the model itself.
    defines
        Of the preprocessor, in addition to the mutant's.
    claim
        Check the model's LTL formula: a violation is an acceptance cycle. Else only assertions, among them those about
        the states in which the model comes to rest.
    breadth_first
        Shortest counterexample; better where it is near, worse where it is far.

    """

    model: str
    what: str
    breaks: str = ""
    defines: tuple[str, ...] = ()
    claim: bool = False
    breadth_first: bool = False

    @property
    def name(self) -> str:
        """Model and what is checked of it."""
        return f"{self.model}.{self.what}" + (".claim" if self.breaks and self.claim else "")


def mutants(
    model: str, *rows: tuple[str, str], depth_first: bool = False, defines: tuple[str, ...] = ()
) -> list[Check]:
    """Return a check for each (mutant, property that it breaks)."""
    return [Check(model, what, breaks, defines, breadth_first=not depth_first) for what, breaks in rows]


SYNC = ("-DSTEPS_OUT=1",)
EXPIRY = (*SYNC, "-DWITH_EXPIRY")
DAMAGE = ("-DWITH_DAMAGE",)
OWNER_READS = (*DAMAGE, "-DOWNER_READS")
ONE_BLOCK = ("-DMAX_BLOCKS=1",)

# The longest first.
CHECKS = (
    Check("store", "async"),
    Check("load", "async"),
    Check("store", "claim", defines=(*SYNC, *ONE_BLOCK), claim=True),
    Check("proof", "async"),
    Check("load", "expiry", defines=EXPIRY),
    Check("load", "claim", defines=SYNC, claim=True),
    *mutants(
        "load",
        ("RELEASE_ON_ABORT", "a_leased_slot_stays"),
        ("FIRST_RANK", "a_leased_slot_stays"),
        ("TELL_ON_ABORT", "blocks_stay_until_told"),
        ("FREE_ON_SECOND_FINISH", "blocks_stay_until_told"),
        ("FREE_UNSENT_ABORT", "only_who_waits_is_told"),
        ("OFFER_FAILED_AGAIN", "failed_data_is_not_offered_again"),
        ("TELL_DOOMED", "nothing_is_computed_on_bad_data"),
        ("TELL_FAILED", "nothing_is_computed_on_bad_data"),
        ("DROP_UNSENT", "every_load_is_told"),
        ("NO_NOTICE", "every_load_is_told"),
        ("LEASE_ENDS_TWICE", "conservation"),
        ("LEASE_LEAKS", "every_lease_ends"),
        defines=SYNC,
    ),
    *mutants(
        "load",
        ("FAIL_ON_EXPIRY", "a_leased_slot_stays"),
        defines=EXPIRY,
    ),
    *mutants(
        "load",
        ("END_AT_EXPIRY", "a_leased_slot_stays"),
        ("EXPIRY_IS_SUCCESS", "nothing_is_computed_on_bad_data"),
        ("FORGET_EXPIRED", "what_expired_stays"),
        ("SILENT_DROP", "every_load_is_told"),
        depth_first=True,
        defines=EXPIRY,
    ),
    *mutants("load", ("ANNOUNCE_SUCCESS", "a_load_is_told_once"), depth_first=True, defines=SYNC),
    Check("load", "NO_NOTICE", "loads_are_told", SYNC, claim=True),
    *mutants(
        "store",
        ("HOLD_BLOCKS", "no_block_is_held_for_a_store"),
        ("CHECK_THEN_USE", "state_is_as_expected"),
        ("STORE_WHAT_IS_ON_ITS_WAY", "one_slot_per_key"),
        ("FREE_WHAT_ONE_RANK_SKIPPED", "slot_is_written_by_its_owner_only"),
        ("FREE_ON_RESET", "slot_is_written_by_its_owner_only"),
        ("COMMIT_ON_FIRST_RANK", "readable_means_stored_on_every_rank"),
        ("GATHER_LATE", "readable_means_stored_on_every_rank"),
        ("LOSE_THE_SKIPPED", "conservation"),
        ("FORGET_UNSAVED", "every_reservation_ends"),
        depth_first=True,
    ),
    Check("store", "FORGET_UNSAVED", "reservations_end", (*SYNC, *ONE_BLOCK), claim=True),
    *mutants(
        "proof",
        ("BELIEVE_POOL", "nothing_wrong_is_kept"),
        ("NO_WITNESS", "nothing_wrong_is_kept"),
        ("ANSWER_FIRST", "nothing_wrong_is_kept"),
        ("KEEP_PROOF", "nothing_wrong_is_kept"),
        depth_first=True,
        defines=(*SYNC, "-DMAX_LEAVING=2"),
    ),
    *mutants(
        "proof",
        ("KEEP_WHAT_FOLLOWS", "nothing_wrong_is_kept"),
        ("BELIEVE_WHAT_IS_REWRITTEN", "nothing_wrong_is_kept"),
        ("READ_BEFORE_IT_IS_WRITTEN", "nothing_wrong_is_kept"),
        ("FORGET_THE_ANSWER", "what_came_is_kept"),
        depth_first=True,
    ),
    Check("reuse", "two_incarnations"),
    Check("reuse", "claim", claim=True),
    *mutants(
        "reuse",
        ("COUNT_BY_ID", "told_when_every_rank_has_ended"),
        ("TWO_NOTICES", "told_when_every_rank_has_ended"),
        ("LOAD_BESIDE_A_NOTICE", "a_failure_meets_its_owner"),
        ("PASS_STALE", "only_who_waits_is_told"),
    ),
    *mutants(
        "reuse",
        ("MATCH_BY_ID", "told_when_every_rank_has_ended"),
        ("TELL_FAILED", "nothing_is_computed_on_bad_data"),
        ("DROP_THE_LATER", "every_load_is_told"),
        depth_first=True,
    ),
    Check("reuse", "DROP_THE_LATER", "loads_are_told", claim=True),
    Check("fence", "streams"),
    Check("fence", "claim", claim=True),
    *mutants(
        "fence",
        ("NO_FENCE", "a_gather_reads_what_was_computed"),
        ("GATHER_BESIDE_COMPUTE", "a_gather_reads_what_was_computed"),
        ("FENCE_BEFORE_ZEROING", "nothing_is_computed_on_an_unfinished_load"),
        ("RUN_BEFORE_REPORT", "nothing_is_computed_on_an_unfinished_load"),
        ("COPY_BEFORE_GATHER", "a_slot_holds_its_key"),
        ("RING_BACK_AFTER_GATHER", "a_slot_holds_its_key"),
    ),
    Check("fence", "RING_LEAKS", "everything_happens", claim=True),
    Check("backlog", "async"),
    *mutants("backlog", ("TRUST_POOL", "a_gather_reads_its_key"), ("NO_POOL_CHECK", "a_gather_reads_its_key")),
    Check("lost_rank", "one_of_two"),
    Check("lost_rank", "claim", claim=True),
    *mutants(
        "lost_rank",
        ("FREE_ON_TIMEOUT", "memory_in_doubt_is_not_reused"),
        ("PROOF_OF_ONE_RANK", "memory_in_doubt_is_not_reused"),
        ("NO_QUARANTINE", "memory_in_doubt_is_shown"),
        ("COMMIT_ON_TIMEOUT", "readable_means_stored_on_every_rank"),
        ("TELL_ON_TIMEOUT", "nothing_is_computed_on_bad_data"),
        ("BLAME_EVERYBODY", "a_rank_that_speaks_is_not_named"),
        ("JUDGE_BY_OLD_SILENCE", "who_is_named_is_missing"),
        ("PROOF_IGNORED", "proof_ends_the_quarantine"),
        ("KEEP_A_LATE_LEASE", "without_loss_everything_ends"),
        ("NOT_COUNTED", "conservation"),
        ("NO_TIMEOUT", "a_lost_rank_fails_the_engine"),
        ("ANY_WORD_VOUCHES", "a_lost_rank_fails_the_engine"),
        ("COUNT_AGE", "a_rank_that_speaks_is_not_named"),
        ("COUNT_A_REST", "a_rank_that_speaks_is_not_named"),
    ),
    Check("lost_rank", "NO_TIMEOUT", "loss_fails_the_engine", claim=True),
    Check("shared_slot", "deaths"),
    *mutants(
        "shared_slot",
        ("NO_SECOND_LOOK", "a_reader_sees_its_key"),
        ("IGNORE_THE_BIT", "a_reader_sees_its_key"),
        ("PUBLISH_EARLY", "a_reader_sees_its_key"),
        ("KEY_BEHIND_THE_WORD", "a_reader_sees_its_key"),
        ("SHUTDOWN_ENDS_LEASES", "a_reader_sees_its_key"),
        ("SHUTDOWN_FREES", "nobody_writes_beside_the_writer"),
        ("SHUTDOWN_CLEANS_UP", "nobody_writes_beside_the_writer"),
        ("SWEEP_BESIDE_A_RANK", "nobody_writes_beside_the_writer"),
        ("FREE_WHAT_WAS_FILLING", "nobody_writes_beside_the_writer"),
        ("NO_GRACE", "nobody_writes_beside_the_writer"),
        ("SWEEP_WITHOUT_PROOF", "the_living_are_not_swept"),
        ("KEEP_THE_BIT", "nothing_is_lost"),
        ("KEEP_THE_CHUNK", "nothing_is_lost"),
    ),
    Check("shared_slot", "damage", defines=DAMAGE),
    *mutants(
        "shared_slot",
        ("EVICT_WITHDRAWN", "what_is_withdrawn_is_not_used"),
        ("BURY_WITHDRAWN", "what_is_withdrawn_is_not_used"),
        ("LEASE_WITHDRAWN", "what_is_withdrawn_is_not_used"),
        ("WITHDRAW_BEHIND_THE_LEASE", "what_is_withdrawn_was_broken"),
        defines=DAMAGE,
    ),
    Check("shared_slot", "owner reads", defines=OWNER_READS),
    *mutants("shared_slot", ("A_FREE_WORD_STAYS_FREE", "what_is_withdrawn_is_not_used"), defines=OWNER_READS),
)
