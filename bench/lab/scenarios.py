# SPDX-License-Identifier: Apache-2.0
"""What is measured: lives of requests and steps of the engine, the same for every connector, turn by turn."""

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from hook_clock import Cost
from rigs import BLOCK_TOKENS, KINDS, LONG_TOKENS, MAX_SEQS, Rig

LONG_BLOCKS = LONG_TOKENS // BLOCK_TOKENS
NUM_IDLE = 500
_SHORT_TOKENS = 2048
_VOCABULARY = 1000
_WARM_STEPS = 20
_WARM_DECODES = 8

Progress = Callable[[str], None]


class BrokenRunError(Exception):
    """A connector did not do what the scenario is about, so that its figures mean nothing."""


@dataclass
class Samples:
    """What one connector cost in one scenario: a cost for each sample."""

    costs: list[Cost] = field(default_factory=list)

    @property
    def ns(self) -> list[float]:
        """Nanoseconds of each sample."""
        return [cost.ns for cost in self.costs]

    @property
    def median_ns(self) -> float:
        """Median nanoseconds."""
        return median(self.ns)

    @property
    def worst(self) -> tuple[float, str]:
        """The median over samples of the dearest call of a sample, and the hook that most often was it."""
        hooks = [cost.worst_hook for cost in self.costs]
        return median(cost.worst_ns for cost in self.costs), max(set(hooks), key=hooks.count)

    def by_hook(self) -> dict[str, float]:
        """Hook to its median nanoseconds."""
        hooks = {hook for cost in self.costs for hook in cost.by_hook}
        return {hook: median(cost.by_hook.get(hook, 0.0) for cost in self.costs) for hook in sorted(hooks)}


Results = dict[str, dict[str, Samples]]
"""Scenario to connector to samples."""


class Bench:
    """Runs the scenarios.

    Parameters
    ----------
    num_rounds
        Samples of each scenario.
    num_residents
        128k-token requests that the tier holds before anything is measured.
    progress
        Called with what is being done.

    Attributes
    ----------
    results
        What was measured.
    request_ns
        Nanoseconds that vLLM took to make and hash a 128k-token request, one per request.

    """

    def __init__(self, num_rounds: int, num_residents: int, progress: Progress) -> None:
        self._num_rounds = num_rounds
        self._progress = progress
        self._rng = np.random.default_rng(0)
        self.results: Results = {}
        self.request_ns: list[int] = []
        # Room for 64 requests of 2k tokens and what they decode here; more than a 128k-token request needs.
        decoded = 2 * (BLOCK_TOKENS + _WARM_DECODES) * num_rounds // BLOCK_TOKENS + 2
        self._num_blocks = MAX_SEQS * (_SHORT_TOKENS // BLOCK_TOKENS + decoded + 3)
        # Residents, warm-up, a miss per round, and what the short requests leave.
        short_blocks = 2 * self._num_blocks  # Running requests of two scenarios.
        self._num_slots = (num_residents + 1 + num_rounds) * LONG_BLOCKS + short_blocks
        self._residents = [self._prompt(LONG_TOKENS) for _ in range(num_residents)]

    def run(self) -> None:
        """Run everything. Python's garbage collector works between samples only."""
        gc.disable()
        rigs: list[Rig] = []
        try:
            self._progress("starting the engines")
            rigs.extend(Rig(kind, self._num_blocks, self._num_slots) for kind in KINDS)
            self._fill(rigs)
            self._lives(rigs)
            self._decode(rigs)
            self._empty(rigs)
            self._waiting(rigs, "wait")
            self._fill_up(rigs)
            self._evicting_lives(rigs)
            self._waiting(rigs, "wait_evicting")
            self.request_ns = [ns for rig in rigs for ns in rig.request_ns]
        finally:
            for rig in rigs:
                rig.close()
            gc.unfreeze()
            gc.enable()

    def _prompt(self, num_tokens: int) -> list[int]:
        return [int(token) for token in self._rng.integers(0, _VOCABULARY, num_tokens)]

    def _note(self, scenario: str, rig: Rig, cost: Cost) -> None:
        self.results.setdefault(scenario, {}).setdefault(rig.kind.name, Samples()).costs.append(cost)

    def _turns(self, rigs: Sequence[Rig], what: str) -> Iterable[list[Rig]]:
        """Yield the rigs once a round, another one first each time."""
        for turn in range(self._num_rounds):
            self._progress(f"{what}, round {turn + 1} of {self._num_rounds}")
            for rig in rigs:
                rig.clock.take()
                rig.clock.calibrate()
            first = turn % len(rigs)
            yield [*rigs[first:], *rigs[:first]]
            gc.collect()

    def _fill(self, rigs: Sequence[Rig]) -> None:
        """Store the residents, and warm up."""
        for i, prompt in enumerate([*self._residents, self._prompt(LONG_TOKENS)]):
            self._progress(f"filling the tiers, request {i + 1} of {len(self._residents) + 1}")
            for rig in rigs:
                rig.life(prompt)
        for rig in rigs:
            stored, expected = rig.num_stored, (len(self._residents) + 1) * LONG_BLOCKS
            if stored < expected:
                raise BrokenRunError(f"{rig.kind.name} stored {stored} of {expected} blocks")
            self._hit(rig, self._residents[0])
        gc.collect()
        gc.freeze()

    def _hit(self, rig: Rig, prompt: Sequence[int]) -> Cost:
        rig.drop_gpu_cache()
        before = rig.hit_tokens
        cost = rig.life([*prompt, 0])  # The last token is always computed: so the hit is the whole prompt.
        if rig.hit_tokens - before != LONG_TOKENS:
            raise BrokenRunError(f"{rig.kind.name} hit {rig.hit_tokens - before} of {LONG_TOKENS} tokens")
        return cost

    def _lives(self, rigs: Sequence[Rig]) -> None:
        for turn, order in enumerate(self._turns(rigs, "lives of 128k-token requests")):
            prompt = self._prompt(LONG_TOKENS)
            resident = self._residents[turn % len(self._residents)]
            for rig in order:
                self._note("miss", rig, rig.life(prompt))
                self._note("hit", rig, self._hit(rig, resident))

    def _fill_up(self, rigs: Sequence[Rig]) -> None:
        """Fill the tiers until they evict."""
        self._progress("filling the tiers up")
        self._last = self._prompt(LONG_TOKENS)
        for _ in range(self._num_slots // LONG_BLOCKS):
            if all(rig.num_stored + LONG_BLOCKS > self._num_slots for rig in rigs):
                break
            prompt = self._prompt(LONG_TOKENS)
            for rig in rigs:
                rig.life(prompt)
        for rig in rigs:
            rig.life(self._last)

    def _evicting_lives(self, rigs: Sequence[Rig]) -> None:
        for order in self._turns(rigs, "lives with the tier full"):
            self._last = self._prompt(LONG_TOKENS)
            for rig in order:
                self._note("miss_evicting", rig, rig.life(self._last))
                if rig.num_stored < self._num_slots - LONG_BLOCKS:
                    raise BrokenRunError(
                        f"{rig.kind.name} holds {rig.num_stored} of {self._num_slots} blocks: not full"
                    )

    def _start_running(self, rigs: Sequence[Rig], num_requests: int, num_tokens: int) -> None:
        """Let requests run whose lengths are such that each step completes blocks of a sixteenth of them."""
        prompts = [self._prompt(num_tokens + i % BLOCK_TOKENS) for i in range(num_requests)]
        for rig in rigs:
            rig.drop_gpu_cache()
            for prompt in prompts:
                rig.add(prompt, max_tokens=4000)
            while len(rig.scheduler.running) < num_requests or any(
                request.num_computed_tokens < request.num_prompt_tokens for request in rig.scheduler.running
            ):
                rig.step()

    def _decode(self, rigs: Sequence[Rig]) -> None:
        """Decode steps; a sample is the mean of 16 consecutive ones, in which every request completes one block."""
        self._start_running(rigs, MAX_SEQS, _SHORT_TOKENS)
        idle = [self._prompt(64) for _ in range(NUM_IDLE)]
        for order in self._turns(rigs, "decode steps"):
            for rig in order:
                self._note("decode", rig, self._mean_step(rig))
                idle_ids = [rig.add(prompt) for prompt in idle]
                self._note("decode_idle", rig, self._mean_step(rig))
                rig.abort(idle_ids)
        for rig in rigs:
            rig.abort(list(rig.scheduler.requests))
            rig.run()

    def _mean_step(self, rig: Rig) -> Cost:
        for _ in range(_WARM_DECODES):
            rig.step()
        total = Cost()
        for _ in range(BLOCK_TOKENS):
            total += rig.timed_step()
        if len(rig.scheduler.running) != MAX_SEQS:
            raise BrokenRunError(f"{rig.kind.name}: {len(rig.scheduler.running)} requests run, not {MAX_SEQS}")
        total.ns /= BLOCK_TOKENS
        total.wall_ns /= BLOCK_TOKENS
        total.by_hook = {hook: ns / BLOCK_TOKENS for hook, ns in total.by_hook.items()}
        return total

    def _empty(self, rigs: Sequence[Rig]) -> None:
        """Steps in which nothing runs while a load is under way."""
        for rig in rigs:
            rig.drop_gpu_cache()
            rig.add([*self._residents[0], 0])
            rig.worker.hold = True
            for _ in range(_WARM_STEPS):
                rig.step()
        for order in self._turns(rigs, "empty steps"):
            for rig in order:
                rig.step()
                self._note("empty", rig, rig.timed_step())
        for rig in rigs:
            rig.worker.hold = False
            rig.run()

    def _waiting(self, rigs: Sequence[Rig], scenario: str) -> None:
        """Steps in which a 128k-token hit does not fit beside a request that runs, decoding, and takes the rest."""
        prompt = self._last if scenario == "wait_evicting" else self._residents[-1]
        self._start_running(rigs, 1, (self._num_blocks - LONG_BLOCKS + 4) * BLOCK_TOKENS)
        waiting = {}
        for rig in rigs:
            waiting[rig.kind.name] = rig.add([*prompt, 0])
            for _ in range(_WARM_STEPS):
                rig.step()
        for order in self._turns(rigs, f"a hit that waits for blocks ({scenario})"):
            for rig in order:
                self._step_until_evicted(rig, scenario == "wait_evicting")
                self._note(scenario, rig, rig.timed_step())
                if rig.scheduler.requests[waiting[rig.kind.name]].num_computed_tokens != 0:
                    raise BrokenRunError(f"{rig.kind.name}: the request does not wait")
        for rig in rigs:
            rig.abort(list(rig.scheduler.requests))
            rig.run()

    def _step_until_evicted(self, rig: Rig, evicts: bool) -> None:
        """Step once, or until a step evicted; the stock tiers do not count evictions, and hold the same."""
        if rig.kind.name != "kvferry":
            rig.step()
            return
        for _ in range(2 * BLOCK_TOKENS):
            before = rig.num_evicted
            rig.step()
            evicted = rig.num_evicted - before
            if evicts == (evicted > 0):
                return
            if not evicts:
                break
        raise BrokenRunError(f"kvferry evicted {evicted} blocks in a step")
