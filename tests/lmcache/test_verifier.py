# SPDX-License-Identifier: Apache-2.0
"""Every byte of every round, through LMCache's own adapter: what ``lmcache bench l2`` does not look at.

That verifies the last round only, and its first key holds zeros in zeroed buffers. Here each value has a pattern of its
own, made anew each round, and load buffers are filled with something else before.
"""

import random
import select
import time

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


def verify(adapter, sizes_of_batches, first_key):
    """Store, look up and load batches that are all in flight at once; compare every byte."""
    stored, loaded, keys = [], [], []
    for sizes in sizes_of_batches:
        stored.append([torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes])
        # Every byte differs from what is to come.
        loaded.append([value ^ 0xFF for value in stored[-1]])
        keys.append([object_key(first_key + i) for i in range(len(sizes))])
        first_key += len(sizes)
    tasks = [
        adapter.submit_store_task(k, [memory_object(v) for v in values]) for k, values in zip(keys, stored, strict=True)
    ]
    results = await_all(
        adapter.get_store_event_fd(), lambda found: found.update(adapter.pop_completed_store_tasks()), tasks
    )
    assert all(result.is_successful() for result in results.values())

    def taking(query, open_tasks):
        def take(found):
            for task in open_tasks:
                if task not in found and (bitmap := query(task)) is not None:
                    found[task] = bitmap

        return take

    tasks = [adapter.submit_lookup_and_lock_task(k, LAYOUT) for k in keys]
    found = await_all(
        adapter.get_lookup_and_lock_event_fd(), taking(adapter.query_lookup_and_lock_result, tasks), tasks
    )
    assert [found[task].popcount() for task in tasks] == [len(k) for k in keys]

    tasks = [
        adapter.submit_load_task(k, [memory_object(v) for v in values]) for k, values in zip(keys, loaded, strict=True)
    ]
    found = await_all(adapter.get_load_event_fd(), taking(adapter.query_load_result, tasks), tasks)
    assert [found[task].popcount() for task in tasks] == [len(k) for k in keys]
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
