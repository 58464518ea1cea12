# SPDX-License-Identifier: Apache-2.0
"""The options of the core's engines: a key that is unknown, missing or wrong is refused in one line that names it."""

import ctypes
from pathlib import Path
from typing import Any

import pytest
from kvferry import _core
from kvferry.config import SCHEDULER, WORKER, KvFerryConfig, Side
from kvferry.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
BLOCK_BYTES = 4096
MEMORY = ctypes.create_string_buffer(2 * BLOCK_BYTES)

WORKER_OPTIONS: dict[str, Any] = {
    "backend": "host", "rank": 0, "world_size": 1, "num_blocks": 2, "num_chunks": 4, "slots_per_chunk": [1],
    "fragments": [[(ctypes.addressof(MEMORY), BLOCK_BYTES, BLOCK_BYTES)]],
    "staging_bytes": 4 * BLOCK_BYTES, "max_in_flight_bytes": 1 << 20, "transfer_timeout_s": 60.0,
}  # fmt: skip
SCHEDULER_OPTIONS: dict[str, Any] = {
    "world_size": 1, "hash_tokens": 16, "num_blocks": 2, "slot_bytes": [[BLOCK_BYTES]], "slots_per_chunk": [1],
    "max_chunks": 4, "replicas": [(1, 0)], "key_events": False, "group_reaches": [("all", 0)], "group_classes": [0],
    "group_hashes_per_block": [1], "others_load": True, "max_load_wait_s": 1, "rank_timeout_s": 60.0,
    "store_later_turns": True,
    **KvFerryConfig().told_to(SCHEDULER),
}  # fmt: skip
CLIENT_OPTIONS: dict[str, Any] = {"capacity": 64 << 20}

ENGINES = {
    _core.WorkerEngine: WORKER_OPTIONS,
    _core.SchedulerEngine: SCHEDULER_OPTIONS,
    _core.ObjectClient: CLIENT_OPTIONS,
}


def message_of(engine: type, **changes: Any) -> str:
    """What the engine says to its usual options with these changes; `...` takes a key out."""
    options = {key: value for key, value in (ENGINES[engine] | changes).items() if value is not ...}
    with pytest.raises(ConfigError) as caught:
        engine(**options)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
def test_usual_options_are_enough_and_close_again(engine: type) -> None:
    engine(**ENGINES[engine]).close()


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
def test_unknown_key_is_named_with_those_that_are_known(engine: type) -> None:
    text = message_of(engine, pinned_peace_bytes=1)
    assert text.startswith(f"{engine.__name__}: unknown key 'pinned_peace_bytes'; expected ")
    assert all(key in text for key in ENGINES[engine])


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        (_core.WorkerEngine, "rank"),
        (_core.WorkerEngine, "staging_bytes"),
        (_core.SchedulerEngine, "eviction"),
        (_core.SchedulerEngine, "group_reaches"),
        (_core.ObjectClient, "capacity"),
    ],
)
@pytest.mark.parametrize("value", [..., None], ids=["left out", "None"])
def test_missing_key_is_named(engine: type, key: str, value: object) -> None:
    assert message_of(engine, **{key: value}).startswith(f"{engine.__name__}: {key} is missing; expected a value")


@pytest.mark.parametrize(
    ("engine", "key", "value", "complaint"),
    [
        (_core.WorkerEngine, "rank", "0", "rank is '0'; expected a whole number from 0 to 4294967295"),
        (_core.WorkerEngine, "rank", -1, "rank is -1; expected a whole number"),
        (_core.WorkerEngine, "rank", True, "rank is True; expected a whole number"),
        (_core.WorkerEngine, "rank", 2**32, f"rank is {2**32}; expected a whole number"),
        (_core.WorkerEngine, "rank", 1.0, "rank is 1.0; expected a whole number"),
        (_core.WorkerEngine, "staging_bytes", 2**64, f"staging_bytes is {2**64}; expected a whole number from 0 to"),
        (_core.WorkerEngine, "allow_smaller_tier", 1, "allow_smaller_tier is 1; expected True or False"),
        (_core.WorkerEngine, "backend", 3, "backend is 3; expected a text"),
        (_core.WorkerEngine, "backend", "\ud800", "backend is '\\ud800'; expected a text that UTF-8 can write"),
        (_core.WorkerEngine, "slots_per_chunk", 1, "slots_per_chunk is 1; expected a list"),
        (_core.WorkerEngine, "slots_per_chunk", [1, "2"], "slots_per_chunk[1] is '2'; expected a whole number"),
        (_core.WorkerEngine, "fragments", [[(0, 1)]], "fragments[0][0] is (0, 1); expected a tuple of 3"),
        (_core.WorkerEngine, "transfer_timeout_s", "1", "transfer_timeout_s is '1'; expected a number"),
        (_core.WorkerEngine, "transfer_timeout_s", float("nan"), "expected a number of seconds from 0 to 1e+09"),
        (_core.WorkerEngine, "transfer_timeout_s", 10**400, "expected a number that a double can hold"),
        (_core.WorkerEngine, "host_link", [], "host_link is []; expected a dict"),
        (_core.WorkerEngine, "host_link", {"h2d_gbs": 1}, "host_link: unknown key 'h2d_gbs'; expected h2d_gb_s, "),
        (_core.WorkerEngine, "host_link", {1: 1}, "host_link: unknown key 1; expected h2d_gb_s, "),
        (_core.WorkerEngine, "host_link", {"order": "lifo"}, "order is 'lifo'; expected 'fifo' or 'shuffled'"),
        (_core.SchedulerEngine, "replicas", [(1, 0, 0)], "replicas[0] is (1, 0, 0); expected a tuple of 2"),
        (_core.SchedulerEngine, "max_awaited_share", None, "max_awaited_share is missing"),
        (_core.ObjectClient, "shared_keep", "yes", "shared_keep is 'yes'; expected True or False"),
    ],
)
def test_value_of_another_type_is_named_with_what_is_expected(
    engine: type, key: str, value: object, complaint: str
) -> None:
    text = message_of(engine, **{key: value})
    assert text.startswith(f"{engine.__name__}: {key}")
    assert complaint in text


def test_value_that_is_long_or_cannot_be_written_is_shown_in_short() -> None:
    assert len(message_of(_core.WorkerEngine, rank="9" * 10_000)) < 500
    # Python writes no number of so many digits.
    assert "rank is a int; expected" in message_of(_core.WorkerEngine, rank=10**5000)


def test_what_is_none_has_its_default() -> None:
    nothing = dict.fromkeys(KvFerryConfig().told_to(WORKER))
    _core.WorkerEngine(**nothing | WORKER_OPTIONS).close()


def test_every_key_that_goes_to_a_side_as_it_is_has_its_name_there() -> None:
    config = KvFerryConfig(host_link={"h2d_gb_s": 1.0, "d2h_gb_s": 1.0, "order": "fifo"}, numa_node=0, pages="normal")
    _core.WorkerEngine(**WORKER_OPTIONS | config.told_to(WORKER)).close()
    _core.SchedulerEngine(**SCHEDULER_OPTIONS | config.told_to(SCHEDULER)).close()


@pytest.mark.parametrize(
    ("side", "table"), [(WORKER, "py_worker_options.cpp"), (SCHEDULER, "py_scheduler_options.cpp")]
)
def test_a_key_that_goes_to_a_side_is_a_row_of_its_table_and_of_the_users(side: Side, table: str) -> None:
    source = (ROOT / "python/src" / table).read_text()
    table_of_users = (ROOT / "python/kvferry/vllm/keys.md").read_text()
    for key in KvFerryConfig().told_to(side):
        assert f'{{"{key}",' in source
        assert f"| `{key}` |" in table_of_users
