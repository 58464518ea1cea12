# SPDX-License-Identifier: Apache-2.0
"""Requests whose clients say things of blocks, and which promises there have to be."""

import random
from typing import Any

from harness import ToyEngine
from kvferry.vllm.client_hints import HintReader
from toy_worker import kvferry_of
from vllm.v1.request import Request

ACTIONS = ("retain", "release", "demote", "prefetch")
SESSIONS = ("", "s0", "s0", "s1", "s1", "s2")
# No promise of a test ends by itself.
LONG_S = 3600


def hinting(session: str, *actions: tuple[str, Any]) -> dict[str, Any]:
    """Return what to give to ``SamplingParams`` of a request whose client says these things."""
    said = [
        {"action_id": str(i), "action_type": kind, "action_version": "1", "payload": payload}
        for i, (kind, payload) in enumerate(actions)
    ]
    params: dict[str, Any] = {"kv_hints": {"protocol_version": "1", "message_id": "m", "actions": said}}
    if session:
        params["session_id"] = session
    return {"extra_args": {"kv_transfer_params": params}}


def random_hints(rng: random.Random) -> dict[str, Any]:
    """Return hints of any kind as `hinting` does, or none; a few cannot be read."""
    if rng.random() < 0.3:
        return {}
    actions: list[tuple[str, Any]] = []
    for _ in range(rng.randrange(1, 3)):
        payload: dict[str, Any] = {"ttl_s": LONG_S}
        if rng.random() < 0.3:
            payload["session_id"] = rng.choice(SESSIONS[1:])
        if rng.random() < 0.1:
            payload["ttl_s"] = rng.choice([-1, "5", None, True])
        actions.append((rng.choice([*ACTIONS, "retain", "unknown"]), payload))
    return hinting(rng.choice(SESSIONS), *actions)


class HintOracle:
    """Follows from outside which owner has promised what, and compares the counts that the core shows."""

    def __init__(self, engine: ToyEngine) -> None:
        self._engine = engine
        self._reader = HintReader()
        self._owners: set[tuple[str, str]] = set()
        self._at_end: dict[str, tuple[tuple[str, str], str, Request]] = {}
        self.num_retained = 0
        side = kvferry_of(engine.scheduler.connector).scheduler_side
        self._on_new_request, self._on_finished = side.on_new_request, side.on_finished
        self._reset = side.reset_cache
        side.on_new_request, side.on_finished = self._new_request, self._finished
        side.reset_cache = self._reset_cache

    def check(self) -> None:
        """Compare the number of promises, as far as the core shows it."""
        view = self._engine.snapshot()
        if view["hints_refused"] == 0:
            assert view["num_promises"] == len(self._owners), f"{view['num_promises']} promises, {self._owners}"
        # What had no room is not promised, and this does not know which.
        assert view["num_promises"] <= len(self._owners)
        assert view["num_stays"] <= view["num_slots"]
        assert (view["num_promised"] == 0) or self._owners
        assert view["hints_expired"] == 0

    def _new_request(self, request: Request) -> None:
        self._end(request.request_id)
        self._on_new_request(request)
        session, hints = self._reader.read(request)
        own = ("session", session) if session else ("request", request.request_id)
        for kind, _, named in hints:
            owner = ("session", named) if named else own
            if owner == own and kind in ("retain", "demote"):
                self._at_end[request.request_id] = (own, kind, request)
            elif kind in ("release", "demote"):
                self._owners.discard(owner)
            elif kind == "prefetch" and owner == own and request.block_hashes:
                self._owners.add(owner)
        self.check()

    def _finished(self, request: Request) -> None:
        self._on_finished(request)
        self._end(request.request_id)
        self.check()

    def _end(self, request_id: str) -> None:
        if request_id not in self._at_end:
            return
        owner, kind, request = self._at_end.pop(request_id)
        # Without a whole block there is nothing to promise.
        if kind == "retain" and request.block_hashes:
            self._owners.add(owner)
            self.num_retained += 1
        else:
            self._owners.discard(owner)

    def _reset_cache(self) -> None:
        self._reset()
        self._owners.clear()
        self.check()
