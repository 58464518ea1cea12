# SPDX-License-Identifier: Apache-2.0
"""What a listener to the engine's KV events knows of the tier, and what the engine's own cache has had."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from harness import ToyEngine
from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored, KVEventBatch


class EventMirror:
    """Listens to what an engine publishes.

    Attributes
    ----------
    held
        KV cache group to the hashes of the blocks that the tier holds.
    stored
        Every event of blocks that the tier got, in order.
    had
        The hashes in those events.

    """

    def __init__(self, engine: ToyEngine) -> None:
        self.held: defaultdict[int, set[Any]] = defaultdict(set)
        self.stored: list[BlockStored] = []
        self.had: set[Any] = set()
        engine.scheduler.kv_event_publisher.publish = self.take

    def take(self, batch: KVEventBatch) -> None:
        """Take in what was published."""
        of_tier = [event for event in batch.events if getattr(event, "medium", None) == MEDIUM_CPU]
        for event in of_tier:
            held = self.held[event.group_idx]
            if isinstance(event, BlockStored):
                self.stored.append(event)
                self.had.update(event.block_hashes)
                assert held.isdisjoint(event.block_hashes), f"stored twice: {event}"
                held.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                assert held.issuperset(event.block_hashes), f"removed and was not there: {event}"
                held.difference_update(event.block_hashes)

    def num_held(self) -> int:
        """Blocks of all groups."""
        return sum(map(len, self.held.values()))


class CachedHashes:
    """What the engine's own cache has had, by KV cache group: looked at before each step."""

    def __init__(self, engine: ToyEngine) -> None:
        self.by_group: dict[int, set[bytes]] = {}
        self._before = engine.on_step
        engine.on_step = self._on_step

    def num_blocks(self) -> int:
        """Blocks of all groups."""
        return sum(map(len, self.by_group.values()))

    def _on_step(self, engine: ToyEngine) -> None:
        if self._before is not None:
            self._before(engine)
        self.look(engine)

    def look(self, engine: ToyEngine) -> None:
        """Note what it has now."""
        for block in engine.scheduler.kv_cache_manager.block_pool.blocks:
            if block.block_hash is not None:
                group = int.from_bytes(block.block_hash[-4:], "big")
                self.by_group.setdefault(group, set()).add(bytes(block.block_hash[:-4]))


def chunks_of(tokens: Iterable[int], size: int) -> list[list[int]]:
    """Split tokens into blocks."""
    tokens = list(tokens)
    return [tokens[i : i + size] for i in range(0, len(tokens), size)]
