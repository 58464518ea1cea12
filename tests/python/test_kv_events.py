# SPDX-License-Identifier: Apache-2.0
"""The engine's KV events say what the tier holds, in enough words for a router."""

import gc
import weakref

import pytest
import vllm
from event_mirror import EventMirror, chunks_of
from harness import prompt_of
from scenarios import HYBRID, MODELS, PROMPTS, Make, again, store_all
from sessions import TAKES_HASHES_BACK, add_turn, begin_session, close_session
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.request import Request


@pytest.mark.parametrize("model", [*MODELS, pytest.param({"num_context_ranks": 2, "world_size": 2}, id="divided")])
def test_a_stored_block_is_told_with_its_tokens_and_the_block_before(make: Make, model: dict[str, object]) -> None:
    engine = make(kv_events=True, **model)
    mirror = EventMirror(engine)
    engine.generate(PROMPTS)
    engine.settle_stores()
    # By what the requests say, block by block.
    size = engine.hash_tokens
    assert size == engine.spec.block_size * engine.spec.num_context_ranks
    blocks = {}
    for request in engine.requests.values():
        hashes = [maybe_convert_block_hash(block_hash) for block_hash in request.block_hashes]
        parents = [None, *hashes]
        tokens = chunks_of(request.all_token_ids, size)
        blocks |= {block_hash: (parents[i], tokens[i]) for i, block_hash in enumerate(hashes)}
    assert mirror.num_held() == engine.snapshot()["num_evictable"] > 0
    for event in mirror.stored:
        assert event.block_size == size
        assert len(event.token_ids) == size * len(event.block_hashes)
        assert event.lora_name is None
        parent = event.parent_block_hash
        for block_hash, token_ids in zip(event.block_hashes, chunks_of(event.token_ids, size), strict=True):
            assert blocks[block_hash] == (parent, token_ids)
            parent = block_hash
    groups = engine.kv_cache_config.kv_cache_groups
    assert {event.group_idx for event in mirror.stored} == set(range(len(groups)))
    if model == HYBRID:
        assert {(e.kv_cache_spec_kind, e.kv_cache_spec_sliding_window) for e in mirror.stored} == {
            ("full_attention", None),
            ("sliding_window", engine.spec.sliding_window),
        }
    # Neighbours come together.
    assert len(mirror.stored) < mirror.num_held() // 2


def test_blocks_that_leave_are_told(make: Make) -> None:
    engine = make({"cpu_bytes_to_use": 12 * 6144}, kv_events=True)
    mirror = EventMirror(engine)
    engine.generate(PROMPTS)
    engine.settle_stores()
    view = engine.snapshot()
    assert view["num_evicted_total"] > 0
    assert mirror.num_held() == view["num_evictable"]
    engine.scheduler.reset_connector_cache()
    engine.generate({"another": PROMPTS["c"][:20]})  # A step that publishes.
    engine.settle_stores()
    assert mirror.num_held() == engine.snapshot()["num_evictable"] <= 1


def test_a_failed_load_takes_its_blocks_away(make: Make) -> None:
    engine = make({"host_link": {"fail_probability": 0.3, "seed": 2}}, kv_events=True)
    mirror = EventMirror(engine)
    for attempt in range(20):
        store_all(engine)
        engine.generate(again(f"-{attempt}"))
        engine.settle_stores()
        assert mirror.num_held() == engine.snapshot()["num_evictable"]
    assert engine.snapshot()["failed_loads"] > 0


def test_blocks_that_are_loaded_stay(make: Make) -> None:
    engine = make(kv_events=True)
    mirror = EventMirror(engine)
    store_all(engine)
    before = {group: set(held) for group, held in mirror.held.items()}
    engine.generate(again("'"))
    assert sum(engine.external_hit_tokens.values()) > 0
    assert all(mirror.held[group] >= held for group, held in before.items())


def test_a_salt_is_told(make: Make) -> None:
    engine = make(kv_events=True)
    mirror = EventMirror(engine)
    engine.add("salted", PROMPTS["a"], options={"cache_salt": "pepper"})
    engine.run()
    engine.settle_stores()
    first = next(event for event in mirror.stored if event.parent_block_hash is None)
    assert first.extra_keys is not None
    assert first.extra_keys[0] == ("pepper",)


def test_what_is_remembered_of_requests_is_bounded(make: Make) -> None:
    engine = make({"cpu_bytes_to_use": 12 * 6144}, kv_events=True)
    events = engine.scheduler.connector.scheduler_side._events
    for turn in range(20):
        engine.generate({f"{name}-{turn}": prompt_of(100 * turn + i, 100) for i, name in enumerate("abc")})
        engine.add(f"queued-{turn}", PROMPTS["a"])
        engine.abort(f"queued-{turn}")
    assert not events._living
    # As many hashes as the pool has blocks, and one request's more.
    assert len(events._places) <= engine.spec.num_blocks + 6
    assert len(events._ended) <= engine.spec.num_blocks


def test_ten_thousand_streaming_sessions_leave_nothing_behind(make: Make) -> None:
    num_at_once = 250
    # Four rounds show it too: all of them are played under the newest vLLM.
    num_rounds = 40 if vllm.__version__.startswith("0.33") else 4
    engine = make(kv_events=True, num_layers=1, num_blocks=1025, max_num_seqs=256, max_num_batched_tokens=8192)
    events = engine.scheduler.connector.scheduler_side._events
    # By identity: vLLM's requests compare by their place in the queue.
    alive: weakref.WeakValueDictionary[int, Request] = weakref.WeakValueDictionary()
    num_made = 0
    for turn in range(num_rounds):
        ids = [f"{turn}-{i}" for i in range(num_at_once)]
        for i, request_id in enumerate(ids):
            # The first turn's last token, which the second one takes back, ends a block.
            num_made += 1
            alive[num_made] = begin_session(engine, request_id, [turn, i, *prompt_of(turn, 29)], 1)
        engine.run()
        engine.settle_stores()  # Steps that publish, and so give a place to what will be taken back.
        for i, request_id in enumerate(ids):
            add_turn(engine, request_id, prompt_of(i, 20), 1)
        engine.run()
        for request_id in ids:
            close_session(engine, request_id)
        engine.run()
        engine.requests.clear()
        engine.finished.clear()
    assert num_made == num_rounds * num_at_once
    assert not events._living
    # As many hashes as the pool has blocks, and one request's more.
    assert len(events._places) <= engine.spec.num_blocks + 4
    gc.collect()
    assert len(alive) <= len(events._ended) + 1


@pytest.mark.skipif(not TAKES_HASHES_BACK, reason="vLLM before 0.32 leaves the hash of what it takes back")
def test_what_a_session_took_back_is_told_without_tokens_that_it_has_not(make: Make) -> None:
    engine = make(kv_events=True)
    mirror = EventMirror(engine)
    session = begin_session(engine, "session", prompt_of(3, 31), 1)
    engine.run()
    first = list(session.block_hashes)
    assert len(first) == 2
    engine.generate({"other": prompt_of(4, 47)})  # Steps that publish.
    engine.settle_stores()
    events = engine.scheduler.connector.scheduler_side._events
    assert first[1] in events._places
    add_turn(engine, "session", prompt_of(5, 40), 1)
    engine.run()
    engine.settle_stores()
    assert session.block_hashes[1] != first[1]
    assert first[1] not in events._places
    told = {
        block_hash: tokens
        for event in mirror.stored
        for block_hash, tokens in zip(event.block_hashes, chunks_of(event.token_ids, 16), strict=True)
    }
    for block_hash, tokens in zip(session.block_hashes[:4], chunks_of(session.all_token_ids[:64], 16), strict=True):
        assert told[maybe_convert_block_hash(block_hash)] == tokens


def test_without_events_nothing_is_noted(make: Make) -> None:
    engine = make()
    store_all(engine)
    assert engine.scheduler.connector.scheduler_side.engine.take_key_events() == []
