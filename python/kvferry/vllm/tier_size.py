# SPDX-License-Identifier: Apache-2.0
"""The size of the tier while the engine serves: it follows `kvferry tier resize`, and the machine's free memory.

The engine's scheduler checks both in its steps, because orders reach the ranks only in steps. An engine at rest makes
no steps, so it resizes its tier with its next request.
"""

import dataclasses
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

# Time between two updates of the engine's file, and between two looks at the machine's free memory.
_PERIOD_S = 0.25
_LOOK_S = 1.0
# Each step sends statistics to the API server, even without a request. Hundreds in a second keep its one thread busy,
# which then hands on the next request late, so that the engine has even more time for such steps: users waited for
# seconds. The engine asks twice before such a step.
_IDLE_S = 0.005
# An engine without requests stops stepping if the tier has not changed for this time.
_PATIENCE_S = 60.0


def free_bytes() -> int:
    """Bytes of memory that are free on the machine and in every cgroup of this process."""
    return min((room for _, room, _ in _core.memory_limits()), default=1 << 62)


class MemoryFollower:
    """Computes the size of the tier with which `margin` bytes stay free.

    If less than the margin is free, the tier gives up the missing bytes at once. It grows again when one and a half
    times the margin has been free for half a minute, by half of what is free beyond that. So it does not follow every
    change of other programs' memory.

    Parameters
    ----------
    margin
        Bytes that should stay free.
    read_free
        Returns the bytes that are free.

    """

    CALM_S = 30.0
    LEAST_SHARE = 8
    """The tier keeps at least the requested size divided by this number, however much other programs take."""

    def __init__(self, margin: int, read_free: Callable[[], int] = free_bytes) -> None:
        self._margin = margin
        self._read_free = read_free
        self._calm_since: float | None = None

    def next_size(self, num_bytes: int, on_the_way: int, wanted: int, now: float) -> int:
        """Return the bytes that the tier should have.

        Parameters
        ----------
        num_bytes
            Bytes that it uses now.
        on_the_way
            Bytes that are already being returned to the machine, less those that are about to be taken.
        wanted
            Bytes that the user wants.
        now
            Seconds of a monotonic clock.

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


@dataclasses.dataclass(frozen=True)
class Descent:
    """A tier's way to a smaller size: evenly, `over_s` seconds from `began_s` on."""

    from_bytes: int
    to_bytes: int
    began_s: float
    over_s: float

    def allows(self, now: float) -> int:
        """Return the bytes that the tier may still have."""
        share = max(0.0, 1 - (now - self.began_s) / self.over_s)
        return self.to_bytes + int((self.from_bytes - self.to_bytes) * share)


class TierSize:
    """Resizes the tier of one engine; used only by the scheduler's thread.

    Parameters
    ----------
    engine
        The scheduler side of the core.
    config
        The connector's configuration.
    vllm_config
        The engine's configuration.
    num_chunks, start_chunks
        Chunks that the tier can have, and chunks with which it starts.

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
        self._descent: Descent | None = None
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
        """Check whether the tier should have another size, and publish its state. Called for each plan."""
        if self._file is None and self._follower is None:
            return
        asked = self._file.take_request() if self._file is not None else None
        now = time.monotonic()
        if asked is not None:
            self._take(*asked, now)
        elif now < self._due:
            return
        self._due = now + _PERIOD_S
        state = self._state()
        if self._descent is not None:
            self._descend(self._descent, state, now)
            state = self._state()
        if self._follower is not None and now >= self._look_due and not state.why_fixed:
            self._look_due = now + _LOOK_S
            self._follow(self._follower, state, now)
            state = self._state()
        if self._descent is not None:
            state = dataclasses.replace(state, target_bytes=self._wanted, is_at_work=True)
        if state != self._said:
            self._changed_at = now
            self._say(state)

    @property
    def wants_steps(self) -> bool:
        """Whether the engine should step without a request, because ranks get orders and report only in steps.

        An engine asks only if it has no request. It then waits here before it steps.
        """
        if self._said is None or not (self._said.is_at_work or self._said.is_blocked):
            return False
        if time.monotonic() - self._changed_at >= _PATIENCE_S:
            return False
        time.sleep(_IDLE_S)
        return True

    def close(self) -> None:
        """End; idempotent."""
        if self._file is not None:
            self._file.close()

    def _take(self, asked: int, over_s: float, now: float) -> None:
        state = self._state()
        if state.why_fixed:
            return
        self._wanted = min(max(asked, 1), self._most_bytes)
        self._descent = None
        logger.info("kvferry: resizing the tier to %s, for kvferry tier resize", format_size(self._wanted))
        if self._wanted < state.num_bytes and over_s > 0:
            self._descent = Descent(state.num_bytes, self._wanted, now, over_s)
        else:
            self._engine.resize(self._chunks_of(self._wanted))

    def _descend(self, descent: Descent, state: TierState, now: float) -> None:
        allowed = self._chunks_of(descent.allows(now))
        if allowed < self._chunks_of(state.target_bytes):
            self._engine.resize(allowed)
        if allowed <= self._chunks_of(descent.to_bytes):
            self._descent = None

    def _follow(self, follower: MemoryFollower, state: TierState, now: float) -> None:
        target = state.target_bytes
        on_the_way = state.leaving_bytes + max(state.num_bytes - target, 0) - state.coming_bytes
        wanted = self._wanted if self._descent is None else self._descent.allows(now)
        size = follower.next_size(min(target, wanted), on_the_way, wanted, now)
        num_chunks = self._chunks_of(size)
        if num_chunks == self._chunks_of(target):
            return
        logger.info("kvferry: resizing the tier to %s, because of the machine's free memory", format_size(size))
        self._engine.resize(num_chunks)

    def _chunks_of(self, num_bytes: int) -> int:
        return max(num_bytes * self._num_chunks // self._most_bytes, 1)

    def _bytes_of(self, num_chunks: int) -> int:
        """Bytes as the user counts them, rounded up, so that `_chunks_of` returns the same number of chunks."""
        return -(-num_chunks * self._most_bytes // self._num_chunks)

    def _state(self) -> TierState:
        figures, silent_ranks, failure = self._engine.tier_size()
        why_fixed = self._why_fixed
        if not why_fixed and not figures["target_chunks"]:
            why_fixed = "the engine has not run a step yet"
        elif not why_fixed and not 0 < figures["chunks_per_run"] < figures["max_chunks"]:
            why_fixed = (
                "the memory of some rank comes from the machine's pool of huge pages, or is too small to be divided; "
                "set pages to 'transparent', or set pinned_piece_bytes to less"
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
        return f"engines share it ({config.shared_path}); stop them and start them with another cpu_bytes_to_use"
    return "its huge pages would go back to the machine's pool; set pages to 'transparent'"
