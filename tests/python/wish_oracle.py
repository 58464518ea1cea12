# SPDX-License-Identifier: Apache-2.0
"""Requests that want things of the tier, and whether the tier does what they want."""

import random
from typing import Any

from event_mirror import EventMirror
from harness import ToyEngine
from toy_worker import kvferry_of
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.request import Request

COUNTS = ("max_load_tokens", "max_offload_tokens")


def wanting(**params: Any) -> dict[str, Any]:
    """Return what to give to ``SamplingParams`` of a request with these ``kv_transfer_params``."""
    return {"extra_args": {"kv_transfer_params": params}}


def random_wishes(rng: random.Random) -> dict[str, Any]:
    """Return wishes of any kind as `wanting` does, or none; a few cannot be read."""
    params: dict[str, Any] = {name: rng.choice([0, rng.randrange(160)]) for name in COUNTS if rng.random() < 0.4}
    if rng.random() < 0.3:
        params["do_not_store"] = rng.random() < 0.5
    if rng.random() < 0.1:
        params[rng.choice(COUNTS)] = rng.choice([-1, "64", 1.5, True, [], {}])
    return wanting(**params) if params else {}


def limit_of(request: Request, name: str) -> int | None:
    """Return a request's limit; None: it has none."""
    value = (request.kv_transfer_params or {}).get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class WishOracle:
    """Watches one engine, which has to publish KV events, from before its first request on."""

    def __init__(self, engine: ToyEngine, *, prompt_only: bool = False) -> None:
        self._prompt_only = prompt_only
        self._hash_tokens = engine.hash_tokens
        self._mirror = EventMirror(engine)
        self._requests: list[Request] = []
        self._wanted: set[Any] = set()
        self._seen: set[Any] = set()
        self._side = kvferry_of(engine.scheduler.connector).scheduler_side
        self._watch(engine)

    @property
    def stored(self) -> set[Any]:
        """Hashes of the blocks that the tier has had."""
        return self._mirror.had

    @property
    def num_unwanted(self) -> int:
        """Blocks that requests have had and none of them wanted stored."""
        return len(self._seen - self._wanted)

    def check(self) -> None:
        """Nothing was stored that no request wanted stored."""
        self._look()
        assert self.stored <= self._wanted, f"{len(self.stored - self._wanted)} blocks were stored that nobody wanted"

    def _watch(self, engine: ToyEngine) -> None:
        add_request, on_allocated, on_step = engine.scheduler.add_request, self._side.on_allocated, engine.on_step

        def add(request: Request) -> None:
            if request.request_id not in engine.scheduler.requests:
                self._requests.append(request)
            add_request(request)

        def allocated(request: Request, blocks: Any, num_external_tokens: int) -> None:
            limit = limit_of(request, "max_load_tokens")
            assert limit is None or num_external_tokens <= limit, f"{num_external_tokens} tokens are loaded: {limit}"
            on_allocated(request, blocks, num_external_tokens)

        def step(engine: ToyEngine) -> None:
            if on_step is not None:
                on_step(engine)
            self._look()

        engine.scheduler.add_request = add
        self._side.on_allocated = allocated
        engine.on_step = step

    def _look(self) -> None:
        """Note what each request wants stored of what it has."""
        for request in list(self._requests):
            hashes = [maybe_convert_block_hash(block_hash) for block_hash in request.block_hashes]
            self._seen.update(hashes)
            self._wanted.update(hashes[: self._most_tokens(request) // self._hash_tokens])
            if request.is_finished():
                self._requests.remove(request)

    def _most_tokens(self, request: Request) -> int:
        if (request.kv_transfer_params or {}).get("do_not_store") is True:
            return 0
        limits = [request.num_prompt_tokens if self._prompt_only else request.num_tokens]
        if (limit := limit_of(request, "max_offload_tokens")) is not None:
            limits.append(limit)
        return min(limits)
