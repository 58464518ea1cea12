# SPDX-License-Identifier: Apache-2.0
"""vllm#42085 with the KV caches of model families: stores that end late cost no step and hold no block."""

import math
from pathlib import Path
from typing import Any

import pytest
from event_mirror import CachedHashes
from harness import Finished, ToyEngine, ToySpec, prompt_of
from model_families import NEEDS_FAMILIES, Setting, family_names
from scenarios import assert_at_rest, steps_of
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

pytestmark = NEEDS_FAMILIES

# The model that the issue names, and how many steps late the engine hears of the end of a store.
REPORTED, LAGS = "deepseek_v4_flash", (1, 4, 12, 1000)
# Eleven steps of prefill, the last of which gives the first token, and three of decoding.
MAX_TOKENS = 4
NAMES = ("first", "second")


class LongRequests:
    """Two requests of eleven steps' tokens, one after the other, in a pool of 1.15 times what one of them may hold."""

    def __init__(self, folder: Path, setting: Setting, *, is_async: bool) -> None:
        self.setting = setting
        # As in the issue, which has 8,192 tokens in a step and 90,000 in a request.
        self.step_tokens = 4 * setting.unit
        self.num_tokens = 90_000 * self.step_tokens // 8192
        self.prompts = {name: prompt_of(i, self.num_tokens) for i, name in enumerate(NAMES)}
        self._folder = folder
        self._spec = setting.spec(
            max_num_batched_tokens=self.step_tokens,
            max_model_len=self.num_tokens + setting.hit_tokens,
            async_scheduling=is_async,
            num_drafts=0,
            extra_config=None,
        )
        roomy = self.make_engine(num_blocks=10_000)
        requests = get_max_concurrency_for_kv_cache_config(roomy.config, roomy.kv_cache_config)
        self._num_blocks = math.ceil(1.15 * 10_000 / requests) + 1

    def make_engine(self, **more: Any) -> ToyEngine:
        """Make an engine of the family."""
        engine = ToyEngine(self._folder, ToySpec(**{"num_blocks": 0, **self._spec, **more}))
        self.setting.prepare(engine)
        # Tokens tell of wrong cells, too; and there are many cells.
        engine.workers[0].model.check_kv = False
        return engine

    def make_short_of_blocks(self, config: dict[str, Any] | None) -> ToyEngine:
        """Make an engine with that pool; with a connector, its rank has registered."""
        engine = self.make_engine(num_blocks=self._num_blocks, extra_config=config)
        if config is not None:
            engine.generate({"warm up": prompt_of(3, self.setting.hit_tokens - 1)}, 1)
        return engine

    def run_both(self, engine: ToyEngine) -> tuple[list[int], dict[str, Finished]]:
        """Run both; return the steps that each takes, and how it ends."""
        num_steps = [steps_of(engine, name, self.prompts[name], MAX_TOKENS) for name in NAMES]
        return num_steps, {name: engine.finished[name] for name in NAMES}


CASES = [(REPORTED, lag, is_async) for lag in LAGS for is_async in (False, True)]
CASES += [(name, 4, False) for name in family_names() if name != REPORTED]


@pytest.mark.parametrize(("name", "lag", "is_async"), CASES)
def test_two_long_requests_take_their_steps_however_late_their_stores_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, lag: int, is_async: bool
) -> None:
    setting = Setting.of(name, monkeypatch)
    requests = LongRequests(folder, setting, is_async=is_async)
    num_steps, expected = requests.run_both(requests.make_short_of_blocks(None))
    if name == REPORTED:
        assert num_steps == ([15, 15] if is_async else [14, 14])
    room = 2 * requests.num_tokens * setting.token_bytes
    config = {"cpu_bytes_to_use": room, "staging_bytes": room // 5, "retention": "engine", "min_load_tokens": 0}
    engine = requests.make_short_of_blocks(config)
    rank = engine.workers[0]
    rank.report_delay = lag - 1
    if lag == 1:
        engine.on_step = lambda engine: rank.wait_for_copies()
    cached = CachedHashes(engine)
    assert requests.run_both(engine) == (num_steps, expected)
    if lag > sum(num_steps):
        assert engine.snapshot()["stored"] == 0, "the engine heard of a store in time: nothing was shown"
    if lag == 1:
        engine.settle_stores()
        # With asynchronous scheduling the last block of a text is cached after its request has ended.
        assert 0 <= cached.num_blocks() - engine.snapshot()["stored"] <= (3 * len(NAMES) if is_async else 0)
        engine.drop_gpu_cache()
        rank.model.check_kv = True
        engine.add("again", requests.prompts["first"], MAX_TOKENS)
        engine.run()
        boundary = (requests.num_tokens - 1) // setting.hit_tokens * setting.hit_tokens
        assert engine.external_hit_tokens["again"] == boundary
        assert engine.finished["again"] == expected["first"]
    else:
        engine.settle_stores()
        assert engine.snapshot()["stored"] > 0
    assert engine.snapshot()["failed_stores"] == 0
    assert_at_rest(engine)
    engine.close()
