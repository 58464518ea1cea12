# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV events of a shared tier: every engine reports the *whole* tier, because it can load all of it.

A router knows workers, and assumes that a worker can load what it reports. So each engine looks at the slots of the
tier ten times a second, in its own thread, and reports which blocks became loadable and which no longer are. It does so
whichever engine stored or evicted them, and even if it has no step to do.
"""

import contextlib
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import KVCacheEvent, KVEventBatch
from vllm.logger import init_logger

from kvferry.vllm.block_words import BlockWords, WordsFile
from kvferry.vllm.callers import being_made
from kvferry.vllm.kv_events import KvEvents

if TYPE_CHECKING:
    from kvferry import _core

logger = init_logger("vllm.kvferry")

# Time between two looks at the tier, unless looking then takes more than a fiftieth of a core's time.
PERIOD_S = 0.1
_LEAST_PAUSE = 50.0
# Most changes that one look reports: an engine that starts late has to report all of the tier.
_MOST_CHANGES = 1024
# If a block has no words yet, they are looked for ever less often, down to one in this many looks.
_RAREST_LOOK = 64
# Far longer than a look takes.
_PATIENCE_S = 10.0

_Key = tuple[int, bytes]
"""KV cache group and hash of a block."""


@dataclass(eq=False)
class _Unsaid:
    """A block in a slot, of which no engine has written the words yet."""

    slot: int
    key: _Key
    wait: int = 1


class SharedEvents:
    """Reports the content of a shared tier; see the module.

    A block is reported once, however many slots hold it, and as soon as its words are known. The first look comes after
    the engine's first step, because a router that gave it a request is listening then.

    Parameters
    ----------
    engine
        The core's scheduler side, made with a shared tier.
    own
        Knows what this engine stores, and makes events.
    words
        The file in which engines write the words of their blocks. None: this engine reports only its own blocks.
    publish
        Publishes events at once. None: `take` returns them when the engine makes a step.
    keep_words
        Whether the file `words` is kept.

    """

    def __init__(
        self,
        engine: "_core.SchedulerEngine",
        own: KvEvents,
        words: WordsFile | None,
        publish: Callable[[list[KVCacheEvent]], None] | None,
        keep_words: bool = False,
    ) -> None:
        self._take_changes = engine.take_tier_changes
        self._own_events = own
        self.follow = own.follow
        self.unfollow = own.unfollow
        self._words_file = words
        self._keep_words = keep_words
        self._publish = publish
        # From the engine's thread to the reporting thread, and back.
        self._noted: queue.SimpleQueue[list[tuple[int, bytes, BlockWords]]] = queue.SimpleQueue()
        self._untaken: queue.SimpleQueue[list[KVCacheEvent]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        # The members below belong to the reporting thread.
        self._holders: defaultdict[_Key, set[int]] = defaultdict(set)
        self._told: set[_Key] = set()
        self._unsaid: dict[int, _Unsaid] = {}
        self._due: defaultdict[int, list[_Unsaid]] = defaultdict(list)
        self._own: dict[_Key, tuple[BlockWords, int]] = {}
        self._num_looks = 0
        self._num_whole_looks = 0

    def take(self) -> list[KVCacheEvent]:
        """Note what this engine has stored, and return the events that were not published at once."""
        if words := self._own_events.take_words():
            self._noted.put(words)
        if self._thread is None and not self._ended.is_set():
            self.begin()
        events: list[KVCacheEvent] = []
        while not self._untaken.empty():
            events += self._untaken.get()
        return events

    def begin(self) -> None:
        """Start the reporting thread."""
        self._thread = threading.Thread(target=self._tell, name="kvferry-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after it has written the words of this engine's blocks for other engines; idempotent."""
        self._ended.set()
        if self._thread is not None:
            # If the publisher blocks it for longer, it does not touch the engine any more.
            self._thread.join(_PATIENCE_S)
        if self._words_file is not None:
            if self._thread is not None and not self._thread.is_alive():
                self.look()
            self._words_file.close(self._keep_words)
        self._thread = self._words_file = None

    def look(self) -> list[KVCacheEvent]:
        """Look at the tier, and return the events to report now."""
        self._num_looks += 1
        while not self._noted.empty():
            for group, block_hash, words in self._noted.get():
                self._own[group, block_hash] = words, self._num_whole_looks
        changes = self._take_changes(_MOST_CHANGES)
        gone = self._apply(changes)
        if len(changes) < _MOST_CHANGES:
            self._num_whole_looks += 1
            self._forget_own()
        found = self._find_words()
        events: list[KVCacheEvent] = [
            self._own_events.removed_event(group, hashes) for group, hashes in _by_group(gone).items()
        ]
        of_group: defaultdict[int, list[tuple[bytes, BlockWords]]] = defaultdict(list)
        for (group, block_hash), words in found:
            of_group[group].append((block_hash, words))
        for group, blocks in of_group.items():
            for run in _runs(blocks):
                hashes, words_of_run = zip(*run, strict=True)
                events.append(self._own_events.stored_event(group, hashes, words_of_run))
        return events

    def _tell(self) -> None:
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            began = time.perf_counter()
            num_whole = self._num_whole_looks
            try:
                if events := self.look():
                    self._deliver(events)
            except Exception:
                if not self._ended.is_set():
                    logger.exception("kvferry: this engine reports no more KV events of the shared tier to routers")
                return
            is_whole = self._num_whole_looks > num_whole
            pause_s = max(PERIOD_S, _LEAST_PAUSE * (time.perf_counter() - began)) if is_whole else 0.0

    def _deliver(self, events: list[KVCacheEvent]) -> None:
        if self._publish is None:
            self._untaken.put(events)
        else:
            self._publish(events)

    def _apply(self, changes: Iterable[tuple[bool, int, bytes, int]]) -> list[_Key]:
        """Note which slots hold which blocks; return the reported blocks that no slot holds any more."""
        left: list[_Key] = []
        for is_stored, group, block_hash, slot in changes:
            key = group, block_hash
            if is_stored:
                self._holders[key].add(slot)
                self._unsaid[slot] = unsaid = _Unsaid(slot, key)
                self._due[self._num_looks].append(unsaid)
            else:
                self._holders[key].discard(slot)
                self._unsaid.pop(slot, None)
                left.append(key)
        gone = []
        for key in left:
            if key in self._holders and not self._holders[key]:
                del self._holders[key]
                if key in self._told:
                    self._told.remove(key)
                    gone.append(key)
        return gone

    def _find_words(self) -> list[tuple[_Key, BlockWords]]:
        """Return the unreported blocks whose words are known now. Write the words of this engine's own blocks."""
        found = []
        for unsaid in self._due.pop(self._num_looks, ()):
            if self._unsaid.get(unsaid.slot) is not unsaid:
                continue
            words = self._words_of(unsaid.slot, unsaid.key)
            if words is None and (unsaid.key not in self._told or unsaid.wait == 1):
                unsaid.wait = min(2 * unsaid.wait, _RAREST_LOOK)
                self._due[self._num_looks + unsaid.wait // 2].append(unsaid)
                continue
            del self._unsaid[unsaid.slot]
            if words is not None and unsaid.key not in self._told:
                self._told.add(unsaid.key)
                found.append((unsaid.key, words))
        return found

    def _words_of(self, slot: int, key: _Key) -> BlockWords | None:
        """Find the words of the block in a slot, and write them there for other engines."""
        own = self._own.get(key)
        if self._words_file is None:
            return own[0] if own else None
        if own is None and (words := self._words_file.read(slot, *key)):
            return words
        words = own[0] if own else self._written_elsewhere(self._words_file, key)
        if words:
            self._words_file.write(slot, *key, words)
        return words

    def _written_elsewhere(self, file: WordsFile, key: _Key) -> BlockWords | None:
        """Find the words of a block at any of the slots that hold it."""
        found = (file.read(slot, *key) for slot in self._holders[key])
        return next((words for words in found if words), None)

    def _forget_own(self) -> None:
        """Forget the words of own blocks whose slots have been seen by now, or were evicted before that."""
        old = [key for key, (_, since) in self._own.items() if since + 2 < self._num_whole_looks]
        for key in old:
            del self._own[key]


def of_tier(
    path: str, keep_words: bool, block_tokens: int, engine: "_core.SchedulerEngine", own: KvEvents
) -> SharedEvents:
    """Make the `SharedEvents` of the tier at `path`. Call it while vLLM creates its scheduler.

    Parameters
    ----------
    path
        File of the tier.
    keep_words
        Whether the file with the words of blocks is kept with it.
    block_tokens
        Tokens of the largest block.
    engine, own
        As for `SharedEvents`.

    """
    from vllm.v1.core.sched.scheduler import Scheduler

    words: WordsFile | None = None
    try:
        words = WordsFile(path, block_tokens)
    except OSError as error:
        logger.warning("kvferry: this engine reports only its own blocks to routers: %s", error)
    scheduler = being_made(Scheduler)
    if scheduler is None:
        logger.warning("kvferry: vLLM's scheduler was not found: KV events of the shared tier are sent only in steps")
    publish = _publisher_of(scheduler) if scheduler is not None else None
    return SharedEvents(engine, own, words, publish, keep_words)


def _publisher_of(scheduler: Any) -> Callable[[list[KVCacheEvent]], None]:
    """Return a function that publishes events together with those of the engine's own cache, from any thread."""

    def publish(events: list[KVCacheEvent]) -> None:
        # When the engine ends, it closes its publisher before its connector.
        with contextlib.suppress(RuntimeError):
            scheduler.kv_event_publisher.publish(KVEventBatch(ts=time.time(), events=events))

    return publish


def _by_group(keys: Iterable[_Key]) -> dict[int, list[bytes]]:
    of_group: defaultdict[int, list[bytes]] = defaultdict(list)
    for group, block_hash in keys:
        of_group[group].append(block_hash)
    return of_group


def _runs(blocks: list[tuple[bytes, BlockWords]]) -> Iterator[list[tuple[bytes, BlockWords]]]:
    """Order blocks into runs in which each block follows its parent."""
    hashes = {block_hash for block_hash, _ in blocks}
    following: defaultdict[bytes, list[tuple[bytes, BlockWords]]] = defaultdict(list)
    heads = []
    for block in blocks:
        parent = block[1].parent
        if parent is not None and parent in hashes:
            following[parent].append(block)
        else:
            heads.append(block)
    while heads:
        run = [heads.pop()]
        while next_ones := following.pop(run[-1][0], None):
            run.append(next_ones[0])
            heads += next_ones[1:]
        yield run
