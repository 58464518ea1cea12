# SPDX-License-Identifier: Apache-2.0
"""kvferry.lmcache without LMCache: its parameters, and the client as Python sees it."""

import gc
import mmap
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from functools import partial
from pathlib import Path

import kvferry.lmcache
import pytest
from kvferry import tiers
from kvferry.errors import ConfigError, Error, ResourceError
from kvferry.lmcache import KvFerryClient
from kvferry.lmcache.params import AdapterParams

MIB = 2**20


@pytest.fixture
def client():
    made = KvFerryClient(capacity="64MiB", num_workers=2)
    yield made
    made.close()


def complete(client, batch, timeout_s=30.0):
    """Drain until the batch has completed; nothing else is under way."""
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    while poller.poll(timeout_s * 1000):
        for found, ok, error, bools in client.drain_completions():
            assert found == batch
            return ok, error, bools
    raise AssertionError(f"batch {batch} did not complete")


def test_params_have_defaults_and_read_sizes():
    params = AdapterParams.from_params({"capacity": "8GiB"})
    assert params == AdapterParams(capacity=8 * 2**30)
    assert AdapterParams.from_params({"capacity": 8e9}).capacity == 8 * 10**9


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, ["capacity is missing", "8GiB"]),
        ({"capacity": "much"}, ["capacity is 'much'", "8GiB"]),
        ({"capacity": True}, ["capacity is True"]),
        ({"capacity": "1KiB"}, ["capacity is '1KiB'", "1MiB"]),
        (
            {"capacity": "8GiB", "cpacity": 1},
            ["unknown key 'cpacity'", "valid keys are capacity, numa_node", "'capacity'?"],
        ),
        ({"capacity": "8GiB", "numa_node": "0"}, ["numa_node is '0'", "NUMA node"]),
        ({"capacity": "8GiB", "numa_node": True}, ["numa_node is True"]),
        ({"capacity": "8GiB", "huge_pages": "yes"}, ["huge_pages is 'yes'", "'transparent'"]),
        ({"capacity": "8GiB", "num_workers": 0}, ["num_workers is 0", "from 1"]),
        ({"capacity": "8GiB", "num_workers": 1.5}, ["num_workers is 1.5"]),
        ({"capacity": "8GiB", "shared_path": "kvferry"}, ["shared_path is 'kvferry'", "absolute", "tmpfs"]),
        ({"capacity": "8GiB", "shared_path": 3}, ["shared_path is 3"]),
        ({"capacity": "8GiB", "shared_keep": False}, ["shared_keep is set and shared_path is not"]),
        ({"capacity": "8GiB", "shared_path": "/dev/shm/x", "shared_keep": 1}, ["shared_keep is 1", "true or false"]),
        ({"capacity": "8GiB", "shared_path": "/dev/shm/x", "shared_weight": 0}, ["shared_weight is 0", "from 1 to"]),
        ({"capacity": "8GiB", "shared_path": "/dev/shm/x", "shared_chunk_bytes": "1"}, ["shared_chunk_bytes is '1'"]),
        ({"capacity": "8GiB", "shared_path": "/dev/shm/x", "shared_bytes_limit": 0}, ["shared_bytes_limit is 0"]),
        ({"capacity": "8GiB", "shared_path": "/dev/shm/x", "huge_pages": "huge"}, ["huge_pages", "file system"]),
        ({"capacity": "8GiB", "eviction": "fifo"}, ["eviction is 'fifo'", "'lru'", "'arc'"]),
        ({"capacity": "8GiB", "verify": "sampled"}, ["verify is 'sampled'", "'off' or 'all'"]),
    ],
)
def test_params_that_are_not_understood_say_what_is(params, words):
    with pytest.raises(ConfigError) as refused:
        KvFerryClient(**params)
    for word in ["adapter_params", *words]:
        assert word in str(refused.value)


def test_in_process_interface_is_refused_with_what_to_use():
    for arguments, params in ((("config",), {}), ((), {"config": None, "metadata": None})):
        with pytest.raises(ConfigError, match="native_plugin"):
            KvFerryClient(*arguments, **params)
    with pytest.raises(AttributeError, match="KvFerryClient"):
        _ = kvferry.lmcache.KvFerryBackend


def test_capacity_that_the_machine_does_not_have_is_refused():
    with pytest.raises(ResourceError):
        KvFerryClient(capacity="500TiB")


def test_any_buffer_is_stored_and_loaded(client):
    keys = ["bytes", "bytearray", "memoryview", "array"]
    values = [b"abc" * 1000, bytearray(b"\x01" * 5000), memoryview(b"z" * 70), memoryview(b"12345678" * 100).cast("Q")]
    assert complete(client, client.submit_batch_set(keys, values)) == (True, "", None)
    buffers = [bytearray(memoryview(value).nbytes) for value in values]
    assert complete(client, client.submit_batch_get(keys, buffers)) == (True, "", [True] * 4)
    assert [bytes(b) for b in buffers] == [memoryview(v).tobytes() for v in values]


def test_bad_arguments_raise_and_nothing_is_accepted(client):
    with pytest.raises(BufferError):
        client.submit_batch_get(["a"], [b"not writable"])
    with pytest.raises(TypeError):
        client.submit_batch_set(["a"], ["no buffer"])
    with pytest.raises(BufferError):
        client.submit_batch_set(["a"], [memoryview(bytes(10))[::2]])
    with pytest.raises(TypeError, match="bytes"):
        client.submit_batch_exists([b"a"])
    with pytest.raises(UnicodeEncodeError):
        client.submit_batch_exists(["\ud800"])
    with pytest.raises(ValueError, match="2 keys and 1 buffers"):
        client.submit_batch_set(["a", "b"], [b"x"])
    assert client.snapshot()["num_open"] == 0
    assert client.drain_completions() == []


def test_buffers_are_held_until_the_completion_is_drained(client):
    value = bytearray(b"x" * 1000)
    client.submit_batch_set(["a"], [value])
    with pytest.raises(BufferError):
        value.append(1)
    assert len(client.drain_completions()) == 1
    value.append(1)


def test_buffers_are_free_after_close_and_completions_still_come(client):
    small, large = bytearray(1000), bytearray(8 * MIB)
    ids = [client.submit_batch_set(["a"], [small]), client.submit_batch_set(["b"], [large])]
    client.close()
    small.append(1)
    large.append(1)
    completions = client.drain_completions()
    assert sorted(done[0] for done in completions) == ids
    with pytest.raises(Error, match="closed"):
        client.submit_batch_exists(["a"])


def test_a_client_that_is_dropped_frees_its_buffers():
    class Value(bytearray):
        pass

    made = KvFerryClient(capacity="16MiB")
    value = Value(1000)
    gone = weakref.ref(value)
    made.submit_batch_set(["a"], [value])
    del made, value
    gc.collect()
    assert gone() is None


def test_a_key_of_another_size_is_a_miss_and_keys_are_text(client):
    key = "modèle@0@0@ff@ключ"
    complete(client, client.submit_batch_set([key], [b"12345"]))
    buffers = [bytearray(b"......"), bytearray(b".....")]
    assert complete(client, client.submit_batch_get([key, key], buffers))[2] == [False, True]
    assert buffers == [b"......", b"12345"]
    assert complete(client, client.submit_batch_delete([key, "none"])) == (True, "", [True, False])


def test_a_full_store_says_so(client):
    ok, error, _ = complete(client, client.submit_batch_set(["a"], [bytes(80 * MIB)]))
    assert not ok
    assert "capacity" in error


def test_python_runs_while_a_batch_is_copied_and_completions_meet_their_threads(client):
    stop = threading.Event()
    problems = []
    pending = {}
    lock = threading.Lock()

    def drain():
        poller = select.poll()
        poller.register(client.event_fd(), select.POLLIN)
        while not stop.is_set() or pending:
            if not poller.poll(100):
                continue
            with lock:
                for found, ok, error, bools in client.drain_completions():
                    keys, buffers = pending.pop(found)
                    if buffers is None:
                        continue
                    for key, buffer, there in zip(keys, buffers, bools, strict=True):
                        expected = key.encode()[-1:] if there else b"\xee"
                        if bytes(buffer) != expected * len(buffer):
                            problems.append((key, there, error, ok))

    def submit(store):
        for i in range(60):
            keys = [f"{(i + j) % 20}-{(i + j) % 10}" for j in range(4)]
            sizes = [MIB if key[-1] < "5" else 3000 for key in keys]
            with lock:
                if store:
                    values = [key.encode()[-1:] * size for key, size in zip(keys, sizes, strict=True)]
                    pending[client.submit_batch_set(keys, values)] = (keys, None)
                else:
                    buffers = [bytearray(b"\xee" * size) for size in sizes]
                    pending[client.submit_batch_get(keys, buffers)] = (keys, buffers)

    threads = [threading.Thread(target=submit, args=(store,)) for store in (True, False)]
    draining = threading.Thread(target=drain)
    for thread in (*threads, draining):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    draining.join(timeout=60)
    assert not draining.is_alive()
    assert problems == []
    assert client.snapshot()["num_hits_total"] > 0


@pytest.fixture
def shared_path():
    path = Path(f"/dev/shm/kvferry-lmcache-test-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def eventually(condition, timeout_s=60.0):
    """Whether it comes true; what another process did is seen within its keeper's next look."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_shared_path_outlives_a_killed_process(shared_path):
    program = f"""
import os, signal
from kvferry.lmcache import KvFerryClient
client = KvFerryClient(capacity="64MiB", shared_path={str(shared_path)!r})
client.submit_batch_set(["kept", "other"], [b"k" * 5000, b"o" * 70])
assert client.drain_completions()[0][1]
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    again = KvFerryClient(capacity="64MiB", shared_path=str(shared_path))
    assert again.snapshot()["num_objects_of_others"] == 2
    assert str(shared_path) in again.memory()
    buffers = [bytearray(5000), bytearray(70)]
    assert complete(again, again.submit_batch_get(["kept", "other"], buffers)) == (True, "", [True, True])
    assert buffers == [b"k" * 5000, b"o" * 70]
    again.close()
    del again
    gc.collect()
    assert shared_path.exists()
    with pytest.raises(ConfigError, match="capacity"):
        KvFerryClient(capacity="65MiB", shared_path=str(shared_path))


def flip_a_bit_of(value, path):
    """Damage a value in the file of a tier; its bytes are nowhere else in it."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        at = content.find(value)
        assert at >= 0
        content[at + len(value) // 2] ^= 0x10


@pytest.mark.parametrize("verify", ["all", "off"])
def test_a_value_that_another_program_damaged_is_a_miss_and_is_logged(shared_path, caplog, verify):
    made = KvFerryClient(capacity="64MiB", shared_path=str(shared_path), shared_keep=False, verify=verify)
    damaged, whole = os.urandom(5000), os.urandom(5000)
    assert complete(made, made.submit_batch_set(["damaged", "whole"], [damaged, whole]))[0]
    flip_a_bit_of(damaged, shared_path)
    buffers = [bytearray(5000), bytearray(5000)]
    assert complete(made, made.submit_batch_exists(["damaged", "whole"])) == (True, "", [True, True])
    with caplog.at_level("WARNING", logger="kvferry"):
        loaded = complete(made, made.submit_batch_get(["damaged", "whole"], buffers))
    assert buffers[1] == whole
    if verify == "off":
        assert loaded == (True, "", [True, True])
        assert buffers[0] != damaged
        assert made.snapshot()["num_damaged_total"] == 0
        return
    assert loaded == (True, "", [False, True])
    [line] = [record.getMessage() for record in caplog.records]
    for word in ("object damaged of 5000 bytes", "is not what was stored", "expected is", "not used again"):
        assert word in line
    now = made.snapshot()
    assert (now["num_damaged_total"], now["num_hits_total"], now["num_misses_total"]) == (1, 1, 1)
    assert tiers.inspect(str(shared_path)).figures["slots/withdrawn"] == 1
    # It is stored again, at another place.
    assert complete(made, made.submit_batch_exists(["damaged", "whole"])) == (True, "", [False, True])
    assert complete(made, made.submit_batch_set(["damaged"], [damaged]))[0]
    assert complete(made, made.submit_batch_get(["damaged"], buffers[:1])) == (True, "", [True])
    assert buffers[0] == damaged


def test_clients_of_two_processes_share(shared_path):
    program = f"""
import sys
from kvferry.lmcache import KvFerryClient
client = KvFerryClient(capacity="64MiB", shared_path={str(shared_path)!r}, shared_keep=False)
client.submit_batch_set(["theirs"], [b"t" * 5000])
assert client.drain_completions()[0][1]
print("stored", flush=True)
sys.stdin.read()
"""
    ours = KvFerryClient(capacity="64MiB", shared_path=str(shared_path), shared_keep=False)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as theirs:
        assert theirs.stdout.readline() == b"stored\n"
        buffer = bytearray(5000)

        def is_loaded(by):
            return complete(by, by.submit_batch_get(["theirs"], [buffer]))[2] == [True]

        assert eventually(partial(is_loaded, ours))
        assert buffer == b"t" * 5000
        assert complete(ours, ours.submit_batch_set(["theirs"], [b"t" * 5000])) == (True, "", None)
        assert complete(ours, ours.submit_batch_delete(["theirs", "none"])) == (True, "", [True, False])
        assert is_loaded(ours)
        now = ours.snapshot()
        assert (now["num_objects"], now["num_objects_of_others"], now["num_stored_total"]) == (0, 1, 0)
        names = [instance.name for instance in tiers.inspect(str(shared_path)).instances]
        assert sorted(name.split("-")[0] for name in names) == sorted(
            [f"lmcache/{os.getpid()}", f"lmcache/{theirs.pid}"]
        )
        theirs.stdin.close()
        assert theirs.wait() == 0
    assert is_loaded(ours)
    ours.close()
    del ours
    gc.collect()
    assert not shared_path.exists()
