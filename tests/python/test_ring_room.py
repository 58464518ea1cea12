# SPDX-License-Identifier: Apache-2.0
"""The default staging ring leaves the engine what it has profiled, whatever is free when the KV cache is registered."""

from typing import Any

import pytest
from kvferry.config import GIB, MIB
from kvferry.errors import ResourceError
from kvferry.vllm.ring_room import MARGIN_BYTES, DeviceMemory, choose_ring, room_bytes

# Of 80 GiB the engine may take 72; it has 66 and keeps 6 for activations and CUDA graphs.
ROOMY: dict[str, Any] = {
    "total_bytes": 80 * GIB, "free_bytes": 14 * GIB, "own_bytes": 66 * GIB, "requested_bytes": 72 * GIB,
}  # fmt: skip


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        pytest.param({}, 8 * GIB, id="what is outside the share"),
        pytest.param({"free_bytes": 11 * GIB}, 5 * GIB, id="another process has 3 GiB"),
        pytest.param({"free_bytes": 6 * GIB}, 0, id="all that is free is the engine's"),
        pytest.param({"free_bytes": 4 * GIB}, 0, id="others have taken of its share"),
        pytest.param({"own_bytes": 72 * GIB, "free_bytes": 8 * GIB}, 8 * GIB, id="nothing is to come"),
        pytest.param({"own_bytes": 73 * GIB, "free_bytes": 7 * GIB}, 7 * GIB, id="the engine took more than its share"),
        # Two ranks of 36 GiB on one device: the other has 30 and will take 6 more, which this one cannot know of.
        pytest.param(
            {"requested_bytes": 36 * GIB, "own_bytes": 30 * GIB, "free_bytes": 20 * GIB}, 14 * GIB, id="ranks"
        ),
        pytest.param({"requested_bytes": None, "pending_bytes": 5 * GIB}, 9 * GIB, id="KV cache of a given size"),
        pytest.param({"requested_bytes": None}, 14 * GIB, id="KV cache of a given size, nothing measured"),
        pytest.param({"pending_bytes": 5 * GIB}, 8 * GIB, id="what is pending is in the share"),
        pytest.param({"free_bytes": 200 * GIB}, 74 * GIB, id="unified memory: the host has more than the device"),
    ],
)
def test_room_is_what_neither_the_engine_nor_others_will_have(memory: dict[str, Any], expected: int) -> None:
    assert room_bytes(DeviceMemory(**(ROOMY | memory))) == expected


def device_with(room: int) -> DeviceMemory:
    return DeviceMemory(**(ROOMY | {"free_bytes": 6 * GIB + room}))


@pytest.mark.parametrize(
    ("room", "ring"),
    [(8 * GIB, GIB), (GIB + 64 * MIB + MARGIN_BYTES, GIB), (GIB + 64 * MIB + MARGIN_BYTES - 1, GIB - 1)],
)
def test_ring_is_as_wanted_or_what_fits_and_says_so(room: int, ring: int) -> None:
    choice = choose_ring(device_with(room), GIB, MIB, 64 * MIB)
    assert choice.ring_bytes == ring
    assert bool(choice.warning) == (ring < GIB)
    if choice.warning:
        assert "\n" not in choice.warning
        for text in ("instead of 1.00 GiB", "72.00 GiB", "staging_bytes", "--gpu-memory-utilization"):
            assert text in choice.warning


def test_least_ring_is_one_block_and_less_is_an_error_with_figures_reason_and_remedy() -> None:
    least = MIB + 64 * MIB + MARGIN_BYTES
    assert choose_ring(device_with(least), GIB, MIB, 64 * MIB).ring_bytes == MIB
    with pytest.raises(ResourceError, match=r"needs 1\.00 MiB or more: .*outside the engine's share.*staging_bytes"):
        choose_ring(device_with(least - 1), GIB, MIB, 64 * MIB)
