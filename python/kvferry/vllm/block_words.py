# SPDX-License-Identifier: Apache-2.0
"""A block's *words*: what routers need to know besides its hash. Engines that share a tier exchange them in a file.

A slot of a shared tier has the hash of its block. A router needs the block's tokens too, and only the engine that
computed the block knows them. So that engine writes them into a file next to the tier, at the place of the slot. Then
any other engine can report the block: one that was idle meanwhile, one that starts later, and one that survives.
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

# Length and CRC-32 of the payload that follows. A reader can see an entry that is half written.
_HEADER = struct.Struct("<II")
# For the encoded hash, parent and group, and for other inputs of the hash: a salt, or some items.
_BYTES_BESIDE_TOKENS = 288
_ALIGNMENT = 64
# Far longer than a lock on the file for its removal is held: microseconds.
_PATIENCE_S = 1.0


class BlockWords(NamedTuple):
    """What a router is told about a block besides its hash.

    Attributes
    ----------
    parent
        Hash of the block before it; None for the first block.
    token_ids
        Its tokens.
    extra_keys
        The other inputs of its hash, from vLLM's ``generate_block_hash_extra_keys``.

    """

    parent: bytes | None
    token_ids: list[int]
    extra_keys: tuple[Any, ...] | None


def encode(group: int, block_hash: bytes, words: BlockWords) -> bytes:
    """Encode a block's group, hash and words."""
    tokens = struct.pack(f"<{len(words.token_ids)}I", *words.token_ids)
    return msgspec.msgpack.encode((group, block_hash, words.parent, tokens, words.extra_keys))


def decode(payload: bytes) -> tuple[int, bytes, BlockWords]:
    """Decode the result of `encode`.

    Raises
    ------
    ValueError
        The payload is not the result of `encode`.

    """
    try:
        group, block_hash, parent, tokens, extra_keys = msgspec.msgpack.decode(payload)
        token_ids = list(struct.unpack(f"<{len(tokens) // 4}I", tokens))
    except (msgspec.DecodeError, struct.error, TypeError) as error:
        raise ValueError(f"not the words of a block: {error}") from error
    return group, block_hash, BlockWords(parent, token_ids, _as_tuples(extra_keys))


def _as_tuples(value: Any) -> Any:
    """Convert lists to tuples, because msgpack decodes tuples as lists."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


class WordsFile:
    """The words of the blocks in a shared tier, by slot.

    A read returns correct words or nothing, even if the engine that wrote them has died: each entry names its block,
    and a block's words are determined by its hash. The last engine that has the file open removes it.

    Parameters
    ----------
    tier_path
        File of the tier.
    block_tokens
        Tokens of the largest block. Engines with blocks of another size use another file.

    Raises
    ------
    OSError
        The file cannot be opened.

    """

    def __init__(self, tier_path: str, block_tokens: int) -> None:
        size = _HEADER.size + _BYTES_BESIDE_TOKENS + 4 * block_tokens
        self._entry_bytes = -(-size // _ALIGNMENT) * _ALIGNMENT
        self._path = f"{tiers.event_words_prefix(tier_path)}{self._entry_bytes}"
        self._descriptor = self._open()
        self._has_warned = False

    def _open(self) -> int:
        """Open and lock the file at the path, so that no other process removes it."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(self._path), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._path} is locked by a process that is removing it")
            time.sleep(0.01)

    def write(self, slot: int, group: int, block_hash: bytes, words: BlockWords) -> None:
        """Write the words of the block in a slot, if they fit into an entry."""
        payload = encode(group, block_hash, words)
        entry = _HEADER.pack(len(payload), zlib.crc32(payload)) + payload
        if len(entry) > self._entry_bytes:
            return
        try:
            os.pwrite(self._descriptor, entry, slot * self._entry_bytes)
        except OSError as error:
            if not self._has_warned:
                logger.warning(
                    "kvferry: %s cannot be written (%s): only this engine reports its blocks to routers",
                    self._path,
                    error.strerror,
                )
                self._has_warned = True

    def read(self, slot: int, group: int, block_hash: bytes) -> BlockWords | None:
        """Read the words of a block; None if they are not there."""
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
        """Close the file. The last engine removes it, unless it should be kept. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        with contextlib.suppress(OSError):
            if not keep:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(self._path), os.fstat(descriptor)):
                    os.unlink(self._path)
        os.close(descriptor)
