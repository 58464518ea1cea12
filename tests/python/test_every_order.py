# SPDX-License-Identifier: Apache-2.0
"""Every order and timing of what can happen to a request whose blocks are on their way.

vllm#43226 and vllm#46240: a completion that comes for a request which the engine has freed, or comes twice, ends the
engine with an assertion. Here each list of events is played in every order, with and without a step in each gap. The
copies of a rank end at once; the engine hears of it at the event that says so.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from pathlib import Path

import pytest
from harness import ToyEngine, expected_tokens, prompt_of
from scenarios import MODELS, Make, assert_at_rest
from vllm.v1.request import RequestStatus

ID = "x"
# Two whole blocks and a rest; another prompt for the second request of the id.
FIRST, SECOND = prompt_of(1, 40), prompt_of(2, 36)
MAX_TOKENS = 2

# What has to come before an event, if it comes at all, for it to mean anything.
_AFTER = {"finish again": ("abort",), "reuse": ("abort", "finish again"), "take output": ("launch",)}


def orders(events: Sequence[str]) -> Iterator[list[str]]:
    """Make every order of `events` that means something, with and without a ``"step"`` in each gap."""
    for order in permutations(events):
        if any(first in order[i:] for i, event in enumerate(order) for first in _AFTER.get(event, ())):
            continue
        for has_step in product((False, True), repeat=len(order) - 1):
            played = [order[0]]
            for step, event in zip(has_step, order[1:], strict=True):
                played += ["step", event] if step else [event]
            yield played


class Life:
    """One request, and maybe a second one under its id, on an engine whose ranks keep to themselves what ended."""

    def __init__(self, engine: ToyEngine, folder: Path) -> None:
        self.engine = engine
        spec = {"layer_pattern": engine.spec.layer_pattern, "num_layers": engine.spec.num_layers}
        self.expected = expected_tokens(folder, {"first": FIRST, "second": SECOND}, MAX_TOKENS, **spec)
        # The ranks register, or nothing would be stored while they are silent.
        engine.generate({"warm up": FIRST}, MAX_TOKENS)
        engine.settle_stores()

    def start(self) -> None:
        """Add the request."""
        self.reuse = "no"
        self.engine.finished.clear()
        for worker in self.engine.workers:
            worker.hold_reports()
        self.request = self.engine.add(ID, FIRST, MAX_TOKENS)

    def start_loading(self) -> None:
        """Bring the request to where it waits for its load, with its blocks in the tier only."""
        engine = self.engine
        if engine.external_hit_tokens.get("probe") != 32:
            engine.generate({"store": FIRST}, MAX_TOKENS)
            engine.settle_stores()
        engine.drop_gpu_cache()
        self.start()
        engine.run_until(lambda: self.request.status == RequestStatus.WAITING_FOR_REMOTE_KVS)

    def start_storing(self) -> None:
        """Bring the request to where it runs and its first blocks are being stored, with nothing in the tier."""
        engine = self.engine
        engine.scheduler.reset_connector_cache()
        engine.drop_gpu_cache()
        self.start()
        engine.run_until(lambda: engine.snapshot()["num_stores_in_flight"] > 0)

    def play(self, event: str) -> None:
        """Let one thing happen."""
        engine = self.engine
        match event:
            case "step":
                if not engine.spec.async_scheduling:
                    engine.drain_outputs()
                engine.step()
            case "launch":
                engine.launch()
            case "take output":
                engine.drain_outputs()
            case "rank 0 ends" | "rank 1 ends":
                worker = engine.workers[int(event[len("rank ")])]
                worker.wait_for_copies()
                worker.release_reports()
            case "abort":
                engine.abort(ID)
            case "finish again":
                # As from an engine that aborts a request which it stops in the same step.
                answer = engine.scheduler.connector.request_finished_all_groups(self.request, ([],))
                assert answer == (False, None)
            case "reset":
                assert engine.scheduler.reset_connector_cache()
            case "preempt":
                engine.drain_outputs()
                engine.scheduler.reset_prefix_cache(reset_running_requests=True)
            case "reuse":
                self.reuse = "wanted"
            case _:
                raise ValueError(event)
        if self.reuse == "wanted" and engine.can_reuse(ID):
            self.reuse = "done"
            engine.finished.pop(ID, None)
            engine.add(ID, SECOND, MAX_TOKENS)

    def end(self) -> None:
        """Run on, and check that each request got what it should and that nothing is held."""
        engine = self.engine
        for worker in engine.workers:
            worker.wait_for_copies()
            worker.release_reports()
        deadline = time.monotonic() + 60
        while self.reuse == "wanted":
            assert time.monotonic() < deadline, "the engine never forgets the first request"
            self.play("step")
        engine.run()
        end = engine.finished[ID]
        if end.status == RequestStatus.FINISHED_ABORTED:
            assert self.reuse == "no"
        else:
            assert end.status == RequestStatus.FINISHED_LENGTH_CAPPED
            assert end.tokens == self.expected["first" if self.reuse == "no" else "second"]
        engine.settle_stores()
        assert_at_rest(engine)

    def probe(self) -> None:
        """Ask once more for what the tier has of the first prompt: whatever it is, it is right."""
        engine = self.engine
        engine.drop_gpu_cache()
        assert engine.generate({"probe": FIRST}, MAX_TOKENS)["probe"] == self.expected["first"]
        engine.settle_stores()
        assert_at_rest(engine)


def play_all(life: Life, start: str, events: Sequence[str]) -> None:
    """Play `events` in every order, from `start` on."""
    num_played = 0
    for order in orders(events):
        try:
            getattr(life, start)()
            for event in order:
                life.play(event)
            life.end()
            life.probe()
        except Exception as error:
            raise AssertionError(f"{start}, then {', '.join(order)}: {error!r}") from error
        num_played += 1
    assert num_played > 1


ONE_RANK = [("rank 0 ends", "abort", "reset", "reuse"), ("rank 0 ends", "abort", "finish again", "reuse")]
TWO_RANKS = [("rank 0 ends", "rank 1 ends", "abort", "reuse"), ("rank 0 ends", "rank 1 ends", "abort", "reset")]
# The output that may stop the request is in flight.
IN_FLIGHT = [("launch", "take output", "abort", "reuse"), ("launch", "take output", "rank 0 ends", "abort")]
PREEMPT = [("rank 0 ends", "abort", "preempt", "reuse"), ("rank 0 ends", "preempt", "reset")]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("events", [*ONE_RANK, *TWO_RANKS, *IN_FLIGHT], ids="-".join)
def test_loading_request_survives_every_order(
    make: Make, folder: Path, is_async: bool, events: tuple[str, ...], model: dict[str, object]
) -> None:
    engine = make(world_size=2 if "rank 1 ends" in events else 1, async_scheduling=is_async, **model)
    play_all(Life(engine, folder), "start_loading", events)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("events", [*ONE_RANK, TWO_RANKS[0], *IN_FLIGHT, *PREEMPT], ids="-".join)
def test_storing_request_survives_every_order(
    make: Make, folder: Path, is_async: bool, events: tuple[str, ...], model: dict[str, object]
) -> None:
    engine = make(world_size=2 if "rank 1 ends" in events else 1, async_scheduling=is_async, **model)
    play_all(Life(engine, folder), "start_storing", events)
