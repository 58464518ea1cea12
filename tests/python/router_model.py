# SPDX-License-Identifier: Apache-2.0
"""A router that believes what its workers tell it: as Dynamo's, it walks from block to block by their tokens."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from event_mirror import chunks_of
from harness import ToyEngine
from toy_worker import kvferry_of
from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored, KVEventBatch


class RouterModel:
    """Listens to the events of several engines.

    Attributes
    ----------
    held
        Of each worker, the KV cache groups and hashes of the blocks that it says it can load.
    num_told
        Of each worker, how often a block was told as stored.
    complaints
        What no worker may tell: one block as stored twice, or as removed that it never had.

    """

    def __init__(self) -> None:
        self.held: defaultdict[str, set[tuple[int, Any]]] = defaultdict(set)
        self.num_told: defaultdict[str, int] = defaultdict(int)
        self.complaints: list[str] = []
        self._following: defaultdict[str, dict[tuple[Any, ...], Any]] = defaultdict(dict)

    def listen(self, worker: str, engine: ToyEngine) -> ToyEngine:
        """Hear what an engine publishes, as the worker of that name; returns the engine."""

        def publish(batch: KVEventBatch) -> None:
            self.hear(worker, batch.events)

        engine.scheduler.kv_event_publisher.publish = publish
        return engine

    def hear(self, worker: str, events: Sequence[Any]) -> None:
        """Take events of the tier in."""
        for event in events:
            if getattr(event, "medium", None) != MEDIUM_CPU:
                continue
            if event.ownership is not None or event.locality not in (None, "LOCAL"):
                self.complaints.append(f"Dynamo would drop it: {event}")
            blocks = {(event.group_idx, block_hash) for block_hash in event.block_hashes}
            held = self.held[worker]
            if isinstance(event, BlockStored):
                self.num_told[worker] += len(event.block_hashes)
                if len(blocks) != len(event.block_hashes) or held & blocks:
                    self.complaints.append(f"{worker} tells a block twice: {event}")
                held |= blocks
                self._note_tokens(worker, event)
            elif isinstance(event, BlockRemoved):
                if blocks - held:
                    self.complaints.append(f"{worker} never had what it removes: {event}")
                held -= blocks

    def loadable_tokens(self, worker: str, prompt: Sequence[int], block_tokens: int, group: int = 0) -> int:
        """How many tokens of a prompt it believes that a worker can load, of a model with one group."""
        parent, num_tokens = None, 0
        for tokens in chunks_of(prompt, block_tokens):
            parent = self._following[worker].get((group, parent, *tokens))
            if parent is None or (group, parent) not in self.held[worker]:
                break
            num_tokens += block_tokens
        return num_tokens

    def _note_tokens(self, worker: str, event: BlockStored) -> None:
        parent = event.parent_block_hash
        for block_hash, tokens in zip(
            event.block_hashes, chunks_of(event.token_ids, event.block_size or 1), strict=True
        ):
            self._following[worker][event.group_idx, parent, *tokens] = block_hash
            parent = block_hash


def loadable_tokens(engine: ToyEngine, prompt: Sequence[int]) -> int | None:
    """How many tokens of a prompt the engine could really load now; None: another request loads them."""
    side = kvferry_of(engine.scheduler.connector).scheduler_side
    request = engine.make_request("a question", prompt)
    num_tokens = side.engine.lookup(request.request_id, request.block_hashes, 0, request.num_tokens)
    side.engine.on_finished(request.request_id)
    return num_tokens
