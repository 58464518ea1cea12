# SPDX-License-Identifier: Apache-2.0
"""What routers are told of a block beside its hash, and the file by which engines that share a tier tell each other.

A slot of a shared tier has the hash of its block. A router wants its tokens too, and these only the engine knows that
computed the block. So that engine writes them into a file beside the tier, at the place of the slot, and any other
one can tell of the block: one that was idle meanwhile, one that comes later, and one that lives on.
"""

import contextlib
import fcntl
import os
import struct
import time
import zlib
from typing import Any, NamedTuple

import msgspec
from vllm.logger import init_logger

from kvferry import tiers

logger = init_logger("vllm.kvferry")

# Of the payload behind it: length and CRC-32. A reader may see half of what is being written.
_HEADER = struct.Struct("<II")
# Hash, parent and group as they are written, and what else a hash covers: a salt, or some items.
_BYTES_BESIDE_TOKENS = 288
_ALIGNMENT = 64
# A lock on the whole file is held for microseconds.
_PATIENCE_S = 1.0


class BlockWords(NamedTuple):
    """What a router is told of a block beside its hash.

    Attributes
    ----------
    parent
        Hash of the block before it; None for the first one.
    token_ids
        Its tokens.
    extra_keys
        What else its hash covers, as vLLM's ``generate_block_hash_extra_keys`` says it.

    """

    parent: bytes | None
    token_ids: list[int]
    extra_keys: tuple[Any, ...] | None


def encode(group: int, block_hash: bytes, words: BlockWords) -> bytes:
    """Write down what is told of a block, with what it is about."""
    tokens = struct.pack(f"<{len(words.token_ids)}I", *words.token_ids)
    return msgspec.msgpack.encode((group, block_hash, words.parent, tokens, words.extra_keys))


def decode(payload: bytes) -> tuple[int, bytes, BlockWords]:
    """Read what `encode` wrote.

    Raises
    ------
    ValueError
        It is nothing of the kind.

    """
    try:
        group, block_hash, parent, tokens, extra_keys = msgspec.msgpack.decode(payload)
        token_ids = list(struct.unpack(f"<{len(tokens) // 4}I", tokens))
    except (msgspec.DecodeError, struct.error, TypeError) as error:
        raise ValueError(f"no words of a block: {error}") from error
    return group, block_hash, BlockWords(parent, token_ids, _as_tuples(extra_keys))


def _as_tuples(value: Any) -> Any:
    """Return what msgpack made lists of as the tuples that it was."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


class WordsFile:
    """The words of the blocks in a shared tier, by slot.

    Its content is right or nothing, whatever became of the engine that wrote it: each entry says which block it is
    about, and a block's words follow from its hash. The last engine that has the file open removes it.

    Parameters
    ----------
    tier_path
        File of the tier.
    block_tokens
        Of the largest block. Engines with blocks of another size have a file of their own.

    Raises
    ------
    OSError
        It cannot be opened.

    """

    def __init__(self, tier_path: str, block_tokens: int) -> None:
        size = _HEADER.size + _BYTES_BESIDE_TOKENS + 4 * block_tokens
        self._entry_bytes = -(-size // _ALIGNMENT) * _ALIGNMENT
        self._path = f"{tiers.event_words_prefix(tier_path)}{self._entry_bytes}"
        self._descriptor = self._open()
        self._has_warned = False

    def _open(self) -> int:
        """Open the file that the path leads to while it is held, so that nobody removes it."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(self._path), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._path} is locked by a process that lists it for removal")
            time.sleep(0.01)

    def write(self, slot: int, group: int, block_hash: bytes, words: BlockWords) -> None:
        """Write the words of the block in a slot; what does not fit is left out."""
        payload = encode(group, block_hash, words)
        entry = _HEADER.pack(len(payload), zlib.crc32(payload)) + payload
        if len(entry) > self._entry_bytes:
            return
        try:
            os.pwrite(self._descriptor, entry, slot * self._entry_bytes)
        except OSError as error:
            if not self._has_warned:
                logger.warning(
                    "kvferry: %s cannot be written (%s): routers hear of this engine's blocks from itself only",
                    self._path,
                    error.strerror,
                )
                self._has_warned = True

    def read(self, slot: int, group: int, block_hash: bytes) -> BlockWords | None:
        """Read the words of a block; None: they are not there."""
        entry = os.pread(self._descriptor, self._entry_bytes, slot * self._entry_bytes)
        if len(entry) < _HEADER.size:
            return None
        length, check = _HEADER.unpack_from(entry)
        payload = entry[_HEADER.size : _HEADER.size + length]
        if not length or len(payload) != length or zlib.crc32(payload) != check:
            return None
        try:
            of_group, of_hash, words = decode(payload)
        except ValueError:
            return None
        return words if (of_group, of_hash) == (group, block_hash) else None

    def close(self, keep: bool) -> None:
        """Close it; the last one removes it, unless it is to be kept. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        with contextlib.suppress(OSError):
            if not keep:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(self._path), os.fstat(descriptor)):
                    os.unlink(self._path)
        os.close(descriptor)
