# SPDX-License-Identifier: Apache-2.0
"""Every byte of every round, through LMCache's own adapter: what ``lmcache bench l2`` does not look at.

That verifies the last round only, and its first key holds zeros in zeroed buffers. Here each value has a pattern of its
own, made anew each round, and load buffers are filled with something else before.
"""

import mmap
import os
import random
import select
import time
from pathlib import Path

import pytest
import torch
from kvferry.lmcache import KvFerryClient
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import NativeConnectorL2Adapter
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

KIB = 1024
MIB = 1024 * KIB
LAYOUT = {0: MemoryLayoutDesc(shapes=[], dtypes=[])}


@pytest.fixture
def adapter():
    made = NativeConnectorL2Adapter(KvFerryClient(capacity="2GiB", num_workers=2))
    yield made
    made.close()


def memory_object(tensor):
    size = tensor.numel()
    return TensorMemoryObj(
        tensor,
        MemoryObjMetadata(
            shape=torch.Size([size]), dtype=torch.uint8, address=0, phy_size=size, fmt=MemoryFormat.KV_2LTD, ref_count=1
        ),
        parent_allocator=None,
    )


def object_key(number):
    return ObjectKey(chunk_hash=number.to_bytes(16, "big"), model_name="verified", kv_rank=0)


def await_all(descriptor, take, tasks):
    results = {}
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    end = time.monotonic() + 120
    while len(results) < len(tasks) and time.monotonic() < end:
        poller.poll(1000)
        take(results)
    assert len(results) == len(tasks), "tasks without a completion"
    return results


def store(adapter, keys_of_batches, values_of_batches):
    """Store batches that are all in flight at once."""
    tasks = [
        adapter.submit_store_task(keys, [memory_object(value) for value in values])
        for keys, values in zip(keys_of_batches, values_of_batches, strict=True)
    ]
    results = await_all(
        adapter.get_store_event_fd(), lambda found: found.update(adapter.pop_completed_store_tasks()), tasks
    )
    assert all(result.is_successful() for result in results.values())


def bits(bitmap, count):
    return [bitmap.test(i) for i in range(count)]


def await_bitmaps(descriptor, query, tasks):
    def take(found):
        for task in tasks:
            if task not in found and (bitmap := query(task)) is not None:
                found[task] = bitmap

    found = await_all(descriptor, take, tasks)
    return [found[task] for task in tasks]


def look_up(adapter, keys_of_batches):
    """Whether each key is there, by batch; those that are stay locked."""
    tasks = [adapter.submit_lookup_and_lock_task(keys, LAYOUT) for keys in keys_of_batches]
    found = await_bitmaps(adapter.get_lookup_and_lock_event_fd(), adapter.query_lookup_and_lock_result, tasks)
    return [bits(bitmap, len(keys)) for bitmap, keys in zip(found, keys_of_batches, strict=True)]


def load(adapter, keys_of_batches, buffers_of_batches):
    """Whether each key was loaded, by batch."""
    tasks = [
        adapter.submit_load_task(keys, [memory_object(buffer) for buffer in buffers])
        for keys, buffers in zip(keys_of_batches, buffers_of_batches, strict=True)
    ]
    found = await_bitmaps(adapter.get_load_event_fd(), adapter.query_load_result, tasks)
    return [bits(bitmap, len(keys)) for bitmap, keys in zip(found, keys_of_batches, strict=True)]


def verify(adapter, sizes_of_batches, first_key):
    """Store, look up and load batches that are all in flight at once; compare every byte."""
    stored, loaded, keys = [], [], []
    for sizes in sizes_of_batches:
        stored.append([torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes])
        # Every byte differs from what is to come.
        loaded.append([value ^ 0xFF for value in stored[-1]])
        keys.append([object_key(first_key + i) for i in range(len(sizes))])
        first_key += len(sizes)
    everything = [[True] * len(k) for k in keys]
    store(adapter, keys, stored)
    assert look_up(adapter, keys) == everything
    assert load(adapter, keys, loaded) == everything
    for expected, got in zip(stored, loaded, strict=True):
        for i, (value, buffer) in enumerate(zip(expected, got, strict=True)):
            assert torch.equal(value, buffer), f"key {i} of {len(expected)}, {value.numel()} bytes"
    for k in keys:
        adapter.submit_unlock(k)
    return first_key


@pytest.mark.parametrize(
    ("size", "num_keys", "in_flight"),
    [
        (4 * KIB, 1, 1), (4 * KIB, 256, 16), (4 * KIB + 1, 16, 4), (64 * KIB, 256, 4), (256 * KIB, 16, 16),
        (MIB, 1, 16), (MIB, 64, 2), (4 * MIB, 16, 2), (16 * MIB, 1, 1), (16 * MIB, 4, 4), (16 * MIB - 3, 8, 1),
    ],
)  # fmt: skip
def test_every_byte_of_every_round(adapter, size, num_keys, in_flight):
    torch.manual_seed(size + num_keys)
    first_key = 0
    for _ in range(3):
        first_key = verify(adapter, [[size] * num_keys] * in_flight, first_key)


@pytest.mark.parametrize("seed", range(4))
def test_mixed_sizes_in_one_batch(adapter, seed):
    chance = random.Random(seed)
    torch.manual_seed(seed)
    first_key = 0
    for _ in range(3):
        batches = [
            [
                chance.choice((1, 4 * KIB, 4 * KIB + 1, 100_000, 256 * KIB, MIB, 3 * MIB))
                for _ in range(chance.randint(1, 24))
            ]
            for _ in range(chance.randint(1, 8))
        ]
        first_key = verify(adapter, batches, first_key)


@pytest.mark.parametrize("size", [4 * KIB, 256 * KIB, 5 * MIB])
def test_damaged_objects_are_not_loaded_and_are_stored_again(size):
    path = Path(f"/dev/shm/kvferry-lmcache-damage-{os.getpid()}")
    client = KvFerryClient(capacity="1GiB", num_workers=2, shared_path=str(path), shared_keep=False)
    adapter = NativeConnectorL2Adapter(client)
    try:
        torch.manual_seed(size)
        values = [torch.randint(0, 256, (size,), dtype=torch.uint8) for _ in range(4)]
        keys = [object_key(i) for i in range(len(values))]
        store(adapter, [keys], [values])
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            for damaged in (1, 3):
                begin = content.find(values[damaged].numpy().tobytes()[:4096])
                content[begin + size - 1] ^= 1
        assert look_up(adapter, [keys]) == [[True] * 4], "only a load looks at the bytes"
        buffers = [value ^ 0xFF for value in values]
        assert load(adapter, [keys], [buffers]) == [[True, False, True, False]]
        assert torch.equal(buffers[0], values[0])
        assert torch.equal(buffers[2], values[2])
        adapter.submit_unlock(keys)
        assert client.snapshot()["num_damaged_total"] == 2
        assert look_up(adapter, [keys]) == [[True, False, True, False]]
        store(adapter, [keys], [values])
        assert load(adapter, [keys], [buffers]) == [[True] * 4]
        assert all(torch.equal(value, buffer) for value, buffer in zip(values, buffers, strict=True))
    finally:
        adapter.close()
        path.unlink(missing_ok=True)
