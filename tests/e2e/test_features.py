# SPDX-License-Identifier: Apache-2.0
"""What vLLM can do beside completing a prompt, on the real engine: right tokens, tier hits, and nothing is kept."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .engine_runs import BLOCK_TOKENS, EngineRunner, Prompts, generate, num_tokens_from_tier, settle
from .idle_checks import assert_nothing_is_kept

Results = dict[str, dict[str, Any]]

NUM_GPU_BLOCKS = 44
TIER_BYTES = 128 << 20
PROMPT_TOKENS = 300
NUM_HIT_TOKENS = PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS

LOSE = {"op": "reset_prefix_cache"}
LOSE_ALL = {"op": "reset_prefix_cache", "reset_connector": True}
SAMPLED = {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 12}
LOGPROBS = {"prompt_logprobs": 0, "max_tokens": 4}
STRUCTURED = {"structured_outputs": {"regex": "(ab|cde){20}"}, "max_tokens": 30}
# The tiny tokenizer has the 256 bytes in the order of their visible stand-ins, which begin with "!".
STRUCTURED_IDS = [ord(letter) - ord("!") for letter in "abcde"]
SHORT = {"max_tokens": 8}
PREFIX_BLOCKS = 5


def wanting(**params: Any) -> dict[str, Any]:
    """Return the sampling of a request with these ``kv_transfer_params``."""
    return {**SHORT, "extra_args": {"kv_transfer_params": params}}


def talk() -> dict[str, Any]:
    """A completion of two tokens only, so that some drafts are right and some are wrong, and a follow-up of it."""
    prompt, more = Prompts(seed=10).make(230), Prompts(seed=12).make(40)
    sampling = {"max_tokens": 60, "allowed_token_ids": [5, 9]}
    return {"op": "follow_up", "prompt": prompt, "more": more, "sampling": sampling}


def ask(prompts: list[list[int]], sampling: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The operation `ask`."""
    return {"op": "ask", "prompts": prompts, "sampling": sampling, **options}


def requests_script() -> Results:
    """Named operations; "… again" finds its blocks in the tier only, once they have got there."""
    prompts = Prompts(seed=9)
    sampled, logged, unlogged, structured, salted = prompts.many(5, PROMPT_TOKENS)
    unwanted, limited, cut = Prompts(seed=11).many(3, PROMPT_TOKENS)
    crowd = prompts.many(7, 6 * BLOCK_TOKENS)  # with one more block each the pool is too small
    return {
        "sampled": ask([sampled], SAMPLED),
        "settled 1": settle(),
        "lost 1": LOSE,
        "sampled again": ask([sampled], SAMPLED),
        "unlogged": ask([unlogged], SHORT),
        "settled 2": settle(),
        "lost 2": LOSE,
        "logged": ask([unlogged], LOGPROBS),
        "logged first": ask([logged], LOGPROBS),
        "settled 3": settle(),
        "lost 3": LOSE,
        "unlogged again": ask([logged], {"max_tokens": 4}),
        "structured": ask([structured], STRUCTURED),
        "settled 4": settle(),
        "lost 4": LOSE,
        "structured again": ask([structured], STRUCTURED),
        "salted": ask([salted], SHORT, salt="one"),
        "settled 5": settle(),
        "lost 5": LOSE,
        "salted otherwise": ask([salted], SHORT, salt="two"),
        "salted again": ask([salted], SHORT, salt="one"),
        "unwanted": ask([unwanted], {**SAMPLED, **wanting(do_not_store=True)}),
        "limited": ask([limited], wanting(max_offload_tokens=(PREFIX_BLOCKS + 1) * BLOCK_TOKENS - 1)),
        "cut first": ask([cut], SHORT),
        "settled 7": settle(),
        "lost 7": LOSE,
        "unwanted again": ask([unwanted], SHORT),
        "limited again": ask([limited], SHORT),
        "cut": ask([cut], wanting(max_load_tokens=(PREFIX_BLOCKS + 1) * BLOCK_TOKENS - 1)),
        "by priority": ask(crowd, {"max_tokens": 40}, priorities=[1, 1, 0, 1, 0, 1, 1]),
        "settled 6": settle(),
        "lost 6": LOSE,
        "kept": ask([salted], SHORT, salt="one"),
        "lost all": LOSE_ALL,
        "gone": ask([salted], SHORT, salt="one"),
        "talk": talk(),
        "settled": settle(),
        "end": {"op": "inspect"},
    }


@pytest.fixture(scope="module")
def requests_runs(runner: EngineRunner) -> tuple[Results, Results]:
    """Results by operation without and with the connector."""

    def results(kv_config: dict[str, Any] | None) -> Results:
        options: dict[str, Any] = {"skip_tokenizer_init": False, "scheduling_policy": "priority"}
        if kv_config is not None:
            # Its own cache's events, to nobody.
            options["kv_events_config"] = {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": "inproc://kvferry",
            }
        return runner.run_named(
            requests_script(),
            kv_config,
            num_gpu_blocks=NUM_GPU_BLOCKS,
            max_num_seqs=8,
            options=options,
        )

    return results(None), results(runner.kv_config(cpu_bytes_to_use=TIER_BYTES))


@pytest.mark.parametrize("operation", [name for name, one in requests_script().items() if one["op"] == "ask"])
def test_requests_of_any_kind_get_the_tokens_that_they_get_without_the_tier(
    requests_runs: tuple[Results, Results], operation: str
) -> None:
    without, with_tier = requests_runs
    assert with_tier[operation]["tokens"] == without[operation]["tokens"]


def test_parallel_samples_share_what_the_tier_has(requests_runs: tuple[Results, Results]) -> None:
    _, with_tier = requests_runs
    (samples,) = with_tier["sampled again"]["tokens"]
    assert len({tuple(tokens) for tokens in samples}) == SAMPLED["n"], "samples are equal: nothing was shown"
    # Each of them loads it, or finds it in the engine's cache behind the first.
    counters = with_tier["sampled again"]["counters"]
    assert num_tokens_from_tier(with_tier["sampled again"]) >= NUM_HIT_TOKENS
    assert counters["local_compute"] <= 3 * BLOCK_TOKENS


def test_requests_store_and_load_no_more_than_they_want(requests_runs: tuple[Results, Results]) -> None:
    _, with_tier = requests_runs
    # Each of the parallel samples has the wish.
    assert num_tokens_from_tier(with_tier["unwanted again"]) == 0
    for operation in ("limited again", "cut"):
        assert num_tokens_from_tier(with_tier[operation]) == PREFIX_BLOCKS * BLOCK_TOKENS


def test_prompt_logprobs_are_computed_and_their_blocks_stored(requests_runs: tuple[Results, Results]) -> None:
    without, with_tier = requests_runs
    for operation in ("logged", "logged first"):
        assert num_tokens_from_tier(with_tier[operation]) == 0
        (logprobs,) = with_tier[operation]["prompt_logprobs"]
        assert len(logprobs) == PROMPT_TOKENS
        assert logprobs[1:] == pytest.approx(without[operation]["prompt_logprobs"][0][1:], abs=1e-4)
    assert num_tokens_from_tier(with_tier["unlogged again"]) == NUM_HIT_TOKENS


def test_structured_output_obeys_its_grammar_behind_a_hit(requests_runs: tuple[Results, Results]) -> None:
    _, with_tier = requests_runs
    assert num_tokens_from_tier(with_tier["structured again"]) == NUM_HIT_TOKENS
    assert with_tier["structured again"]["tokens"] == with_tier["structured"]["tokens"]
    (tokens,) = with_tier["structured"]["tokens"][0]
    letters = dict(zip(STRUCTURED_IDS, "abcde", strict=True))
    assert re.fullmatch("(ab|cde)*(c|cd|a)?", "".join(letters[token] for token in tokens))


def test_blocks_of_another_salt_are_not_found(requests_runs: tuple[Results, Results]) -> None:
    _, with_tier = requests_runs
    assert num_tokens_from_tier(with_tier["salted otherwise"]) == 0
    assert num_tokens_from_tier(with_tier["salted again"]) == NUM_HIT_TOKENS


def test_requests_preempted_by_priority_are_resumed(requests_runs: tuple[Results, Results]) -> None:
    without, with_tier = requests_runs
    assert without["by priority"]["num_preemptions"] > 0
    assert with_tier["by priority"]["num_preemptions"] > 0
    assert num_tokens_from_tier(without["by priority"]) == 0


def test_reset_takes_the_tier_along_if_it_is_told_to(requests_runs: tuple[Results, Results]) -> None:
    _, with_tier = requests_runs
    assert with_tier["lost all"]["done"]
    assert num_tokens_from_tier(with_tier["kept"]) == NUM_HIT_TOKENS
    assert num_tokens_from_tier(with_tier["gone"]) == 0


def test_nothing_is_kept_behind_requests_of_any_kind(requests_runs: tuple[Results, Results]) -> None:
    _, with_tier = requests_runs
    assert_nothing_is_kept(with_tier["end"])


# One of several connectors, in an engine core of its own process, which proposes drafts and is paused


@pytest.fixture(scope="module")
def paused_run(runner: EngineRunner, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results by operation; loads take some tenths of a second, so that pauses come in the middle."""
    prompts = Prompts(seed=11)
    batch = prompts.many(3, PROMPT_TOKENS)
    pauses = {
        mode: {
            "op": "pause_while_loading",
            "prompts": batch,
            "max_tokens": 8,
            "mode": mode,
            "clear_cache": mode == "abort",
            "pause_s": 0.5,
        }
        for mode in ("keep", "wait", "abort")
    }
    script = {
        "first": generate(batch, max_tokens=8),
        # Through the wrapper, by the process that serves the metrics.
        "settled": {
            "op": "await_figure",
            "name": "vllm:kvferry_stored_blocks",
            "least": 3 * NUM_HIT_TOKENS / BLOCK_TOKENS,
        },
        "lost 1": LOSE,
        "keep": pauses["keep"],
        "lost 2": LOSE,
        "wait": pauses["wait"],
        "lost 3": LOSE,
        "abort": pauses["abort"],
        "talk": talk(),
        "settled again": generate([[2]], max_tokens=1),
        "end": {"op": "metrics"},
    }
    tier = runner.kv_config(cpu_bytes_to_use=TIER_BYTES, host_link={"latency_us": 100_000})
    beside = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path_factory.mktemp("example"))},
    }
    both = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [tier, beside]},
    }
    return runner.run_named(
        script,
        both,
        num_gpu_blocks=NUM_GPU_BLOCKS,
        multiprocessing=True,
        options={
            "disable_hybrid_kv_cache_manager": True,
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 4,
                "prompt_lookup_max": 3,
                "prompt_lookup_min": 1,
            },
        },
        # As it is served: with vLLM's log of the figures too.
        environment={"VLLM_LOGGING_LEVEL": "INFO"},
    )


@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_requests_that_load_outlast_a_pause(paused_run: Results, mode: str) -> None:
    result = paused_run[mode]
    assert result["is_paused"]
    for index, tokens in enumerate(paused_run["first"]["tokens"]):
        assert result["ends"][f"paused-{index}"]["tokens"] == tokens
        assert result["ends"][f"behind-{index}"]["tokens"] == tokens
    assert num_tokens_from_tier(result) == 3 * NUM_HIT_TOKENS


def test_requests_that_a_pause_aborts_end_and_those_behind_it_are_computed(paused_run: Results) -> None:
    result = paused_run["abort"]
    assert result["is_paused"]
    for index, tokens in enumerate(paused_run["first"]["tokens"]):
        assert result["ends"][f"paused-{index}"]["reason"] == "abort"
        assert result["ends"][f"behind-{index}"]["tokens"] == tokens


def test_follow_up_of_a_text_made_with_drafts_finds_it_in_the_tier(
    paused_run: Results, requests_runs: tuple[Results, Results]
) -> None:
    said, without = paused_run["talk"], requests_runs[0]["talk"]
    assert 0 < said["drafts"]["accepted"] < said["drafts"]["proposed"], said["drafts"]
    for part in ("first", "second"):
        assert said[part]["tokens"] == without[part]["tokens"]
    # All whole blocks of the text but its last token, whose KV was not computed.
    assert num_tokens_from_tier(said["second"]) == (said["num_text_tokens"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_one_of_several_connectors_shows_its_figures_and_keeps_nothing(paused_run: Results) -> None:
    end = paused_run["end"]
    assert end["vllm:kvferry_loaded_blocks"] > 0
    for name in ("loads_in_flight", "tier_blocks/leased", "tier_blocks/dying", "tier_blocks/quarantined"):
        assert end[f"vllm:kvferry_{name}"] == 0, name
