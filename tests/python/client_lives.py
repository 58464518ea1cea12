# SPDX-License-Identifier: Apache-2.0
"""Clients of every kind, and an operator: conversations that go on, streaming sessions, resets and pauses at any time.

One `ClientLife` plays them on one engine, stepped as vLLM's engine core steps: not at all while there is nothing to do.
Every answer is held against a `Reference`, and at the end whatever the tier holds is loaded once more.
"""

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import vllm
from harness import ToyEngine, prompt_of
from random_lives import Params, no_params
from reference import Reference
from sessions import add_turn, begin_session, close_session
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

VLLM = [int(part) for part in vllm.__version__.split(".")[:2]]

MOST_LIVING = 14
MOST_ANSWER = 12
# So that they are used again.
NUM_IDS = 20
# Of texts that are told on.
MOST_TEXTS = 24


@dataclass(frozen=True)
class Turn:
    """What a client says, how much it wants to hear, and whether it stops at one of those tokens before."""

    tokens: list[int]
    max_tokens: int
    stops: frozenset[int] = frozenset()


@dataclass
class Conversation:
    """A request, or a streaming session.

    Attributes
    ----------
    request
        vLLM's.
    prompt
        What the running turn begins with.
    answer
        What the engine has to say to it, to the last token.
    queued
        Turns of a session that were sent and have not begun.
    is_session
        More may be sent.
    is_aborted
        By the client, or the engine's operator.

    """

    request: Request
    prompt: list[int]
    answer: list[int]
    queued: deque[Turn] = field(default_factory=deque)
    is_session: bool = False
    is_aborted: bool = False

    def most_tokens(self) -> int:
        """Most tokens that it comes to have with what was sent."""
        turns = sum(len(turn.tokens) + turn.max_tokens for turn in self.queued)
        return len(self.prompt) + len(self.answer) + turns


class ClientLife:
    """A life of one engine.

    Parameters
    ----------
    engine
        What lives.
    folder
        For the reference's configuration.
    rng
        Decides everything but the copies' time.
    with_sessions
        Whether clients open streaming sessions.
    params
        Says what the ``SamplingParams`` of a request, or of a session, with this prompt are told beside the rest.

    Attributes
    ----------
    happened
        How often each thing was done, and what came of some.

    """

    def __init__(
        self,
        engine: ToyEngine,
        folder: Path,
        rng: random.Random,
        *,
        with_sessions: bool = True,
        params: Params = no_params,
    ) -> None:
        self._engine = engine
        self._params = params
        self._rng = rng
        self._reference = Reference(folder, engine.spec)
        self._living: dict[str, Conversation] = {}
        self._texts: list[list[int]] = [prompt_of(7, 64)]
        self._num_prompts = 0
        self._pause_steps = 0
        self._clears_when_idle = False
        self.happened: Counter[str] = Counter()
        self._deeds: dict[Callable[[], None], int] = {
            self._arrive: 30,
            self._open_session: 8 if with_sessions else 0,
            self._send_turn: 16,
            self._close_session: 3,
            self._abort: 5,
            self._reset_engine: 5,
            self._reset_running: 3,
            self._reset_tier: 1,
            self._pause: 2,
            self._rest: 6,
            self._do_nothing: 40,
        }
        for worker in engine.workers:
            worker.model.drafts = self._drafts

    def play(self, num_steps: int) -> None:
        """Do so many things at random, each followed by what the engine does meanwhile."""
        deeds = list(self._deeds)
        for _ in range(num_steps):
            deed = self._rng.choices(deeds, list(self._deeds.values()))[0]
            deed()
            self._tick()
            self._check()

    def end(self) -> None:
        """Let everything come to its end, and load what the tier holds: every cell of it is compared."""
        self._resume()
        for request_id, conversation in self._living.items():
            if conversation.is_session:
                conversation.is_session = False
                close_session(self._engine, request_id)
        self._engine.run()
        self._check()
        assert not self._living, f"not ended: {list(self._living)}"
        self._engine.settle_stores()
        for number, text in enumerate(self._texts):
            assert self._engine.scheduler.reset_prefix_cache()
            request = self._engine.add(f"again-{number}", text, 1)
            self._engine.run()
            assert list(request.output_token_ids) == self._reference.next_tokens(text, 1)
        self._engine.settle_stores()

    def close(self) -> None:
        """End the reference."""
        self._reference.close()

    # What clients do

    def _arrive(self) -> None:
        if (request_id := self._new_id()) is None:
            return
        turn = self._new_turn(self._new_prompt())
        params = self._params(turn.tokens) | ({"stop_token_ids": sorted(turn.stops)} if turn.stops else {})
        request = self._engine.add(request_id, turn.tokens, turn.max_tokens, options=self._options(), **params)
        self._living[request_id] = Conversation(request, turn.tokens, self._answer_to(turn.tokens, turn))
        self.happened["requests"] += 1

    def _open_session(self) -> None:
        if (request_id := self._new_id()) is None:
            return
        turn = self._new_turn(self._new_prompt())
        if not self._has_room(len(turn.tokens) + turn.max_tokens):
            return
        options = self._params(turn.tokens) | self._options()
        request = begin_session(self._engine, request_id, turn.tokens, turn.max_tokens, turn.stops, **options)
        answer = self._answer_to(turn.tokens, turn)
        self._living[request_id] = Conversation(request, list(turn.tokens), answer, is_session=True)
        self.happened["sessions"] += 1

    def _send_turn(self) -> None:
        sessions = [request_id for request_id, one in self._living.items() if one.is_session]
        if not sessions:
            return
        request_id = self._rng.choice(sessions)
        conversation = self._living[request_id]
        turn = self._new_turn(self._fresh_tokens(self._rng.randrange(1, 40)))
        num_tokens = len(turn.tokens) + turn.max_tokens
        if conversation.most_tokens() + num_tokens >= self._engine.spec.max_model_len or not self._has_room(num_tokens):
            self._close(request_id)
            return
        conversation.queued.append(turn)
        add_turn(self._engine, request_id, turn.tokens, turn.max_tokens, turn.stops)
        self.happened["turns"] += 1

    def _has_room(self, num_tokens: int) -> bool:
        """Whether sessions may come to have so many tokens more.

        They keep their blocks between turns, and vLLM takes none of them away: without room for the longest request
        beside them all would wait for ever.
        """
        spec = self._engine.spec
        num_groups = len(self._engine.kv_cache_config.kv_cache_groups)
        most = spec.num_blocks // num_groups * spec.block_size - spec.max_model_len
        sessions = [one for one in self._living.values() if one.request.resumable]
        # Each may have a block that is not full, and blocks for drafts.
        slack = (2 * spec.block_size + spec.num_drafts) * (len(sessions) + 2)
        return sum(one.most_tokens() for one in sessions) + num_tokens + slack <= most

    def _close_session(self) -> None:
        sessions = [request_id for request_id, one in self._living.items() if one.is_session]
        if sessions:
            self._close(self._rng.choice(sessions))

    def _close(self, request_id: str) -> None:
        self._living[request_id].is_session = False
        close_session(self._engine, request_id)
        self.happened["sessions closed"] += 1

    def _abort(self) -> None:
        if self._living:
            self._end_by_hand(self._rng.choice(list(self._living)))
            self.happened["aborts"] += 1

    def _end_by_hand(self, request_id: str) -> None:
        self._living[request_id].is_aborted = True
        self._engine.abort(request_id)

    # What the operator does

    def _reset_engine(self) -> None:
        self.happened["resets of the engine"] += self._engine.scheduler.reset_prefix_cache()

    def _reset_running(self) -> None:
        """Take the running requests' blocks away, at any moment, as an operator may through ``/reset_prefix_cache``."""
        done = self._take_all_blocks(reset_connector=self._rng.random() < 0.2)
        self.happened["resets of running requests" + ("" if done else ", refused")] += 1

    def _take_all_blocks(self, *, reset_connector: bool) -> bool:
        """Reset running requests; False if vLLM refuses it: others hold blocks. The running ones have lost theirs."""
        try:
            self._engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=reset_connector)
        except RuntimeError as error:
            if "Failed to reset KV cache" not in str(error):
                raise
            return False
        return True

    def _reset_tier(self) -> None:
        self._engine.scheduler.reset_connector_cache()
        self.happened["resets of the tier"] += 1

    def _pause(self) -> None:
        """Pause as ``EngineCoreProc.pause_scheduler`` does."""
        if self._pause_steps:
            return
        mode = self._rng.choice(["keep", "wait", "abort"])
        if mode == "abort":
            for request_id in self._living:
                self._end_by_hand(request_id)
        state = PauseState.PAUSED_ALL if mode == "keep" else PauseState.PAUSED_NEW
        self._engine.scheduler.set_pause_state(state)
        self._pause_steps = self._rng.randrange(1, 30)
        self._clears_when_idle = self._rng.random() < 0.5
        self.happened[f"pauses, {mode}"] += 1

    def _resume(self) -> None:
        self._pause_steps = 0
        self._clears_when_idle = False
        self._engine.scheduler.set_pause_state(PauseState.UNPAUSED)

    def _rest(self) -> None:
        """Nobody steps, for whatever reason: copies go on."""
        time.sleep(self._rng.choice([0.0005, 0.003]))

    def _do_nothing(self) -> None:
        """Let the engine go on: most of its steps see no client."""

    # What the engine does

    def _tick(self) -> None:
        """Do what the engine core does in one turn of its loop."""
        engine = self._engine
        if engine.scheduler.has_requests():
            engine.step()
        elif engine.has_outputs_in_flight:
            engine.take_output()
        elif self._clears_when_idle:
            self._clears_when_idle = False
            self._take_all_blocks(reset_connector=True)
        if self._pause_steps:
            self._pause_steps -= 1
            if not self._pause_steps:
                self._resume()

    # What is said

    def _new_id(self) -> str | None:
        """An id that is free, if the engine is to have one more request."""
        request_id = f"r{self._rng.randrange(NUM_IDS)}"
        # An output in flight of an id's earlier life would be taken for one of the later life: vLLM gives its requests
        # ids of its own, which do not come again. `random_lives` does use them again at any time.
        is_free = request_id not in self._living and self._engine.can_reuse(request_id)
        return request_id if is_free and len(self._living) < MOST_LIVING else None

    def _options(self) -> dict[str, int]:
        return {"priority": self._rng.randrange(3)} if self._engine.spec.policy == "priority" else {}

    def _new_prompt(self) -> list[int]:
        """A text of before, or its beginning, that goes on."""
        most = self._engine.spec.max_model_len - MOST_ANSWER - 1
        text = self._rng.choice(self._texts)
        if self._rng.random() < 0.3:
            text = text[: self._rng.randrange(len(text))]
        fresh = self._fresh_tokens(self._rng.randrange(1, 60))
        return [*text, *fresh] if len(text) + len(fresh) <= most else fresh

    def _fresh_tokens(self, num_tokens: int) -> list[int]:
        self._num_prompts += 1
        return prompt_of(100 + self._num_prompts, num_tokens)

    def _new_turn(self, tokens: list[int]) -> Turn:
        max_tokens = self._rng.randrange(1, MOST_ANSWER + 1)
        # One token of about twelve: half of the answers end before they have to.
        stops = frozenset(range(self._rng.randrange(12), 1000, 12)) if self._rng.random() < 0.5 else frozenset()
        return Turn(tokens, max_tokens, stops)

    def _answer_to(self, prompt: list[int], turn: Turn) -> list[int]:
        answer = self._reference.next_tokens(prompt, turn.max_tokens)
        end = next((i + 1 for i, token in enumerate(answer) if token in turn.stops), len(answer))
        return answer[:end]

    def _drafts(self, request_id: str, position: int, num_drafts: int) -> list[int]:
        """Propose how an answer goes on, with every fourth token wrong."""
        conversation = self._living.get(request_id)
        text = conversation.prompt + conversation.answer if conversation is not None else []
        return [text[at] if at % 4 and at < len(text) else -1 for at in range(position, position + num_drafts)]

    # Whether it is right

    def _check(self) -> None:
        for request_id, conversation in list(self._living.items()):
            self._abort_if_vllm_lost_its_text(request_id, conversation.request)
            self._check_one(request_id, conversation)
            if conversation.request.is_finished():
                self.happened["preemptions"] += conversation.request.num_preemptions
                del self._living[request_id]

    def _abort_if_vllm_lost_its_text(self, request_id: str, request: Request) -> None:
        """Abort a session whose turn ended while it was preempted, or had begun anew, as its last token came late.

        vLLM before 0.33 takes back of it whatever is not computed again, but leaves it in the prompt; and if it was
        preempted still, schedules it no more.
        """
        if not request.resumable or request.is_finished() or VLLM >= [0, 33]:
            return
        is_between_turns = request.status == RequestStatus.WAITING_FOR_STREAMING_REQ
        if request.num_tokens < request.num_prompt_tokens + request.num_output_tokens or (
            is_between_turns and request.num_computed_tokens < request.num_tokens - 1
        ):
            self._end_by_hand(request_id)
            self.happened["sessions that vLLM lost"] += 1

    def _check_one(self, request_id: str, conversation: Conversation) -> None:
        request = conversation.request
        if conversation.is_aborted:
            return
        prompt = list(request.prompt_token_ids or ())
        while prompt != conversation.prompt and conversation.queued:
            self._note_text(conversation)
            turn = conversation.queued.popleft()
            conversation.prompt = _prompt_of_turn(conversation, turn, prompt)
            conversation.answer = self._answer_to(conversation.prompt, turn)
        assert prompt == conversation.prompt, f"{request_id} is asked {prompt}, not {conversation.prompt}"
        said = list(request.output_token_ids)
        assert said == conversation.answer[: len(said)], f"{request_id} says {said}, not {conversation.answer}"
        if not request.is_finished():
            return
        assert said == conversation.answer, f"{request_id} ends early: {RequestStatus(request.status).name}"
        assert not conversation.queued, f"{request_id} ends before its last turn"
        self._note_text(conversation)
        self.happened["answers"] += 1

    def _note_text(self, conversation: Conversation) -> None:
        text = conversation.prompt + conversation.answer
        if len(self._texts) >= MOST_TEXTS:
            self._texts.pop(self._rng.randrange(len(self._texts)))
        self._texts.append(text)


def _prompt_of_turn(conversation: Conversation, turn: Turn, found: list[int]) -> list[int]:
    """What a turn begins with: all that was said, but for the last token of the answer.

    vLLM drops that one because it was not computed; if it was, as an accepted draft, vLLM keeps it (0.32).
    """
    whole = conversation.prompt + conversation.answer + turn.tokens
    return whole if found == whole else conversation.prompt + conversation.answer[:-1] + turn.tokens
