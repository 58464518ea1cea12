# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV events for the tier: which blocks host memory holds (medium ``CPU``), for routers and similar programs."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, maybe_convert_block_hash
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

from kvferry.vllm import versions
from kvferry.vllm.block_words import BlockWords
from kvferry.vllm.preflight import BlockSizes

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec
    from vllm.v1.request import Request

    from kvferry import _core


def are_on(vllm_config: "VllmConfig") -> bool:
    """Whether the engine publishes KV events."""
    config = vllm_config.kv_events_config
    return config is not None and config.enable_kv_cache_events


class _Place(NamedTuple):
    """Where a block hash was seen: a request, and the number of the hash in it."""

    request: "Request"
    number: int


@dataclass(eq=False)
class _Followed:
    """A request, and those of its block hashes that have a place, from the first one on."""

    request: "Request"
    hashes: list[bytes] = field(default_factory=list)


class _Change(NamedTuple):
    """A block that came into the tier since the last call, or left it."""

    is_stored: bool
    group: int
    block_hash: bytes
    place: _Place | None


class KvEvents:
    """Makes the events for the tier's blocks, in the form of the engine's own events.

    A block becomes loadable some steps after it was computed, often when its request has ended. A router needs the
    block's tokens and the hash of the block before it, and only the request has them. So a request is remembered as
    long as the engine's pool can hold its blocks. The event of a block that is stored later has its hash alone. The
    same holds for a block whose hash a streaming session has taken back, because the session has other tokens by then.

    Parameters
    ----------
    engine
        The core's scheduler side, made with ``key_events``.
    groups
        KV cache groups of the engine.
    sizes
        Tokens of the engine's hashes and blocks.
    num_blocks
        Number of blocks in the engine's pool.

    """

    def __init__(
        self, engine: "_core.SchedulerEngine", groups: Sequence["KVCacheGroupSpec"], sizes: BlockSizes, num_blocks: int
    ) -> None:
        self._take = engine.take_key_events
        self._specs = [group.kv_cache_spec for group in groups]
        self._sizes = sizes
        self._num_blocks = num_blocks
        self._living: dict[str, _Followed] = {}
        self._ended: deque[_Followed] = deque()
        self._num_ended_hashes = 0
        self._places: dict[bytes, _Place] = {}

    def follow(self, request: "Request") -> None:
        """Begin to follow a request."""
        if earlier := self._living.get(request.request_id):
            self.unfollow(earlier.request)
        self._living[request.request_id] = _Followed(request)

    def unfollow(self, request: "Request") -> None:
        """Stop following a request; can be called any number of times."""
        followed = self._living.pop(request.request_id, None)
        if followed is None:
            return
        self._place_hashes(followed)
        if not followed.hashes:
            return
        self._num_ended_hashes += len(followed.hashes)
        self._ended.append(followed)
        while self._num_ended_hashes > self._num_blocks and len(self._ended) > 1:
            oldest = self._ended.popleft()
            self._num_ended_hashes -= len(oldest.hashes)
            for block_hash in oldest.hashes:
                self._forget(oldest.request, block_hash)

    def take(self) -> list[KVCacheEvent]:
        """Take the changes since the last call, in order. Neighbouring blocks of one request are in one event."""
        events: list[KVCacheEvent] = []
        for (is_stored, group), run in groupby(
            self._take_placed(), key=lambda change: (change.is_stored, change.group)
        ):
            if is_stored:
                pieces = _pieces(run, self._sizes.hashes_per_block[group])
                events.extend(self._stored(group, piece) for piece in pieces)
            else:
                events.append(self.removed_event(group, [change.block_hash for change in run]))
        return events

    def close(self) -> None:
        """Do nothing: there is nothing to end."""

    def take_words(self) -> list[tuple[int, bytes, BlockWords]]:
        """Take group, hash and words of each block that was stored since the last call and has a place."""
        return [
            (change.group, change.block_hash, self._words_at(change.group, change.place))
            for change in self._take_placed()
            if change.place is not None
        ]

    def stored_event(
        self,
        group: int,
        hashes: Iterable[bytes],
        words: Sequence[BlockWords],
        lora: "LoRARequest | None" = None,
    ) -> BlockStored:
        """Make the event of stored blocks, each of which follows the one before. Without words it has hashes alone."""
        spec = self._specs[group]
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(block_hash) for block_hash in hashes],
            parent_block_hash=maybe_convert_block_hash(words[0].parent) if words and words[0].parent else None,
            token_ids=[token for block in words for token in block.token_ids],
            block_size=self._sizes.block_tokens(group) if words else 0,
            lora_id=lora.adapter_id if lora else None,
            medium=MEDIUM_CPU,
            lora_name=lora.name if lora else None,
            extra_keys=versions.event_extra_keys([block.extra_keys for block in words]) if words else None,
            group_idx=group,
            kv_cache_spec_kind=get_kv_cache_spec_kind(spec).value,
            kv_cache_spec_sliding_window=get_kv_cache_spec_sliding_window(spec),
        )

    def removed_event(self, group: int, hashes: Iterable[bytes]) -> BlockRemoved:
        """Make the event of blocks that left the tier."""
        return BlockRemoved(
            block_hashes=[maybe_convert_block_hash(block_hash) for block_hash in hashes],
            medium=MEDIUM_CPU,
            group_idx=group,
        )

    def _take_placed(self) -> list[_Change]:
        """Take the changes, with the places of the blocks that were stored."""
        changes = self._take()
        if changes:
            for followed in self._living.values():
                self._place_hashes(followed)
        return [
            _Change(is_stored, group, block_hash, self._places.get(block_hash) if is_stored else None)
            for is_stored, group, block_hash in changes
        ]

    def _place_hashes(self, followed: _Followed) -> None:
        """Give a place to a request's new hashes, and remove the places of those that it has taken back."""
        request, placed = followed.request, followed.hashes
        hashes = request.block_hashes
        # Hashes are chained: if the last one is equal, all before it are.
        while placed and (len(placed) > len(hashes) or placed[-1] != hashes[len(placed) - 1]):
            self._forget(request, placed.pop())
        if not request.num_computed_tokens:  # a queued request has stored nothing, and can have many hashes
            return
        for index in range(len(placed), len(hashes)):
            placed.append(hashes[index])
            self._places[hashes[index]] = _Place(request, index)

    def _forget(self, request: "Request", block_hash: bytes) -> None:
        """Remove a hash's place if it is still in this request."""
        place = self._places.get(block_hash)
        if place is not None and place.request is request:
            del self._places[block_hash]

    def _stored(self, group: int, piece: list[_Change]) -> BlockStored:
        words = [self._words_at(group, change.place) for change in piece if change.place is not None]
        lora = piece[0].place.request.lora_request if piece[0].place is not None else None
        return self.stored_event(group, [change.block_hash for change in piece], words, lora)

    def _words_at(self, group: int, place: _Place) -> BlockWords:
        # A block has the place of its last hash.
        request, last = place
        first = last + 1 - self._sizes.hashes_per_block[group]
        begin = first * self._sizes.hash_tokens
        end = begin + self._sizes.block_tokens(group)
        return BlockWords(
            parent=request.block_hashes[first - 1] if first else None,
            token_ids=request.all_token_ids[begin:end],
            extra_keys=generate_block_hash_extra_keys(request, begin, end, 0)[0],
        )


def _pieces(changes: Iterator[_Change], distance: int) -> Iterator[list[_Change]]:
    """Split stored blocks into runs of neighbours: blocks of one request that are `distance` hashes apart."""
    piece: list[_Change] = []
    for change in changes:
        if piece and not _are_neighbours(piece[-1].place, change.place, distance):
            yield piece
            piece = []
        piece.append(change)
    if piece:
        yield piece


def _are_neighbours(one: _Place | None, other: _Place | None, distance: int) -> bool:
    if one is None or other is None or one.request is not other.request:
        return False
    return one.number + distance == other.number
