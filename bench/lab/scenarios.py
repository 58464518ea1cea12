# SPDX-License-Identifier: Apache-2.0
"""The scenarios with one full-attention group: lives of requests, and steps of the engine."""

import math
from collections.abc import Sequence

from hook_clock import Cost
from lives import BrokenRunError, Lives, Progress
from rigs import BLOCK_TOKENS, LONG_TOKENS, MAX_SEQS, Kind, Rig

LONG_BLOCKS = LONG_TOKENS // BLOCK_TOKENS
NUM_IDLE = 500
_SHORT_TOKENS = 2048
_WARM_STEPS = 20
_WARM_DECODES = 8
# Then new requests run, so that their length, and with it the pool's size, does not grow with the number of rounds.
_MOST_DECODE_ROUNDS = 30


class Bench(Lives):
    """Runs the scenarios.

    Parameters
    ----------
    kinds
        The connectors that take turns.

    Attributes
    ----------
    request_ns
        Nanoseconds that vLLM took to make and hash each 128k-token request.

    """

    def __init__(
        self,
        num_rounds: int,
        num_residents: int,
        progress: Progress,
        kinds: Sequence[Kind],
    ) -> None:
        super().__init__(num_rounds, num_residents, progress)
        self._kinds = kinds
        self.request_ns: list[int] = []
        # Room for 64 requests of 2k tokens with what they decode here, which is more than a 128k-token request needs.
        decode_rounds = min(num_rounds, _MOST_DECODE_ROUNDS)
        decoded = 2 * (BLOCK_TOKENS + _WARM_DECODES) * decode_rounds // BLOCK_TOKENS + 2
        self._num_blocks = MAX_SEQS * (_SHORT_TOKENS // BLOCK_TOKENS + decoded + 3)
        # The resident requests, the warm-up, one miss for each round, and the blocks of the short requests.
        num_starts = 1 + math.ceil(num_rounds / _MOST_DECODE_ROUNDS)  # Of running requests, before the tier is full.
        short_blocks = num_starts * self._num_blocks
        self._num_slots = (num_residents + 1 + num_rounds) * LONG_BLOCKS + short_blocks

    def _start(self, rigs: list[Rig]) -> None:
        rigs.extend(Rig(kind, self._num_blocks, self._num_slots) for kind in self._kinds)

    def _measure(self, rigs: Sequence[Rig]) -> None:
        for rig in rigs:
            stored, expected = rig.num_stored, (len(self._residents) + 1) * LONG_BLOCKS
            if stored < expected:
                raise BrokenRunError(f"{rig.kind.name} stored {stored} of {expected} blocks")
        self._lives(rigs)
        self._decode(rigs)
        self._empty(rigs)
        self._waiting(rigs, "wait")
        self._fill_up(rigs)
        self._evicting_lives(rigs)
        self._waiting(rigs, "wait_evicting")
        self.request_ns = [ns for rig in rigs for ns in rig.request_ns]

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
        """Start requests with such lengths that each step completes a block for a sixteenth of them."""
        prompts = [self._prompt(num_tokens + i % BLOCK_TOKENS) for i in range(num_requests)]
        for rig in rigs:
            rig.drop_gpu_cache()
            for prompt in prompts:
                rig.add(prompt, max_tokens=LONG_TOKENS)
            while len(rig.scheduler.running) < num_requests or any(
                request.num_computed_tokens < request.num_prompt_tokens for request in rig.scheduler.running
            ):
                rig.step()

    def _end_all(self, rigs: Sequence[Rig]) -> None:
        for rig in rigs:
            rig.abort(list(rig.scheduler.requests))
            rig.run()

    def _decode(self, rigs: Sequence[Rig]) -> None:
        """Measure decode steps. A sample is the mean of 16 consecutive ones, in which all requests complete a block."""
        idle = [self._prompt(64) for _ in range(NUM_IDLE)]
        for number, order in enumerate(self._turns(rigs, "decode steps")):
            if number % _MOST_DECODE_ROUNDS == 0:
                self._end_all(rigs)
                self._start_running(rigs, MAX_SEQS, _SHORT_TOKENS)
            for rig in order:
                self._note("decode", rig, self._mean_step(rig))
                idle_ids = [rig.add(prompt) for prompt in idle]
                self._note("decode_idle", rig, self._mean_step(rig))
                rig.abort(idle_ids)
        self._end_all(rigs)

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
        """Measure steps in which nothing runs while a load is under way."""
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
        """Measure steps in which a 128k-token hit does not fit, because a decoding request takes most of the pool."""
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
        self._end_all(rigs)

    def _step_until_evicted(self, rig: Rig, evicts: bool) -> None:
        """Step kvferry until a step has evicted (`evicts`), or once. Step others once: they count no evictions."""
        if rig.kind.module != "kvferry.vllm":
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
