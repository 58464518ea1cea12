# SPDX-License-Identifier: Apache-2.0
"""Whatever a user writes as configuration is accepted, or refused in one line; nothing else comes of it.

Random configurations, and mutations of those in ``tests/fuzz/corpus/config``: each goes to the reader and to the
doctor, and what is accepted to a real engine. A second or two in every run; ``KVFERRY_FUZZ_SECONDS`` says for how long,
``KVFERRY_SEED`` from which seed on. What fails is to be put into the corpus.
"""

import ctypes
import dataclasses
import json
import os
import random
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kvferry import _core
from kvferry.config import SCHEDULER, WORKER, KvFerryConfig
from kvferry.doctor.verdict import judge
from kvferry.errors import ConfigError, Error
from kvferry.sizes import parse_size

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus" / "config"
SECONDS = float(os.environ.get("KVFERRY_FUZZ_SECONDS", "2"))
FIRST_SEED = int(os.environ.get("KVFERRY_SEED", "1"))
KEYS = [field.name for field in dataclasses.fields(KvFerryConfig)]
LINK_KEYS = [
    "bandwidth_gb_s", "h2d_gb_s", "d2h_gb_s", "latency_us", "jitter_us", "stall_us", "order", "fail_nth", "seed",
]  # fmt: skip
BLOCK_BYTES = 4096

NUMBERS: list[Any] = [
    0, 1, 2, 3, 7, 16, 64, 300, 1023, 1024, 4095, 4096, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**56, 2**56 + 1,
    2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 10**400, -1, -(2**63), 0.5, 1.0, 1e-320, 1e-9, 0.001, 864_000.0, 1e10,
    1e18, 1e19, 1e300, -0.0, 1.5e9, float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
TEXTS = [
    "", " ", "auto", "host", "cuda", "huge", "normal", "adaptive", "lru", "arc", "always", "batch", "fifo", "8GiB",
    "8 gib", "0.5MiB", "1e9", "4GB/s", "0GB/s", "-1GiB", "9" * 400, "9" * 5000, "1." + "0" * 5000 + "1GiB",
    "\uff11\uff12GiB", "8G\u0130B", "/dev/shm/kvferry-fuzz/tier", "/dev/shm/", "/", "//", "/dev/shm/../proc/x",
    "/dev/shm/a\0b", "/proc/self/mem", "/dev/shm/" + "x" * 300, "/dev/shm/[red]",
    "\ud800", "/dev/shm/\udcff", "a\nb", "\u2028", "\x1b[31m", "{}", "😀",
    "\N{KELVIN SIGN}iB", "8\N{NO-BREAK SPACE}GiB",
]  # fmt: skip


def random_text(rng: random.Random) -> str:
    alphabet = rng.choice([string.printable, "0123456789.eE+-GMKTiB/s ", "\0\n\x7f\x85\u2028\ud800\uffff😀/[]"])
    return "".join(rng.choice(alphabet) for _ in range(rng.choice([1, 2, 5, 20, 200])))


def random_key(rng: random.Random) -> str:
    key = rng.choice(KEYS)
    kind = rng.random()
    if kind < 0.85:
        return key
    if kind < 0.95:
        at = rng.randrange(len(key))
        return key[:at] + rng.choice(["", "x", "_", "\n"]) + key[at + rng.randrange(2) :]
    return random_text(rng)


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(NUMBERS)
    if kind < 0.65:
        return rng.choice(TEXTS)
    if kind < 0.75:
        return random_text(rng)
    if kind < 0.85:
        return rng.choice([True, False, None])
    if depth > 3:
        return []
    if kind < 0.92:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {random_text(rng): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def random_link(rng: random.Random) -> dict[str, Any]:
    return {rng.choice([*LINK_KEYS, "fail_probability", "Order"]): random_value(rng) for _ in range(rng.randrange(5))}


def random_configuration(rng: random.Random) -> dict[str, Any]:
    found = {random_key(rng): random_value(rng) for _ in range(rng.randrange(1, 6))}
    if rng.random() < 0.2:
        found["host_link"] = random_link(rng)
    return found


def nested(rng: random.Random) -> str:
    depth = rng.choice([10, 900, 990, 3000, 100_000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    return f'{{"{rng.choice(KEYS)}": {opening * depth}1{closing * depth}}}'


def mutated(rng: random.Random, text: str) -> str:
    """The text of a configuration with some values or characters changed."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if isinstance(given, dict) and given and rng.random() < 0.7:
        key = rng.choice(list(given))
        change = rng.random()
        if change < 0.6:
            given[key] = random_value(rng)
        elif change < 0.8:
            given[random_key(rng)] = given.pop(key)
        else:
            given |= random_configuration(rng)
        return json.dumps(given)
    out = list(text)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(out) + 1)
        out[at : at + rng.randrange(3)] = rng.choice(["", '"', "{", "9", ",", "\\", "\0", random_text(rng)])
    return "".join(out)


def assert_is_one_line(text: str) -> None:
    assert text, "an error that says nothing"
    assert text.isprintable() or text.replace("\n", "") == text, text
    assert len(text.splitlines()) == 1, text
    text.encode()  # can be printed


def read(given: Any) -> KvFerryConfig | None:
    """The configuration, or None with a right complaint."""
    try:
        return KvFerryConfig.from_extra_config(given)
    except ConfigError as error:
        text = str(error)
        assert_is_one_line(text)
        assert text.startswith("kv_connector_extra_config: ")
        assert any(
            word in text for word in ("allowed is ", "valid keys are ", "set both, or neither", "leave pages out")
        )
        assert any(_is_named(key, text) for key in given), text
        return None


def _is_named(key: str, text: str) -> bool:
    return ascii(key)[1:40].rstrip("'\"") in text or repr(key)[1:40].rstrip("'\"") in text


class Room:
    """Memory for the KV cache of a small real engine."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(2 * BLOCK_BYTES)

    def try_engines(self, config: KvFerryConfig) -> None:
        """Make both sides with all that the configuration gives them but memory; an `Error` is an answer, too."""
        scheduler = _core.SchedulerEngine(
            world_size=1, hash_tokens=16, num_blocks=2, slot_bytes=[[BLOCK_BYTES]], slots_per_chunk=[1], max_chunks=4,
            replicas=[(1, 0)], key_events=False, group_reaches=[("all", 0)], group_classes=[0],
            group_hashes_per_block=[1], others_load=True, max_load_wait_s=1, rank_timeout_s=config.rank_timeout_s,
            store_later_turns=True,
            **config.told_to(SCHEDULER) | {"shared_path": None},
        )  # fmt: skip
        scheduler.close()
        worker = _core.WorkerEngine(
            backend="host", rank=0, world_size=1, num_blocks=2, num_chunks=4, slots_per_chunk=[1],
            fragments=[[(ctypes.addressof(self._memory), BLOCK_BYTES, BLOCK_BYTES)]],
            staging_bytes=4 * BLOCK_BYTES, load_staging_bytes=2 * BLOCK_BYTES,
            **config.told_to(WORKER) | {"shared_path": None, "numa_node": None, "pages": "auto"},
        )  # fmt: skip
        assert worker.collect() == [], "no transfer is overdue before one has begun"
        worker.close()


def check_accepted(config: KvFerryConfig, rng: random.Random) -> None:
    """What an engine works out from it is a size, or refused in one line."""
    slot_bytes = rng.choice([1, 4096, 2**20, 2**40])
    questions: list[Callable[[], int]] = [
        lambda: config.tier_bytes(slot_bytes, rng.choice([1, 8, 63])),
        lambda: config.ring_bytes([slot_bytes, 3 * slot_bytes], [16, 32], 8192),
        lambda: config.load_ring_bytes(slot_bytes),
        lambda: config.shared_capacity(rng.choice([1, 63])),
    ]
    for ask in questions:
        try:
            assert 0 <= ask() < 2**63
        except ConfigError as error:
            assert_is_one_line(str(error))


def check(text: str, rng: random.Random, room: Room) -> None:
    verdict = judge(text, rng.choice([1, 2, 63]))
    if verdict.refusal:
        assert_is_one_line(verdict.refusal)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        assert verdict.refusal
        return
    if isinstance(given, dict) and "kv_connector" in given:
        given = given.get("kv_connector_extra_config", {})
    if not isinstance(given, dict):
        assert verdict.refusal
        return
    config = read(given)
    if config is None:
        assert verdict.refusal
        return
    check_accepted(config, rng)
    try:
        room.try_engines(config)
    except Error as error:
        assert_is_one_line(str(error))


def texts_of(rng: random.Random, corpus: list[str]) -> Iterator[str]:
    for _ in range(50):
        yield json.dumps(random_configuration(rng))
        yield mutated(rng, rng.choice(corpus))
    yield nested(rng)


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return [file.read_text(encoding="utf-8") for file in sorted(CORPUS.glob("*.json"))]


def test_corpus_is_accepted_or_refused_in_one_line(corpus: list[str]) -> None:
    assert len(corpus) >= 20
    for text in corpus:
        check(text, random.Random(0), Room())


def test_whatever_is_written_is_accepted_or_refused_in_one_line(corpus: list[str]) -> None:
    room, end = Room(), time.monotonic() + SECONDS
    seed = FIRST_SEED
    num_accepted = num_checked = 0
    while seed == FIRST_SEED or time.monotonic() < end:
        rng = random.Random(seed)
        for text in texts_of(rng, corpus):
            try:
                check(text, rng, room)
            except BaseException as error:
                error.add_note(f"KVFERRY_SEED={seed}, with the configuration {text[:2000]!a}")
                raise
            num_checked += 1
            num_accepted += not judge(text, 1).refusal
        seed += 1
    print(f"{num_checked} configurations of seeds {FIRST_SEED} to {seed - 1}, {num_accepted} of them accepted")
    assert num_accepted > 0


def test_sizes_are_read_or_none_whatever_they_are() -> None:
    rng = random.Random(FIRST_SEED)
    for _ in range(2000):
        found = parse_size(random_value(rng))
        assert found is None or (isinstance(found, int) and found >= 0)
