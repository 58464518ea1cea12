# SPDX-License-Identifier: Apache-2.0
"""vLLM's group of the ranks of a pipeline, for ranks that are made one after the other in one process."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from toy_config import ToySpec
from vllm.distributed import parallel_state


class _Stages(parallel_state.GroupCoordinator):  # type: ignore[misc]
    """The ranks of one pipeline, as one of them sees them; what the first one says waits for the others in `said`."""

    def __init__(self, ranks: list[int], rank: int, said: dict[int, list[bytes]]) -> None:
        self.ranks = ranks
        self.rank = rank
        self.world_size = len(ranks)
        self.rank_in_group = ranks.index(rank)
        self._said = said.setdefault(ranks[0], [])
        self._num_heard = 0

    def broadcast_object(self, obj: Any = None, src: int = 0) -> Any:
        """As vLLM's, which waits where this raises."""
        assert src == 0, "the toy's first stage alone says something"
        if self.rank_in_group == src:
            self._said.append(pickle.dumps(obj))
            return obj
        self._num_heard += 1
        assert self._num_heard <= len(self._said), (
            f"rank {self.rank} would wait for ever for what rank {self.ranks[0]} says"
        )
        return pickle.loads(self._said[self._num_heard - 1])


class ToyPipeline:
    """The pipelines of an engine: of each tensor-parallel rank one."""

    def __init__(self, spec: ToySpec) -> None:
        self._spec = spec
        self._said: dict[int, list[bytes]] = {}

    @contextmanager
    def as_rank(self, rank: int) -> Iterator[None]:
        """Be the process of one rank."""
        ranks = list(range(rank % self._spec.world_size, self._spec.num_ranks, self._spec.world_size))
        before, parallel_state._PP = parallel_state._PP, _Stages(ranks, rank, self._said)
        try:
            yield
        finally:
            parallel_state._PP = before
