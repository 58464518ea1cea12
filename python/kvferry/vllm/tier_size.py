# SPDX-License-Identifier: Apache-2.0
"""How large the tier is to be while the engine serves: as `kvferry tier resize` asks, and as the machine's memory goes.

The engine's scheduler looks in each of its steps, because only a step tells the ranks anything. An engine at rest has
no steps: what is asked of it then is done with its next request.
"""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.logger import init_logger

from kvferry import _core
from kvferry.config import KvFerryConfig
from kvferry.engines import EngineFile, TierState
from kvferry.sizes import format_size

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger("vllm.kvferry")

# What the engine says of itself, and what the machine has left, is at most so old.
_PERIOD_S = 0.25
_LOOK_S = 1.0
# An engine that has nothing else to do steps for so long without that anything changes.
_PATIENCE_S = 60.0


def free_bytes() -> int:
    """Bytes of memory that the machine, and each cgroup of this process, has left."""
    return min((room for _, room, _ in _core.memory_limits()), default=1 << 62)


class MemoryFollower:
    """Says how large the tier is to be, so that `margin` bytes stay free.

    Below the margin the tier gives up what is missing, at once. It takes some again when the machine has had half of
    the margin more to spare for half a minute, and then half of what there is beyond that: so it does not go up and
    down with what other programs take and give back in between.

    Parameters
    ----------
    margin
        Bytes that are to stay free.
    read_free
        Returns those that are.

    """

    CALM_S = 30.0
    LEAST_SHARE = 8
    """The tier keeps one part of so many of what was asked for, whatever other programs take."""

    def __init__(self, margin: int, read_free: Callable[[], int] = free_bytes) -> None:
        self._margin = margin
        self._read_free = read_free
        self._calm_since: float | None = None

    def next_size(self, num_bytes: int, on_the_way: int, wanted: int, now: float) -> int:
        """Return how many bytes the tier is to have.

        Parameters
        ----------
        num_bytes
            What it has in use.
        on_the_way
            What goes back to the machine already, less what is about to be taken.
        wanted
            What the user wants it to have.
        now
            Seconds, of a clock that only goes forward.

        """
        free = self._read_free() + on_the_way
        if free < self._margin:
            self._calm_since = None
            least = wanted // self.LEAST_SHARE
            return max(num_bytes - (self._margin - free), min(least, num_bytes))
        spare = free - self._margin - self._margin // 2
        if spare <= 0 or num_bytes >= wanted:
            self._calm_since = None
            return min(num_bytes, wanted)
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self.CALM_S:
            return num_bytes
        self._calm_since = now
        return min(num_bytes + spare // 2, wanted)


class TierSize:
    """Makes the tier of one engine as large as it is to be; used by the scheduler's thread only.

    Parameters
    ----------
    engine
        The scheduler side of the core.
    config
        Of the connector.
    vllm_config
        Of the engine.
    num_chunks, start_chunks
        That the tier can have, and that it begins with.

    """

    def __init__(
        self,
        engine: _core.SchedulerEngine,
        config: KvFerryConfig,
        vllm_config: "VllmConfig",
        num_chunks: int,
        start_chunks: int,
    ) -> None:
        self._engine = engine
        self._is_per_rank = config.cpu_bytes_to_use_per_rank is not None
        self._most_bytes = config.most_bytes
        self._num_chunks = num_chunks
        self._wanted = self._bytes_of(start_chunks)
        self._model = str(vllm_config.model_config.model)
        self._why_fixed = "" if config.is_resizable else _why_fixed(config)
        self._follower = MemoryFollower(config.memory_margin) if config.memory_margin else None
        self._due = self._look_due = 0.0
        self._said: TierState | None = None
        self._changed_at = 0.0
        self._file: EngineFile | None = None
        # A shared tier has a file of its own (`kvferry tier ls`).
        if config.shared_path is None:
            try:
                self._file = EngineFile()
            except OSError as error:
                logger.warning("kvferry: `kvferry tier` will not find this engine: %s", error)

    def step(self) -> None:
        """Look whether the tier is to have another size, and say how it stands; called for each plan."""
        if self._file is None and self._follower is None:
            return
        asked = self._file.take_request() if self._file is not None else None
        now = time.monotonic()
        if asked is not None:
            self._take(asked)
        elif now < self._due:
            return
        self._due = now + _PERIOD_S
        state = self._state()
        if self._follower is not None and now >= self._look_due and not state.why_fixed:
            self._look_due = now + _LOOK_S
            self._follow(self._follower, state, now)
            state = self._state()
        if state != self._said:
            self._changed_at = now
            self._say(state)

    @property
    def wants_steps(self) -> bool:
        """Whether the engine is to step on though it has no request: ranks are told, and heard, in steps only."""
        if self._said is None or not (self._said.is_at_work or self._said.is_blocked):
            return False
        return time.monotonic() - self._changed_at < _PATIENCE_S

    def close(self) -> None:
        """End; idempotent."""
        if self._file is not None:
            self._file.close()

    def _take(self, asked: int) -> None:
        if self._state().why_fixed:
            return
        self._wanted = min(max(asked, 1), self._most_bytes)
        logger.info("kvferry: the tier is to have %s, as kvferry tier resize asks", format_size(self._wanted))
        self._engine.resize(self._chunks_of(self._wanted))

    def _follow(self, follower: MemoryFollower, state: TierState, now: float) -> None:
        target = state.target_bytes
        on_the_way = state.leaving_bytes + max(state.num_bytes - target, 0) - state.coming_bytes
        size = follower.next_size(min(target, self._wanted), on_the_way, self._wanted, now)
        num_chunks = self._chunks_of(size)
        if num_chunks == self._chunks_of(target):
            return
        logger.info("kvferry: the tier is to have %s, as the machine's memory goes", format_size(size))
        self._engine.resize(num_chunks)

    def _chunks_of(self, num_bytes: int) -> int:
        return max(num_bytes * self._num_chunks // self._most_bytes, 1)

    def _bytes_of(self, num_chunks: int) -> int:
        """Bytes as the user counts them: rounded up, so that as many chunks come back of them."""
        return -(-num_chunks * self._most_bytes // self._num_chunks)

    def _state(self) -> TierState:
        figures, silent_ranks, failure = self._engine.tier_size()
        why_fixed = self._why_fixed
        if not why_fixed and not figures["target_chunks"]:
            why_fixed = "the engine has not run a step yet"
        elif not why_fixed and not 0 < figures["chunks_per_run"] < figures["max_chunks"]:
            why_fixed = (
                "the memory of some rank comes from the machine's pool of huge pages, or is too small to be divided; "
                "set pages to 'transparent', or pinned_piece_bytes to less"
            )
        return TierState(
            pid=os.getpid(),
            model=self._model,
            num_bytes=self._bytes_of(figures["num_chunks"]),
            target_bytes=self._bytes_of(figures["target_chunks"]),
            limit_bytes=self._bytes_of(max(figures["max_chunks"], 1)),
            leaving_bytes=self._bytes_of(figures["num_retiring"]),
            coming_bytes=self._bytes_of(figures["num_restoring"]),
            is_per_rank=self._is_per_rank,
            why_fixed=why_fixed,
            is_at_work=bool(figures["is_at_work"]),
            is_blocked=bool(figures["is_blocked"]),
            silent_ranks=tuple(silent_ranks),
            failure=failure,
            request=self._file.last_request if self._file is not None else 0,
        )

    def _say(self, state: TierState) -> None:
        before, self._said = self._said, state
        if self._file is not None:
            self._file.say(state)
        if before is not None and before.is_at_work and not state.is_at_work:
            logger.info(
                "kvferry: the tier has %s of %s%s",
                format_size(state.num_bytes),
                format_size(state.target_bytes),
                f": {state.failure}" if state.failure else "",
            )


def _why_fixed(config: KvFerryConfig) -> str:
    if config.shared_path is not None:
        return f"engines share it ({config.shared_path}); end them and start them with another cpu_bytes_to_use"
    return "its huge pages would go back to the machine's pool of them; set pages to 'transparent'"
