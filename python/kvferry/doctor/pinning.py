# SPDX-License-Identifier: Apache-2.0
"""Whether this process can get, and pin, the host memory of a tier."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvferry import _core
from kvferry.doctor.fact import Fact
from kvferry.doctor.verdict import Verdict
from kvferry.sizes import format_size


@dataclass(frozen=True)
class Limit:
    """One limit on more host memory, as the engine reads it at its start.

    Attributes
    ----------
    name
        Its name.
    room_bytes
        Bytes that it still allows.
    remedy
        How to raise it.

    """

    name: str
    room_bytes: int
    remedy: str


def examine_pinning(
    limits: Sequence[Limit], memlock_bytes: int | None, verdict: Verdict | None, has_gpu: bool
) -> list[Fact]:
    """Compare the limits with the tier of a configuration.

    Parameters
    ----------
    limits
        The limits on more host memory.
    memlock_bytes
        Bytes that can be locked; None: unlimited.
    verdict
        The verdict on the configuration. None: there is none to compare with.
    has_gpu
        Whether a driver could pin memory.

    """
    wanted = verdict or Verdict("")
    rooms = [_room(limit, wanted.machine_bytes) for limit in limits]
    return [*rooms, _memlock(memlock_bytes, wanted.bytes_per_rank, has_gpu)]


def _room(limit: Limit, wanted_bytes: int) -> Fact:
    text = f"room for {format_size(limit.room_bytes)}"
    if wanted_bytes > limit.room_bytes:
        return Fact(limit.name, "problem", f"{text}, but the tier takes {format_size(wanted_bytes)}: {limit.remedy}")
    return Fact(limit.name, "ok", text)


def _memlock(memlock_bytes: int | None, rank_bytes: int, has_gpu: bool) -> Fact:
    if memlock_bytes is None:
        return Fact("RLIMIT_MEMLOCK", "ok", "unlimited")
    if has_gpu and (warning := _core.memlock_warning(rank_bytes)):
        return Fact("RLIMIT_MEMLOCK", "note", warning)
    return Fact("RLIMIT_MEMLOCK", "ok", f"{format_size(memlock_bytes)} (does not limit GPU drivers)")
