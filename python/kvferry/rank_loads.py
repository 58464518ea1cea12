# SPDX-License-Identifier: Apache-2.0
"""What the ranks of an engine have recorded of its loads."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

from kvferry import _core
from kvferry.recordings import configured_number, named

# Flags of events: recorder/event.hpp.
IS_LOAD, OUTCOME = 4, 3


@dataclasses.dataclass(frozen=True)
class RankLoad:
    """A load on one rank.

    Attributes
    ----------
    rank
        The rank.
    got_ns
        When it got the plan, by the recording's clock.
    queued_ns
        How long the load then waited for its first copy; None: none has begun, or its end is not recorded.
    ended_ns
        When the rank saw the end; None: not recorded.

    """

    rank: int
    got_ns: int
    queued_ns: int | None = None
    ended_ns: int | None = None


def loads_of(files: Iterable[_core.RecordingFile]) -> dict[int, tuple[RankLoad, ...]]:
    """Return the loads that the ranks have recorded, by their number, the ranks in their order."""
    loads: defaultdict[int, dict[int, RankLoad]] = defaultdict(dict)
    for file in files:
        rank = configured_number(named(file.config), "rank", 0)
        recording = file.read()
        orders = recording.select(["load"])
        times = recording.times([order.position for order in orders])
        for order, got_ns in zip(orders, times, strict=True):
            has_nothing = len(order.words) == 1
            loads[order.words[0]][rank] = RankLoad(rank, got_ns, ended_ns=got_ns if has_nothing else None)
        for end in recording.select(["copied"]):
            ended_ns, transfer, queued_ns, device_ns = end.words[:4]
            if end.flags & IS_LOAD and rank in loads[transfer]:
                loads[transfer][rank] = dataclasses.replace(
                    loads[transfer][rank], queued_ns=queued_ns if device_ns else None, ended_ns=ended_ns
                )
    return {transfer: tuple(by_rank[rank] for rank in sorted(by_rank)) for transfer, by_rank in loads.items()}
