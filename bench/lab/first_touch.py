# SPDX-License-Identifier: Apache-2.0
"""Measures how fast a Linux machine provides memory at its first touch, and at the second.

    python bench/lab/first_touch.py --mib 4096

A virtual machine gets most of its memory from its host when it touches it for the first time. Then the second round is
many times faster than the first. The program also counts the kernel's own work (pages compacted or reclaimed).
"""

from __future__ import annotations

import argparse
import ctypes
import time
from pathlib import Path

MIB = 1 << 20
HUGE_PAGE_BYTES = 2 * MIB
STEP_BYTES = 64 * MIB
# <sys/mman.h> of Linux.
READ_WRITE, PRIVATE_ANONYMOUS, HUGE_PAGES, POPULATE_WRITE = 3, 0x22, 14, 23
COUNTERS = ("compact_stall", "allocstall_normal", "allocstall_movable", "pgscan_direct", "thp_fault_fallback")


def kernel_counters() -> dict[str, int]:
    """Return counters of the kernel's work to find free pages, since the machine's start."""
    lines = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return {name: int(value) for name, value in lines if name in COUNTERS}


def touch(num_bytes: int) -> list[float]:
    """Touch fresh memory step by step; return the seconds of each step. The memory is freed."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    mapped_bytes = num_bytes + HUGE_PAGE_BYTES
    mapped = libc.mmap(None, mapped_bytes, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    if mapped == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mapping {mapped_bytes} bytes failed: name fewer by --mib")
    try:
        libc.madvise(mapped, mapped_bytes, HUGE_PAGES)
        begin = (mapped + HUGE_PAGE_BYTES - 1) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        seconds = []
        for offset in range(0, num_bytes, STEP_BYTES):
            began = time.monotonic()
            if libc.madvise(begin + offset, min(STEP_BYTES, num_bytes - offset), POPULATE_WRITE) != 0:
                raise OSError(ctypes.get_errno(), "populating failed (Linux 5.14 or later is needed, and free memory)")
            seconds.append(time.monotonic() - began)
        return seconds
    finally:
        libc.munmap(mapped, mapped_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="memory that is touched; it has to be free")
    arguments = parser.parse_args()
    for name in ("first", "second"):
        before = kernel_counters()
        seconds = sorted(touch(arguments.mib * MIB))
        work = {counter: value - before[counter] for counter, value in kernel_counters().items()}
        rate = arguments.mib * MIB / sum(seconds) / 1e6
        print(
            f"{name} round: {rate:.0f} MB/s; for 64 MiB {seconds[len(seconds) // 2]:.3f} s at the median, "
            f"{seconds[-1]:.3f} s at most; the kernel's work: {work}"
        )


if __name__ == "__main__":
    main()
