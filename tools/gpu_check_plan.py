# SPDX-License-Identifier: Apache-2.0
"""The steps of a GPU check and their order: three calls of ten minutes, each useful by itself."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_check_steps import (
    Outcome,
    Setting,
    bench,
    conformance,
    integrity,
    integrity_proof,
    ownership,
    sanitizer,
    smoke,
    transfer,
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes
    ----------
    seconds
        The step is ended after this time, or at the call's deadline if that is earlier.
    least
        The step is not started if fewer seconds are left.

    """

    what: str
    seconds: float
    least: float
    action: Callable[[Setting, Outcome, float], None]


#: The `seconds` of a call may add up to a little more than its ten minutes, because most steps end earlier.
STEPS: dict[str, Step] = {
    "smoke": Step("what an audit left open, a fact a line", 60, 10, smoke),
    "conformance": Step("the contract of the device interface, by suite", 90, 10, conformance),
    "integrity-paths": Step("every byte, a lane for each way across the link", 60, 30, integrity(35)),
    "bench-link": Step("peak rates of link and memory", 45, 10, bench("link", "--device-rate", quick=True)),
    "bench-copy-quick": Step("each way across the link, small", 60, 10, bench("copy", quick=True)),
    "bench-pipeline": Step(
        "the transfer engine alone and beside work", 130, 15, bench("pipeline", "--co-run", "none,gemm,stream")
    ),
    "bench-pieces": Step(
        "the transfer engine with pieces of several sizes", 80, 15,
        bench("pipeline", "--shape", "64x32KiB", "--piece", "8MiB,16MiB,32MiB,64MiB", "--ring", "256MiB"),
    ),
    "bench-copy": Step("each way across the link, in full", 270, 20, bench("copy")),
    "bench-model": Step(
        "blocks of Llama 3.1 70B, a fragment per layer", 120, 15,
        bench("pipeline", "--model", "llama-3.1-70b", "--tp", "4", "--layout", "per-layer", "--blocks", "128"),
    ),
    "bench-pin": Step("how long pinned memory takes", 90, 15, bench("pin", of="kvferry-lab")),
    "sanitizer-memcheck": Step("the kernels under memcheck", 70, 15, sanitizer("memcheck")),
    "sanitizer-racecheck": Step("the kernels under racecheck", 110, 15, sanitizer("racecheck")),
    "sanitizer-synccheck": Step("the kernels under synccheck", 50, 15, sanitizer("synccheck")),
    "ownership": Step("the random model with memory on the device", 60, 15, ownership),
    "transfer": Step("stores and loads under stress", 40, 10, transfer),
    "integrity-proof": Step("a changed byte is found", 40, 15, integrity_proof),
    "integrity": Step("every byte, for minutes", 270, 40, integrity(240)),
}  # fmt: skip

CALLS: dict[str, tuple[str, ...]] = {
    "first": (
        "smoke", "conformance", "integrity-paths", "bench-link", "bench-copy-quick", "bench-pipeline", "bench-pieces",
    ),
    "second": ("bench-copy", "bench-model", "bench-pin"),
    "third": (
        "sanitizer-memcheck", "sanitizer-racecheck", "sanitizer-synccheck", "ownership", "transfer", "integrity-proof",
        "integrity",
    ),
}  # fmt: skip
