# SPDX-License-Identifier: Apache-2.0
"""What tags cost kvferry under LMCache: sets and gets of two clients by turns, one with ``verify`` and one without.

Both clients are in this process, and no LMCache: each batch is submitted and awaited as LMCache does it. Every set has
fresh keys, and each get asks for what the set before it stored. A row has the median time of a batch of each client,
and the median of the ratios of two batches that follow each other, which is what one may compare.
"""

import argparse
import mmap
import random
import select
import statistics
import time
from collections.abc import Sequence

from kvferry.lmcache import KvFerryClient

KIB = 1024
MODES = ("off", "all")


def batch_s(client: KvFerryClient, submit: str, keys: Sequence[str], buffers: Sequence[memoryview]) -> float:
    """Return the seconds from the submission of a batch to its completion."""
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    begin = time.perf_counter()
    getattr(client, submit)(list(keys), list(buffers))
    completions: list[tuple[int, bool, str, list[bool] | None]] = []
    while not completions:
        poller.poll(1000)
        completions = client.drain_completions()
    seconds = time.perf_counter() - begin
    [(_, ok, error, found)] = completions
    if not ok or not all(found or [True]):
        raise SystemExit(f"{submit} of {len(keys)} keys: {error or found}")
    return seconds


def measure(size_kib: int, num_keys: int, rounds: int, workers: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each batch, by operation and mode."""
    size = size_kib * KIB
    capacity = max(512 * KIB * KIB, 16 * size * num_keys)
    clients = {mode: KvFerryClient(capacity=capacity, num_workers=workers, verify=mode) for mode in MODES}
    value = random.Random(1).randbytes(size)
    # Each client has buffers of its own, so that neither finds the other's in a cache. Like LMCache's they are pages.
    sources, targets = (
        {mode: [memoryview(mmap.mmap(-1, size)) for _ in range(num_keys)] for mode in MODES} for _ in "ab"
    )
    for buffer in (buffer for mode in MODES for buffer in sources[mode]):
        buffer[:] = value
    seconds: dict[str, dict[str, list[float]]] = {name: {mode: [] for mode in MODES} for name in ("set", "get")}
    warmup = rounds // 10 + 2
    for number in range(rounds + warmup):
        keys = [f"model@00000000@group:0@{number:08x}{i:08x}" for i in range(num_keys)]
        order = MODES if number % 2 == 0 else MODES[::-1]
        for name, buffers in (("set", sources), ("get", targets)):
            for mode in order:
                taken = batch_s(clients[mode], f"submit_batch_{name}", keys, buffers[mode])
                if number >= warmup:
                    seconds[name][mode].append(taken)
    for mode in MODES:
        if any(target != value for target in targets[mode]):
            raise SystemExit("a get has brought other bytes than the set has stored")
        clients[mode].close()
    return seconds


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes-kib", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--num-keys", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    print("| op | KiB x objects | off, us | all, us | rate of all to off |\n|---|---|---|---|---|")
    for size_kib in chosen.sizes_kib:
        for num_keys in chosen.num_keys:
            for name, taken in measure(size_kib, num_keys, chosen.rounds, chosen.workers).items():
                off, verified = (1e6 * statistics.median(taken[mode]) for mode in MODES)
                ratio = statistics.median(a / b for a, b in zip(*(taken[mode] for mode in MODES), strict=True))
                print(f"| {name} | {size_kib} x {num_keys} | {off:.0f} | {verified:.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
