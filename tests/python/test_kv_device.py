# SPDX-License-Identifier: Apache-2.0
"""Which back end serves a KV cache, and what a user reads when none does."""

from typing import Any

import pytest
import torch
from harness import ToyEngine
from kvferry import _core
from kvferry.errors import ConfigError, ResourceError
from kvferry.vllm import kv_device
from kvferry.vllm.kv_device import KvDevice, profiled_bytes
from kvferry.vllm.ring_room import DeviceMemory, room_bytes
from scenarios import Make

GIB = 2**30


class Tensor:
    """Stands for a tensor on a device that this machine does not have."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)


def find(devices: list[str], wanted: str = "auto") -> KvDevice:
    tensors: Any = [Tensor(device) for device in devices]
    return kv_device.find(tensors, wanted)


@pytest.fixture
def all_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has everything."""
    monkeypatch.setattr(_core, "backends", lambda: {"host": "", "cuda": "", "hip": ""})


@pytest.mark.usefixtures("all_backends")
@pytest.mark.parametrize("wanted", ["auto", "the one"])
@pytest.mark.parametrize(
    ("device", "hip", "expected"),
    [
        ("cpu", None, KvDevice("host")),
        ("cuda:0", None, KvDevice("cuda", 0)),
        ("cuda:3", None, KvDevice("cuda", 3)),
        ("cuda:3", "7.1.0", KvDevice("hip", 3)),
        ("cpu", "7.1.0", KvDevice("host")),
    ],
)
def test_backend_is_that_of_the_tensors(
    monkeypatch: pytest.MonkeyPatch, device: str, hip: str | None, expected: KvDevice, wanted: str
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    assert find([device, device], "auto" if wanted == "auto" else expected.backend) == expected


@pytest.mark.usefixtures("all_backends")
@pytest.mark.parametrize(
    ("devices", "wanted", "message"),
    [
        (["meta"], "auto", r"the KV cache is on meta and backend is 'auto'; allowed is one device"),
        (["cpu"], "cuda", r"the KV cache is on cpu and backend is 'cuda'"),
        (["cuda:1"], "host", r"the KV cache is on cuda:1 and backend is 'host'"),
        (["cuda:0", "cuda:1"], "auto", r"the KV cache is on cuda:0, cuda:1 and backend is 'auto'"),
        (["cuda:0", "cpu"], "auto", r"the KV cache is on cpu, cuda:0 and"),
    ],
)
def test_device_that_no_backend_serves_is_refused_in_one_line(devices: list[str], wanted: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        find(devices, wanted)
    assert "\n" not in str(caught.value)


def test_host_is_always_there_and_what_is_not_there_says_why() -> None:
    backends = _core.backends()
    assert list(backends) == ["cuda", "hip", "host"]
    assert backends["host"] == ""
    for name, device in (("cuda", "cuda:0"),):
        if why_not := backends[name]:
            with pytest.raises(ConfigError) as caught:
                find([device])
            assert str(caught.value).endswith(why_not)
            assert "\n" not in str(caught.value)


def test_memory_is_what_driver_and_pytorch_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda ordinal: (14 * GIB, 80 * GIB) if ordinal == 1 else None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda ordinal: 66 * GIB if ordinal == 1 else None)
    device = KvDevice("cuda", 1)
    share = device.memory(0.9, 5 * GIB)
    assert share is not None
    assert (share.total_bytes, share.free_bytes, share.own_bytes) == (80 * GIB, 14 * GIB, 66 * GIB)
    assert room_bytes(share) == 8 * GIB
    given = device.memory(None, 5 * GIB)
    assert given is not None
    assert room_bytes(given) == 9 * GIB
    assert KvDevice("host").memory(0.9, 0) is None


def test_what_the_profile_run_gave_back_is_asked_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profiled_bytes() == 0, "no device was used"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 21 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 16 * GIB)
    assert profiled_bytes() == 5 * GIB


def device_with(room: int) -> DeviceMemory:
    """A device whose engine has taken all of its share."""
    return DeviceMemory(total_bytes=80 * GIB, free_bytes=room, own_bytes=GIB, requested_bytes=GIB)


def ring_of(make: Make, monkeypatch: pytest.MonkeyPatch, room: int, **extra: Any) -> tuple[ToyEngine, int]:
    """Make an engine whose device has room for so much; the size of its ring."""
    monkeypatch.setattr(KvDevice, "memory", lambda self, utilization, profiled_bytes: device_with(room))
    engine = make(extra)
    return engine, engine.workers[0].copy_stats()["ring_size_bytes"]


def test_ring_is_a_step_of_kv_where_the_device_has_room(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ring_bytes = ring_of(make, monkeypatch, GIB)
    assert ring_bytes == engine.workers[0].connector.worker_side._ring_bytes


def test_ring_is_what_the_engine_has_left_and_the_log_says_so(
    make: Make, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    _, whole = ring_of(make, monkeypatch, GIB)
    left = 256 * 2**20 + 64 * 2**20 + whole - 1
    _, ring_bytes = ring_of(make, monkeypatch, left)
    assert ring_bytes == whole - 1
    assert any("lower --gpu-memory-utilization" in line and line.startswith("WARNING") for line in log_lines)


def test_ring_that_was_asked_for_is_not_made_smaller(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ring_bytes = ring_of(make, monkeypatch, 1000, staging_bytes=65536)
    assert ring_bytes == 65536


def test_device_without_room_for_a_block_is_refused_with_the_remedy(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ResourceError,
        match=r"rank 0: the staging ring needs .* has 320\.00 MiB of 80\.00 GiB .* lower --gpu-memory-util",
    ):
        ring_of(make, monkeypatch, 320 * 2**20)
