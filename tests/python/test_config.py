# SPDX-License-Identifier: Apache-2.0
"""The keys of kv_connector_extra_config: what is read, and that every bad value is refused in one clear line."""

from typing import Any

import pytest
from kvferry.config import GIB, MIB, KvFerryConfig
from kvferry.errors import ConfigError
from kvferry.sizes import format_size, parse_size


def read(**extra: Any) -> KvFerryConfig:
    return KvFerryConfig.from_extra_config(extra)


def message_of(**extra: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(**extra)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_empty_config_has_the_defaults() -> None:
    assert read() == KvFerryConfig(
        cpu_bytes_to_use=8 * GIB,
        cpu_bytes_to_use_per_rank=None,
        allow_smaller_tier=False,
        numa_node=None,
        pages="auto",
        pinned_piece_bytes=64 * MIB,
        pinning_bandwidth_limit=None,
        staging_bytes=None,
        max_in_flight_bytes=32 * MIB,
        load_staging_bytes=None,
        store_bandwidth_limit=None,
        copy_path="auto",
        verify="off",
        scrub_bandwidth=None,
        transfer_timeout_s=300.0,
        backend="auto",
        eviction="adaptive",
        admission="adaptive",
        max_awaited_share=0.25,
        host_link=None,
    )


def test_reading_stored_blocks_again_needs_tags_and_an_own_tier() -> None:
    assert read(verify="sampled", scrub_bandwidth="100MB/s").scrub_bandwidth == 100_000_000
    assert "set verify to 'sampled' or 'all'" in message_of(scrub_bandwidth="100MB/s")
    shared = {"shared_path": "/dev/shm/kvferry/tier", "verify": "all"}
    assert "leave scrub_bandwidth or shared_path out" in message_of(**shared, scrub_bandwidth="1GB/s")


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [
        (1, 1),
        (8e9, 8_000_000_000),
        ("4096", 4096),
        ("8GiB", 8 * 2**30),
        ("8 gib", 8 * 2**30),
        ("8GB", 8_000_000_000),
        ("512MiB", 512 * 2**20),
        ("1.5KiB", 1536),
        ("2TB", 2_000_000_000_000),
        ("7B", 7),
        ("0.1GB", 100_000_000),
        ("8G", 8_000_000_000),
        ("8Gi", 8 * 2**30),
        ("8 gi", 8 * 2**30),
        ("1.5K", 1500),
        ("2Ti", 2**41),
    ],
)
def test_size_is_read_as_written(value: object, num_bytes: int) -> None:
    assert read(staging_bytes=value).staging_bytes == num_bytes


@pytest.mark.parametrize("key", ["cpu_bytes_to_use", "cpu_bytes_to_use_per_rank", "cpu_bytes_limit"])
@pytest.mark.parametrize("value", [8, "512", 4095])
def test_tier_of_a_few_bytes_lacks_its_unit(key: str, value: object) -> None:
    text = message_of(**{key: value})
    assert f"{key} is {value!r}; allowed is 4096 bytes or more; a number without a unit is bytes" in text
    assert f"write for example {key!r}: '8GiB'" in text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "G",
        "8i",
        "8Gb8",
        "GiB",
        "8 GiB 2",
        "-1",
        "1e9",
        "1.5",
        "8XiB",
        -1,
        0,
        "0",
        "0GiB",
        1.5,
        True,
        None,
        [],
        float("inf"),
        2**63,
    ],
)
@pytest.mark.parametrize(
    "key", ["cpu_bytes_to_use", "cpu_bytes_to_use_per_rank", "staging_bytes", "max_in_flight_bytes"]
)
def test_bad_size_is_refused_with_value_units_and_remedy(key: str, value: object) -> None:
    text = message_of(**{key: value})
    assert f"{key} is {value!r}" in text
    assert "'8GiB' or '8Gi' (powers of 1024), '8GB' or '8G' (powers of 1000)" in text
    assert f"{key!r}: '8GiB'" in text


def test_sizes_are_written_in_the_largest_unit_that_they_fill() -> None:
    assert [format_size(n) for n in (0, 1023, 1024, 3 * 2**29)] == ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]


def test_large_size_loses_no_byte() -> None:
    assert parse_size("9007199254740993") == 9007199254740993


def test_unknown_key_lists_the_valid_ones_and_the_nearest() -> None:
    text = message_of(cpu_byte_to_use=1)
    assert "unknown key 'cpu_byte_to_use'; did you mean 'cpu_bytes_to_use'? valid keys are " in text
    for key in ("cpu_bytes_to_use_per_rank", "staging_bytes", "max_in_flight_bytes", "transfer_timeout_s", "host_link"):
        assert key in text


def test_unknown_key_like_no_other_is_to_be_removed() -> None:
    assert "unknown key 'zzz'; remove it; valid keys are cpu_bytes_to_use, " in message_of(zzz=1)


@pytest.mark.parametrize("value", [0, -1, "300", None, True, float("nan"), float("inf"), 10**400])
def test_bad_timeout_is_refused(value: object) -> None:
    assert "a finite number of seconds, more than zero and 1000000000 at most" in message_of(transfer_timeout_s=value)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("backend", ["auto", "host", "cuda", "hip"]),
        ("copy_path", ["auto", "per_run", "batch", "kernel", "staged"]),
        ("pages", ["auto", "normal", "transparent", "huge"]),
        ("eviction", ["adaptive", "lru", "arc"]),
        ("admission", ["adaptive", "always", "second_offer"]),
    ],
)
def test_choice_is_one_of_those_that_the_message_names(key: str, values: list[str]) -> None:
    for value in values:
        assert getattr(read(**{key: value}), key) == value
    for bad in ("Host", "", 1, None, []):
        text = message_of(**{key: bad})
        assert f"{key} is {bad!r}" in text
        assert all(repr(value) in text for value in values)


@pytest.mark.parametrize("value", [-1, 1024, 0.0, "0", True, None])
def test_numa_node_that_is_none_is_refused(value: object) -> None:
    assert read(numa_node=1).numa_node == 1
    text = message_of(numa_node=value)
    assert f"numa_node is {value!r}" in text
    assert "numactl -H" in text


@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_flag_is_true_or_false(value: object) -> None:
    assert read(allow_smaller_tier=True).allow_smaller_tier is True
    assert "true or false" in message_of(allow_smaller_tier=value)


@pytest.mark.parametrize("value", [-1, 2**31, 1.5, "64", True, None])
def test_number_of_tokens_that_is_none_is_refused(value: object) -> None:
    assert read().min_load_tokens is None
    assert read(min_load_tokens=0).min_load_tokens == 0
    assert "a number of tokens, 0 or more" in message_of(min_load_tokens=value)


@pytest.mark.parametrize("value", [0, 0.25, 1])
def test_share_of_awaited_blocks_is_read(value: float) -> None:
    assert read(max_awaited_share=value).max_awaited_share == value


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.5", None, True, float("nan")])
def test_share_that_is_none_is_refused(value: object) -> None:
    text = message_of(max_awaited_share=value)
    assert f"max_awaited_share is {value!r}" in text
    assert "a number from 0 to 1" in text


@pytest.mark.parametrize(
    ("value", "bytes_per_second"),
    [(4e9, 4_000_000_000), ("4GB", 4_000_000_000), ("4GB/s", 4_000_000_000), ("512 MiB/s", 512 * 2**20)],
)
def test_store_bandwidth_limit_is_bytes_per_second(value: object, bytes_per_second: int) -> None:
    assert read(store_bandwidth_limit=value).store_bandwidth_limit == bytes_per_second


@pytest.mark.parametrize("value", [0, "0", "/s", "4GB/h", "4GB/s/s", -1, True, None, 1.5, 2**63])
def test_bad_store_bandwidth_limit_is_refused_with_an_example(value: object) -> None:
    text = message_of(store_bandwidth_limit=value)
    assert f"store_bandwidth_limit is {value!r}" in text
    assert "'4GB/s'" in text


def test_load_ring_holds_what_is_in_flight_twice_and_two_blocks_at_least() -> None:
    assert read().load_ring_bytes(1000) == 64 * MIB
    assert read(max_in_flight_bytes=1000).load_ring_bytes(1500) == 3000
    assert read(load_staging_bytes=3000).load_ring_bytes(1500) == 3000
    assert read(load_staging_bytes=0).load_ring_bytes(1500) == 0
    assert read(load_staging_bytes="0").load_ring_bytes(1500) == 0


@pytest.mark.parametrize("extra", [{"load_staging_bytes": 2999}, {"load_staging_bytes": 0, "copy_path": "staged"}])
def test_load_ring_without_room_for_two_blocks_is_refused_with_both_figures(extra: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"load_staging_bytes is {extra['load_staging_bytes']}; .* 3000 bytes"):
        read(**extra).load_ring_bytes(1500)


def test_bandwidth_of_the_link_is_that_of_each_direction_without_its_own() -> None:
    link = read(host_link={"bandwidth_gb_s": 2, "d2h_gb_s": 1.5, "order": "shuffled", "fail_nth": 3}).host_link
    assert link == {"h2d_gb_s": 2, "d2h_gb_s": 1.5, "order": "shuffled", "fail_nth": 3}


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("fast", "host_link is 'fast'"),
        ({"bandwith_gb_s": 1}, "did you mean 'bandwidth_gb_s'?"),
        ({"bandwidth_gb_s": "55"}, "host_link.bandwidth_gb_s is '55'"),
        ({"h2d_gb_s": -1}, "host_link.h2d_gb_s is -1"),
        ({"d2h_gb_s": float("nan")}, "host_link.d2h_gb_s is nan"),
        ({"latency_us": True}, "host_link.latency_us is True"),
        ({"jitter_us": None}, "host_link.jitter_us is None"),
        ({"stall_us": -1}, "host_link.stall_us is -1"),
        ({"order": "lifo"}, "allowed is 'fifo' or 'shuffled'"),
        ({"order": []}, "host_link.order is []"),
        ({"fail_nth": 1.5}, "host_link.fail_nth is 1.5"),
        ({"fail_nth": -1}, "host_link.fail_nth is -1"),
        ({"seed": 2**64}, "a whole number from 0 to 2**64 - 1"),
        ({"fail_probability": 1.1}, "a number from 0 to 1"),
        ({"fail_probability": -0.1}, "a number from 0 to 1"),
        ({"inject_probability": 2}, "a number from 0 to 1"),
        ({"inject_log": 7}, "the path of a file"),
    ],
)
def test_bad_link_is_refused(link: object, expected: str) -> None:
    assert expected in message_of(host_link=link)


def test_budget_of_the_node_is_split_over_its_ranks() -> None:
    assert read(cpu_bytes_to_use=10000).tier_bytes(slot_bytes=100, num_local_arenas=4) == 2500
    assert read(cpu_bytes_to_use=10000, cpu_bytes_to_use_per_rank=7000).tier_bytes(100, 4) == 7000


def test_first_rank_asks_for_all_whose_total_is_known_or_divided() -> None:
    assert read().num_arenas_in_budget(4) == 4
    assert read(cpu_bytes_to_use_per_rank=7000).num_arenas_in_budget(4) == 1
    assert read(cpu_bytes_to_use_per_rank=7000, allow_smaller_tier=True).num_arenas_in_budget(4) == 4


def test_budget_below_one_block_is_refused_with_the_least_that_is_enough() -> None:
    with pytest.raises(ConfigError, match=r"cpu_bytes_to_use is 39999; .*at least one block.* set it to 40000 or more"):
        read(cpu_bytes_to_use=39999).tier_bytes(slot_bytes=10000, num_local_arenas=4)
    with pytest.raises(ConfigError, match=r"cpu_bytes_to_use_per_rank is 9999; .* set it to 10000 or more"):
        read(cpu_bytes_to_use_per_rank=9999).tier_bytes(slot_bytes=10000, num_local_arenas=4)


def test_ring_is_a_step_long_unless_told() -> None:
    assert read().ring_bytes(group_bytes=[1000], block_tokens=[16], max_num_batched_tokens=100) == 7000
    assert (
        read().ring_bytes(group_bytes=[1000, 1000, 500], block_tokens=[16, 16, 32], max_num_batched_tokens=100) == 16000
    )
    assert read(staging_bytes=2500).ring_bytes([1000], 16, 100) == 2500


def test_ring_is_at_most_one_gib_and_at_least_one_block() -> None:
    assert read().ring_bytes(group_bytes=[GIB // 4], block_tokens=[16], max_num_batched_tokens=8192) == GIB
    assert read().ring_bytes(group_bytes=[2 * GIB], block_tokens=[16], max_num_batched_tokens=8192) == 2 * GIB


def test_ring_below_one_block_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"staging_bytes is 999; .*at least one block.*1000 bytes"):
        read(staging_bytes=999).ring_bytes([1000], 16, 100)


@pytest.mark.parametrize("layout", ["engine", "LBNHC", "LBHNC", "BLNHC", "BLHNC", "LHBNC", "BHLNC"])
def test_layout_is_named_as_the_engine_names_it(layout: str) -> None:
    assert read().kv_cache_layout == "engine"
    assert read(kv_cache_layout=layout).kv_cache_layout == layout
    assert "'BLNHC'" in message_of(kv_cache_layout=layout.lower() + "x")
