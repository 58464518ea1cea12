# SPDX-License-Identifier: Apache-2.0
"""What an engine records, and what `kvferry why` makes of it: held against what the tests know by themselves."""

import json
import os
import random
import stat
import time
import types
from pathlib import Path
from typing import Any

import pytest
from event_mirror import EventMirror
from harness import ToyEngine, expected_tokens, prompt_of
from kvferry import _core, recordings
from kvferry.activity import ActivityReader
from kvferry.block_history import Reason
from kvferry.cli.app import app
from kvferry.errors import ConfigError, Error
from kvferry.story import Fate, Lookup, Missing, Stories, Story, merged
from random_lives import NUM_TOKENS, live, random_link, random_prompts
from scenarios import (
    HYBRID,
    PROMPTS,
    SLOW_LOADS,
    STORE_ALL,
    Make,
    again,
    leave_to_the_tier,
    make_with_damage_found,
    start_loading,
    store_all,
)
from seeds import seed_range
from test_core_options import SCHEDULER_OPTIONS
from typer.testing import CliRunner
from vllm.distributed.kv_events import KVEventBatch

pytestmark = pytest.mark.usefixtures("own_dumps")
LEFT = {Reason.EVICTED, Reason.FORGOTTEN, Reason.CHUNK_GONE, Reason.DAMAGED}


def stories_of(engine: ToyEngine) -> Stories:
    return Stories(_core.RecordingFile(str(engine.recording)))


def story_of(engine: ToyEngine, request: str) -> Story:
    stories = stories_of(engine)
    return stories.of(stories.find(request)[-1])


def last_answer(story: Story) -> Lookup:
    return [one for one in story.lookups if one.num_found is not None][-1]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None, result.output
    return result.output


# ---- why blocks are missing ----


def test_a_prompt_that_nobody_had(make: Make) -> None:
    engine = make()
    engine.generate(PROMPTS)
    answer = last_answer(story_of(engine, "a"))
    assert (answer.num_local_tokens, answer.num_tokens, answer.num_found) == (0, 100, 0)
    [missing] = answer.missing
    assert (missing.group, missing.token, missing.reason) == (0, 0, Reason.NEVER_OFFERED)
    assert "was never stored" in run("why", "a", "--file", str(engine.recording))


def test_a_prompt_that_the_tier_has(make: Make) -> None:
    engine = make()
    store_all(engine)
    first = story_of(engine, "b")
    assert first.num_stored == 9
    engine.generate({"again": PROMPTS["b"] + prompt_of(9, 40)})
    story = story_of(engine, "again")
    answer = last_answer(story)
    assert answer.num_found == 144
    assert [(one.token, one.reason) for one in answer.missing] == [(144, Reason.NEVER_OFFERED)]
    [load] = story.loads
    assert (load.num_tokens, load.fate) == (144, Fate.LOADED)
    assert load.planned_ns is not None
    assert load.ended_ns is not None
    assert load.begun_ns <= load.planned_ns <= load.ended_ns
    text = run("why", "again", "--file", str(engine.recording))
    assert "the tier has 144 after them" in text
    assert "load of 144 tokens: loaded" in text
    assert "ended on every rank after" in text


def test_a_block_that_was_evicted(make: Make) -> None:
    engine = make({**STORE_ALL, "cpu_bytes_to_use": 12 * 6144})
    engine.generate({"a": PROMPTS["a"]})
    engine.settle_stores()
    engine.generate({"b": PROMPTS["b"]})
    leave_to_the_tier(engine)
    engine.generate({"again": PROMPTS["a"]})
    [missing] = last_answer(story_of(engine, "again")).missing
    assert missing.reason is Reason.EVICTED
    assert missing.since_ns is not None
    assert missing.stored_ns is not None
    assert 0 < missing.since_ns < missing.stored_ns
    assert "was evicted, to make room for others, " in run("why", "again", "--file", str(engine.recording))


def test_a_block_that_was_declined(make: Make) -> None:
    engine = make({"eviction": "lru", "admission": "second_offer", "cpu_bytes_to_use": 12 * 6144})
    engine.generate({"b": PROMPTS["b"]})
    engine.settle_stores()
    engine.generate({"a": PROMPTS["a"]}, max_tokens=1)
    assert 0 < (declined := story_of(engine, "a").skipped[Reason.DECLINED]) <= 6
    assert f"{declined} the tier's policy did not admit it" in run("why", "a", "--file", str(engine.recording))


def test_a_block_that_a_reset_took(make: Make) -> None:
    engine = make()
    store_all(engine)
    engine.scheduler.reset_connector_cache()
    engine.generate({"again": PROMPTS["a"]})
    assert last_answer(story_of(engine, "again")).missing[0].reason is Reason.FORGOTTEN


def test_a_block_whose_bytes_changed(make: Make) -> None:
    engine = make_with_damage_found(make)
    engine.generate(again("2"))
    missing = [one for name in again("2") for one in last_answer(story_of(engine, name)).missing]
    assert [one.reason for one in missing].count(Reason.DAMAGED) == 1
    texts = [run("why", name, "--file", str(engine.recording)) for name in again("2")]
    assert sum("was withdrawn: a rank found that its bytes are not what was stored" in text for text in texts) == 1


def test_a_block_whose_store_failed(make: Make) -> None:
    engine = make({"host_link": {"fail_probability": 1.0}})
    engine.generate({"a": PROMPTS["a"]})
    engine.settle_stores()
    assert story_of(engine, "a").num_failed_stores > 0
    engine.drop_gpu_cache()
    engine.generate({"again": PROMPTS["a"]})
    assert last_answer(story_of(engine, "again")).missing[0].reason is Reason.STORE_FAILED


def test_a_block_that_is_being_stored(make: Make) -> None:
    engine = make({"host_link": {"d2h_gb_s": 0.00002}})
    engine.generate({"a": PROMPTS["a"]})
    engine.drop_gpu_cache()
    engine.generate({"again": PROMPTS["a"]})
    assert last_answer(story_of(engine, "again")).missing[0].reason is Reason.BEING_STORED


def test_a_block_that_its_request_did_not_want_stored(make: Make) -> None:
    engine = make()
    engine.add("a", PROMPTS["a"], extra_args={"kv_transfer_params": {"do_not_store": True}})
    engine.run()
    engine.settle_stores()
    engine.drop_gpu_cache()
    engine.generate({"again": PROMPTS["a"]})
    assert last_answer(story_of(engine, "again")).missing[0].reason is Reason.UNWANTED


def test_a_window_that_is_not_there(make: Make) -> None:
    engine = make({**STORE_ALL, "retention": "engine"}, **HYBRID)
    engine.generate({"b": PROMPTS["b"]})
    leave_to_the_tier(engine)
    # A load of the first 96 tokens would need the window before them, which the engine itself does not retain.
    engine.generate({"fork": PROMPTS["b"][:96] + prompt_of(9, 40)})
    answer = last_answer(story_of(engine, "fork"))
    assert answer.num_found is not None
    assert answer.num_found < 96
    assert {one.group for one in answer.missing} == {1}


# ---- loads ----


def test_loads_that_end_in_other_ways(make: Make) -> None:
    # This engine steps without a pause while the load is under way, which fills a small ring within a second.
    engine = make({"host_link": SLOW_LOADS, "recorder_bytes": "64MiB"})
    store_all(engine)
    start_loading(engine, "under way", PROMPTS["b"])
    assert [load.fate for load in story_of(engine, "under way").loads] == [Fate.UNDER_WAY]
    engine.add("waits", PROMPTS["b"])
    engine.step()
    waiting = story_of(engine, "waits").lookups[-1]
    assert (waiting.num_found, waiting.awaited) == (None, "under way")
    assert "under way is loading the same prefix" in run("why", "waits", "--file", str(engine.recording))
    engine.abort("under way")
    engine.run()
    assert [load.fate for load in story_of(engine, "under way").loads] == [Fate.ABORTED]


def test_a_load_that_fails(make: Make) -> None:
    for nth in range(1, 100):
        engine = make({"host_link": {"fail_nth": nth}})
        store_all(engine)
        engine.generate(again("2"))
        if engine.failed_loads:
            break
    assert engine.failed_loads, "no run failed a load: nothing was shown"
    name = engine.failed_loads[0]
    [load] = [one for one in story_of(engine, name).loads if one.fate is Fate.FAILED]
    assert load.ended_ns is not None
    assert load.told_ns is not None
    assert load.ended_ns < load.told_ns
    assert "tokens: failed" in run("why", name, "--file", str(engine.recording))


def test_lookups_with_the_same_answer_are_one_if_the_reasons_are_the_same() -> None:
    def asked_at(at_ns: int, *missing: Missing) -> Lookup:
        return Lookup(at_ns, num_local_tokens=0, num_tokens=64, num_found=32, awaited="", missing=missing)

    never = Missing(group=0, token=32, reason=Reason.NEVER_OFFERED)
    # The answer is kept while nothing is evicted, although the block has come since.
    there = [Missing(group=0, token=32, reason=Reason.THERE, since_ns=ago, stored_ns=ago) for ago in (10, 20)]
    one, other = merged([asked_at(1, never), asked_at(2, never), asked_at(3, there[0]), asked_at(4, there[1])])
    assert (one.at_ns, one.times, one.missing) == (1, 2, (never,))
    assert (other.at_ns, other.times, other.missing) == (3, 2, (there[0],))


# ---- against an oracle ----


class Oracle:
    """What the tier has had, from the events that it publishes, and each lookup as the engine got it."""

    def __init__(self, engine: ToyEngine) -> None:
        self._mirror = EventMirror(engine)
        self.answers: dict[str, list[tuple[int, int | None, str]]] = {}
        side = engine.scheduler.connector.scheduler_side
        self._lookup = side._lookup
        side._lookup = self._look
        self._reset = side.reset_cache
        self._side = side
        side.reset_cache = self._on_reset

    def _on_reset(self) -> None:
        self._reset()
        # The engine takes the events at the end of its next step, behind the lookups.
        self._mirror.take(KVEventBatch(ts=0.0, events=self._side.take_events()))

    def _look(self, request_id: str, hashes: list[Any], num_local_tokens: int, num_tokens: int) -> int | None:
        found: int | None = self._lookup(request_id, hashes, num_local_tokens, num_tokens)
        what = ""
        if found is not None:
            block = (num_local_tokens + found) // 16
            most = min(len(hashes), num_tokens // 16)
            if block < most:
                missing = hashes[block]
                # If it is there, the tier was not asked, because an earlier load of this id is still being announced as
                # failed; or the answer is one from before the block came.
                if _as_event(missing) not in self._mirror.held[0]:
                    what = "left" if _as_event(missing) in self._mirror.had else "never"
        self.answers.setdefault(request_id, []).append((num_local_tokens, found, what))
        return found


def _as_event(block_hash: Any) -> Any:
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    return maybe_convert_block_hash(block_hash)


@pytest.mark.parametrize("seed", seed_range(3))
def test_stories_of_a_random_life_are_what_happened(make: Make, folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    engine = make(
        {
            "cpu_bytes_to_use": 30 * 6144, "staging_bytes": 8 * 6144, "host_link": random_link(rng, seed),
            "recorder_bytes": "64MiB",
        },
        kv_events=True,
        num_blocks=36,
    )  # fmt: skip
    oracle = Oracle(engine)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS)
    num_steps = int(os.environ.get("KVFERRY_LIFE_STEPS", "1500"))
    live(engine, rng, prompts, expected, f"seed {seed}", num_steps=num_steps)
    stories = stories_of(engine)
    told: dict[str, list[tuple[int, int | None, str]]] = {}
    for number, name in stories.requests():
        story = stories.of(number)
        assert story.request == name
        for one in story.lookups:
            what = ""
            if one.num_found is not None and one.missing:
                missing = one.missing[0]
                what = "left" if missing.stored_ns is not None else "never"
                assert (missing.reason in LEFT) <= (what == "left")
                # An answer from before the block came, as `Oracle` does not know it.
                what = "" if missing.reason is Reason.THERE else what
            told.setdefault(name, []).extend([(one.num_local_tokens, one.num_found, what)] * one.times)
    assert told == oracle.answers
    assert sum(map(len, told.values())) > num_steps // 5


@pytest.mark.parametrize("seed", seed_range(2))
@pytest.mark.parametrize("model", [pytest.param({}, id="plain"), pytest.param(HYBRID, id="hybrid")])
def test_the_core_decides_the_same_again(
    make: Make, folder: Path, is_async: bool, seed: int, model: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    engine = make(
        {
            "cpu_bytes_to_use": 60 * 6144, "staging_bytes": 8 * 6144, "host_link": random_link(rng, seed),
            "recorder_bytes": "64MiB",
        },
        async_scheduling=is_async, num_blocks=49, world_size=2, **model,
    )  # fmt: skip
    live(engine, rng, prompts, expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **model), f"seed {seed}")
    num_calls, num_events, difference, last_error = _core.replay_recording(str(engine.recording))
    assert (difference, last_error) == (None, None)
    assert num_calls > 400
    assert num_events > num_calls
    assert ": the same" in run("replay", str(engine.recording))


# ---- files ----


def test_the_file_is_its_users_alone_and_goes_with_its_engine(make: Make) -> None:
    engine = make()
    path = engine.recording
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [found] = [one for one in recordings.find() if one.path == path]
    assert found.is_alive
    assert found.pid == os.getpid()
    engine.close()
    assert not path.exists()


def test_no_token_is_in_it(make: Make) -> None:
    engine = make()
    prompt = prompt_of(77, 100)
    engine.generate({"secret": prompt})
    content = engine.recording.read_bytes()
    assert b"secret" in content  # the id is
    for width in (2, 4, 8):
        assert b"".join(token.to_bytes(width, "little") for token in prompt[:8]) not in content


def test_nothing_is_recorded_if_nobody_wants_it(make: Make) -> None:
    engine = make({"recorder_bytes": 0})
    engine.generate(PROMPTS)
    assert engine.scheduler.connector.scheduler_side._recorder.path is None


def test_an_engine_works_without_room_for_a_recording(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log_lines: list[str]
) -> None:
    monkeypatch.setattr(recordings, "new_path", lambda **_: tmp_path / "none" / "recording")
    engine = make()
    engine.generate(PROMPTS)
    [line] = [line for line in log_lines if "`kvferry why` will have no answer" in line]
    assert "recorder_bytes" in line


def test_a_small_shared_memory_gets_a_small_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recordings.ring_bytes(100_000, str(tmp_path)) == 131072
    usage = type("Usage", (), {"free": 64 << 20})
    monkeypatch.setattr(recordings.shutil, "disk_usage", lambda of: usage)
    assert recordings.ring_bytes(64 << 20) == 8 << 20
    assert recordings.ring_bytes(64 << 20, is_rank=True) == 1 << 20
    assert recordings.ring_bytes(4 << 20, is_rank=True) == 1 << 19
    usage.free = 0
    assert recordings.ring_bytes(64 << 20) == 1 << 16


def test_a_dump_of_a_living_engine_tells_the_same(make: Make, own_dumps: Path) -> None:
    engine = make()
    store_all(engine)
    dumped = Path(run("dump", "--file", str(engine.recording)).strip())
    assert dumped.parent == own_dumps
    engine.generate({"later": PROMPTS["a"]})
    stories = Stories(_core.RecordingFile(str(dumped)))
    assert [name for _, name in stories.requests()] == list(PROMPTS)
    assert stories.of(stories.find("b")[0]).num_stored == story_of(engine, "b").num_stored
    with pytest.raises(ConfigError, match="no request is called 'later'"):
        stories.find("later")
    assert not next(one for one in recordings.find() if one.path == dumped).is_alive


def test_only_so_many_dumps_are_kept(make: Make, own_dumps: Path) -> None:
    engine = make({"recorder_bytes": "64KiB"})
    for i in range(recordings.MOST_DUMPS + 3):
        dumped = recordings.dump(engine.recording)
        dumped.rename(dumped.with_name(f"{i:03d}{recordings.SUFFIX}"))
        os.utime(own_dumps / f"{i:03d}{recordings.SUFFIX}", (i, i))
    kept = sorted(path.name for path in own_dumps.iterdir())
    assert len(kept) == recordings.MOST_DUMPS
    assert kept[-1] == f"{recordings.MOST_DUMPS + 2:03d}{recordings.SUFFIX}"


def test_what_a_killed_engine_left_is_collected_by_the_next(make: Make, own_dumps: Path) -> None:
    path = recordings.new_path()
    engine = _core.SchedulerEngine(**SCHEDULER_OPTIONS, recorder_path=str(path), recorder_ring_bytes=1 << 16)
    for name in PROMPTS:
        engine.on_request(name, [], None, None)
    make()
    assert path.exists()
    # As a killed process leaves it: the file is there, and nobody has it locked.
    engine.close()
    make()
    assert not path.exists()
    [dumped] = own_dumps.iterdir()
    stories = Stories(_core.RecordingFile(str(dumped)))
    assert [name for _, name in stories.requests()] == list(PROMPTS)


def test_an_error_that_ends_the_engine_keeps_the_recording(make: Make, log_lines: list[str]) -> None:
    engine = make()
    engine.generate({"a": PROMPTS["a"]})
    side = engine.scheduler.connector.scheduler_side
    path = engine.recording
    meta = types.SimpleNamespace(reports=[b"no report"])
    output = types.SimpleNamespace(invalid_block_ids=None, failed_recving=None, kv_connector_worker_meta=meta)
    with pytest.raises(Error):
        side.on_worker_output(output)
    assert any(str(path) in line for line in log_lines)
    engine.close()
    try:
        assert "the last call ended as recorded" in run("replay", str(path))
    finally:
        path.unlink()


def test_what_other_users_could_have_written_is_not_found(make: Make) -> None:
    engine = make()
    path = engine.recording
    assert path in {one.path for one in recordings.find()}
    path.chmod(0o644)
    assert path not in {one.path for one in recordings.find()}
    # A file that the user names is read (test_recording_refusals.py).
    assert recordings.look_at(path).is_alive


# ---- top ----


def test_top_counts_what_the_engine_counts(make: Make) -> None:
    engine = make({**STORE_ALL, "cpu_bytes_to_use": 12 * 6144})
    reader = ActivityReader(str(engine.recording), 1000.0)
    assert reader.read().num_requests == 0
    store_all(engine)
    engine.generate({"again": PROMPTS["c"]})
    engine.settle_stores()
    now, view = reader.read(time.monotonic_ns()), engine.snapshot()
    assert now.num_requests == len(PROMPTS) + 1
    assert now.num_running == 0
    assert now.stored_blocks == view["stored"]
    assert now.evicted_blocks == view["num_evicted_total"] > 0
    assert now.loaded_tokens == view["hit_tokens"] > 0
    assert now.readable_blocks == view["num_evictable"]
    assert [load.request for load in now.slowest] == ["again"]
    [seen] = [one for one in json.loads(run("top", "--json")) if one["num_requests"] == now.num_requests]
    assert seen["engine"] == os.getpid()
    assert "again" in run("top", "--once", "--seconds", "1000")


def test_top_says_what_it_does_not_know(make: Make) -> None:
    engine = make({"recorder_bytes": "64KiB"})
    reader = ActivityReader(str(engine.recording), 1000.0)
    for i in range(40):
        engine.generate({f"r{i}": prompt_of(100 + i, 150)}, max_tokens=40)
    assert reader.read().readable_blocks is None
    assert "lost what was before" in run("why", "r39", "--file", str(engine.recording))
