# SPDX-License-Identifier: Apache-2.0
"""The operation `storm` of an engine process: many requests at once, random aborts, and a look at every step."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from kvferry import engines

if TYPE_CHECKING:
    from .engine_process import Engine

DEADLINE_S = 240.0
SLOT_STATES = (
    "num_free",
    "num_writable",
    "num_aborted",
    "num_evictable",
    "num_leased",
    "num_dying",
    "num_quarantined",
)


@dataclasses.dataclass
class _Life:
    """One submission of a request; an aborted one may get a second life under the same id.

    ``said`` is the beginning of the answer, with the two best tokens of each position, where an earlier life brought
    it: the prompt goes on with it.
    """

    index: int
    external_id: str
    internal_id: str = ""
    said: list[int] = dataclasses.field(default_factory=list)
    said_best: list[Any] = dataclasses.field(default_factory=list)
    rolled: set[str] = dataclasses.field(default_factory=set)
    output: Any = None
    aborted: str | None = None
    aborted_in_step: int = 0

    def report(self) -> dict[str, Any]:
        """What came out, with the two best tokens of each position."""
        tokens = list(self.output.token_ids) if self.output else []
        steps = (self.output.logprobs or []) if self.output else []
        ranked = [sorted(step.items(), key=lambda item: item[1].rank)[:2] for step in steps]
        best = [[[token, entry.logprob] for token, entry in step] for step in ranked]
        return {
            "request": self.index,
            "aborted": self.aborted,
            "tokens": self.said + tokens,
            "best": self.said_best + best,
        }


class Storm:
    """Keeps `window` requests in the engine until all have ended; aborts some by the real API.

    Parameters
    ----------
    engine
        In this process, so that the scheduler can be looked at between two steps.
    requests
        ``{"prompt": tokens, "max_tokens": n}`` in order of submission.
    window
        Requests in the engine at once.
    abort_chances
        State to the chance that a request is aborted when it is first seen in it: ``"unscheduled"`` (right
        after its submission), ``"loading"``, ``"loaded"`` (reported, not scheduled yet), ``"preempted"``,
        ``"prefilled"``, ``"decoding"`` (in the middle of its answer), ``"stopping"`` (while its last step
        runs), ``"stopped"`` (when it has ended). Half of the aborts are made twice, and half of the aborted
        requests come again under the same id.
    reset_chance
        Of emptying the engine's cache and the tier, at each step; 0 is never, else it happens at every fifth step
        with a load on its way and every fortieth with a store too.
    resize_chance
        Of asking for another size of the tier, at each step.
    follow_chance
        Of asking on: an answer that has ended is asked for once more, with its own beginning behind the prompt, so
        that blocks of generated tokens are read again.
    seed
        Of everything random here.
    """

    def __init__(
        self,
        engine: Engine,
        requests: list[dict[str, Any]],
        window: int,
        abort_chances: dict[str, float],
        reset_chance: float,
        follow_chance: float,
        seed: int,
        resize_chance: float = 0.0,
    ) -> None:
        self.engine = engine
        self.front = engine.llm.llm_engine
        self.waiting = list(reversed(list(enumerate(requests))))
        self.requests = requests
        self.window = window
        self.chances = abort_chances
        self.reset_chance = reset_chance
        self.resize_chance = resize_chance
        self.sizes: set[int] = set()
        self.follow_chance = follow_chance
        self.random = random.Random(seed)
        self.living: dict[str, _Life] = {}
        self.ended: list[_Life] = []
        self.again: list[_Life] = []
        self.follow_ups: list[_Life] = []
        self.echoes: list[str] = []  # Internal ids whose abort is repeated after the next step.
        self.rolls: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def run(self) -> dict[str, Any]:
        """Run to the end; what every life brought and how often each thing was seen."""
        before = self.engine.counters(), self.engine.num_preemptions()
        forget = self.count_steps_without_forward()
        deadline = time.monotonic() + DEADLINE_S
        while self.waiting or self.again or self.follow_ups or self.living or self.engine.has_work():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not idle after {DEADLINE_S} s: {dict(self.seen)}, living {list(self.living)}")
            self.submit()
            self.abort_while_the_last_step_runs()
            for output in self.front.step():
                self.take(output)
            self.seen["steps"] += 1
            self.repeat_aborts()
            self.abort_some()
            self.reset_sometimes()
            self.resize_sometimes()
            self.look_at_the_tier()
        forget()
        after = self.engine.counters(), self.engine.num_preemptions()
        return {
            "lives": [life.report() for life in self.ended],
            "seen": dict(self.seen) | {"sizes": len(self.sizes)},
            "num_preemptions": after[1] - before[1],
            "counters": {source: after[0][source] - before[0].get(source, 0) for source in after[0]},
        }

    def submit(self) -> None:
        """Fill the window."""
        from vllm import SamplingParams

        ready = [life for life in self.again if self.may_come_again(life)]
        while len(self.living) < self.window and (ready or self.follow_ups or self.waiting):
            if ready:
                earlier = ready.pop(0)
                self.again.remove(earlier)
                life = _Life(earlier.index, earlier.external_id, said=earlier.said, said_best=earlier.said_best)
                self.seen["came again"] += 1
            elif self.follow_ups:
                life = self.follow_ups.pop(0)
                self.seen["followed up"] += 1
            else:
                index, _ = self.waiting.pop()
                life = _Life(index, f"storm-{index}")
            request = self.requests[life.index]
            num_left = request["max_tokens"] - len(life.said)
            sampling = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, max_tokens=num_left, logprobs=2)
            prompt = {"prompt_token_ids": request["prompt"] + life.said}
            life.internal_id = self.front.add_request(life.external_id, prompt, sampling)
            self.living[life.external_id] = life
            self.maybe_abort(life, "unscheduled")

    def may_come_again(self, life: _Life) -> bool:
        """At once; if the engine gives ids no suffix, when it has forgotten the id and its steps (vllm#51637)."""
        from vllm import envs

        if not envs.VLLM_DISABLE_REQUEST_ID_RANDOMIZATION:
            return True
        # Tokens of a step still in flight would be taken for those of the new request, by the engine itself.
        are_steps_over = self.seen["steps"] > life.aborted_in_step + 2
        return are_steps_over and life.internal_id not in self.engine.scheduler.requests

    def take(self, output: Any) -> None:
        """Keep what a request has brought so far."""
        life = self.living.get(output.request_id)
        if life is None:
            raise AssertionError(f"{output.request_id} brought an output after its end")
        life.output = output.outputs[0]
        if output.finished:
            self.living.pop(life.external_id)
            self.ended.append(life)
            if self.roll(life, "stopped"):  # The client's abort crosses the last output.
                self.front.abort_request([life.external_id])
                self.front.engine_core.abort_requests([life.internal_id])
                self.seen["aborted stopped"] += 1
            self.follow_up(life)

    def follow_up(self, life: _Life) -> None:
        """Ask on where an answer of some blocks has ended, once for each request."""
        tokens, best = life.report()["tokens"], life.report()["best"]
        if life.said or len(tokens) < 50 or self.random.random() >= self.follow_chance:
            return
        kept = self.random.randrange(40, len(tokens))
        follow_up = _Life(life.index, f"{life.external_id}-on", said=tokens[:kept], said_best=best[:kept])
        self.follow_ups.append(follow_up)

    def state_of(self, request: Any) -> str:
        """Where a request is, in the words of `abort_chances`."""
        from vllm.v1.request import RequestStatus

        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            has_ended = request.request_id in self.engine.scheduler.finished_recving_kv_req_ids
            return "loaded" if has_ended else "loading"
        if request.status == RequestStatus.PREEMPTED:
            return "preempted"
        if request.status != RequestStatus.RUNNING:
            return "waiting"
        if request.num_output_tokens == 0:
            return "prefilling"
        if request.num_output_tokens >= request.max_tokens - 1:
            return "stopping"
        return "decoding" if request.num_output_tokens > request.max_tokens // 2 else "prefilled"

    def abort_some(self) -> None:
        """Look where every request is, and abort some."""
        for life in list(self.living.values()):
            request = self.engine.scheduler.requests[life.internal_id]
            state = self.state_of(request)
            if state not in life.rolled:
                self.seen[state] += 1
            if state != "stopping":
                self.maybe_abort(life, state)

    def abort_while_the_last_step_runs(self) -> None:
        """As the engine core's input thread does: `step` finds the abort when the model has run."""
        for life in list(self.living.values()):
            request = self.engine.scheduler.requests.get(life.internal_id)
            if request is None or self.state_of(request) != "stopping" or not self.roll(life, "stopping"):
                continue
            self.end(life, "stopping")
            aborted = self.front.output_processor.abort_requests([life.external_id], internal=False)
            self.engine.core.aborts_queue.put_nowait(aborted)
            self.echoes.append(life.internal_id)

    def maybe_abort(self, life: _Life, state: str) -> None:
        """Abort by the real API, sometimes twice."""
        if not self.roll(life, state):
            return
        self.end(life, state)
        self.front.abort_request([life.external_id])
        if self.random.random() < 0.5:
            self.front.abort_request([life.external_id])
            self.front.engine_core.abort_requests([life.internal_id])
            self.echoes.append(life.internal_id)

    def roll(self, life: _Life, state: str) -> bool:
        """Whether a request is aborted in this state: asked once for each. The first always is."""
        chance = self.chances.get(state, 0.0)
        if state in life.rolled:
            return False
        life.rolled.add(state)
        self.rolls[state] += 1
        return self.random.random() < chance or (chance > 0 and self.rolls[state] == 1)

    def end(self, life: _Life, state: str) -> None:
        """Nothing more may come of this life."""
        life.aborted = state
        life.aborted_in_step = self.seen["steps"]
        self.seen[f"aborted {state}"] += 1
        self.living.pop(life.external_id)
        self.ended.append(life)
        if self.random.random() < 0.5:
            self.again.append(life)

    def repeat_aborts(self) -> None:
        """Abort once more what was aborted before the last step; its id may have come again since."""
        living = {life.internal_id for life in self.living.values()}
        for internal_id in self.echoes:
            if internal_id not in living:
                self.front.engine_core.abort_requests([internal_id])
                self.seen["aborted twice"] += 1
        self.echoes.clear()

    def reset_sometimes(self) -> None:
        """Empty the engine's cache and the tier, whatever is on its way."""
        if not self.reset_chance:
            return
        tier = self.engine.tier()
        is_loading = tier["num_loads_in_flight"] > 0 and self.seen["steps with loads in flight"] % 5 == 2
        is_storing = tier["num_stores_in_flight"] > 0 and self.seen["steps with stores in flight"] % 40 == 39
        if self.random.random() >= self.reset_chance and not is_loading and not is_storing:
            return
        self.seen["resets while loading"] += tier["num_loads_in_flight"] > 0
        self.seen["resets while storing"] += tier["num_stores_in_flight"] > 0
        scheduler = self.engine.scheduler
        # The engine refuses to preempt all while blocks are held by something else than a running request.
        held = scheduler.kv_holding_waiting or len(scheduler.requests) > sum(scheduler.get_request_counts())
        preempt = not held and self.engine.core.batch_queue is None
        self.seen["resets that preempt"] += preempt
        self.front.reset_prefix_cache(reset_running_requests=preempt, reset_connector=True)
        tier = self.engine.tier()
        if tier["num_evictable"] or tier["num_leased"] or tier["num_writable"]:
            raise AssertionError(f"blocks from before a reset can still be served: {tier}")

    def resize_sometimes(self) -> None:
        """Ask for a tier of half to one and a half times its size, or of any other, as ``kvferry tier resize`` does."""
        if not self.resize_chance:
            return
        self.sizes.add(self.engine.tier()["num_slots"])
        if self.random.random() >= self.resize_chance:
            return
        for found in engines.living():
            if found.state.pid == os.getpid() and not found.state.why_fixed:
                share = self.random.choice([1 / 3, 2 / 3, 1.0, self.random.uniform(0.01, 1)])
                found.ask(int(share * found.state.limit_bytes))
                self.seen["resizes while loading"] += self.engine.tier()["num_loads_in_flight"] > 0
                self.seen["resizes while storing"] += self.engine.tier()["num_stores_in_flight"] > 0

    def look_at_the_tier(self) -> None:
        """Every slot is in one state; and how full the tier is."""
        if not self.engine.is_kvferry():
            return
        tier = self.engine.tier()
        if sum(tier[state] for state in SLOT_STATES) != tier["num_slots"]:
            raise AssertionError(f"slots are lost or counted twice: {tier}")
        self.seen["steps with a full tier"] += tier["num_free"] == 0 < tier["num_slots"]
        # Of the steps since it was full first.
        self.seen["steps with room"] += tier["num_free"] > 0 and self.seen["steps with a full tier"] > 0
        self.seen["steps with loads in flight"] += tier["num_loads_in_flight"] > 0
        self.seen["steps with stores in flight"] += tier["num_stores_in_flight"] > 0

    def count_steps_without_forward(self) -> Any:
        """Count the steps in which the model runner returns early; returns what ends the counting."""
        core = self.engine.core
        original = core.post_step

        def post_step(model_executed: bool) -> None:
            self.seen["steps without forward"] += not model_executed
            original(model_executed=model_executed)

        core.post_step = post_step

        def forget() -> None:
            core.post_step = original

        return forget


def storm(
    engine: Engine,
    requests: list[dict[str, Any]],
    window: int,
    abort_chances: dict[str, float],
    reset_chance: float,
    follow_chance: float,
    seed: int,
    resize_chance: float = 0.0,
) -> dict[str, Any]:
    """The operation; see `Storm`."""
    return Storm(engine, requests, window, abort_chances, reset_chance, follow_chance, seed, resize_chance).run()
