# SPDX-License-Identifier: Apache-2.0
"""The shared tiers of this machine, as they are now."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from kvferry import _core

USUAL_PLACES = ("/dev/shm", "/dev/shm/kvferry")
"""Where a tier is without a wish of the user's."""

# A driver ends a process's copies as it ends its contexts, in milliseconds; this is for one that is slow.
_GRACE_S = 30.0
# Until the tier is made anew.
_FOR_EVER_S = 1e9


def grace_s() -> float:
    """Seconds for which a copy may go on whose process is gone."""
    return _FOR_EVER_S if _is_under_mps() else _GRACE_S


def _is_under_mps() -> bool:
    """Whether another process, which outlives this one, does the copies of all on the device."""
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return (pipes / "control").exists()


@dataclasses.dataclass(frozen=True)
class Instance:
    """An engine in a tier; one that is dead is cleaned up behind by the next engine that comes."""

    name: str
    name_space: int
    is_alive: bool
    num_chunks: int
    weight: int


@dataclasses.dataclass(frozen=True)
class Tier:
    """What the file of a tier holds."""

    path: str
    made_by: str
    figures: dict[str, int]
    """Bytes, chunks, and slots by state (``slots/free``): as ``_core.inspect_tier`` names them."""
    instances: list[Instance]

    @property
    def is_stale(self) -> bool:
        """Whether it is of an earlier run of the machine: the next engine makes it anew."""
        return not self.figures["is_of_this_boot"]

    @property
    def num_living(self) -> int:
        """Engines that use it."""
        return sum(instance.is_alive for instance in self.instances)


def inspect(path: str) -> Tier:
    """Look at a tier without joining it.

    Raises
    ------
    ConfigError
        If the file is no tier that this version can read.
    ResourceError
        If there is none.

    """
    texts, figures, instances = _core.inspect_tier(os.fsencode(path))
    return Tier(path, texts["made_by"], figures, [Instance(*of) for of in instances])


def find(directories: Sequence[str] = USUAL_PLACES) -> list[str]:
    """Find the tiers right in these directories; a name that is no UTF-8 is as `os.fsdecode` has it."""
    present = [directory for directory in directories if Path(directory).is_dir()]
    return [os.fsdecode(path) for directory in present for path in _core.find_tiers(os.fsencode(directory))]


def shown(path: str) -> str:
    r"""Write a path so that it can be printed: bytes that are no UTF-8 as ``\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def event_words_prefix(path: str) -> str:
    """Return how the names of a tier's files begin in which engines say what routers are told of their blocks."""
    return f"{path}.events-"


def remove(path: str) -> None:
    """Remove a tier that no engine uses, and what its engines have left beside it.

    Raises
    ------
    ConfigError
        If the file is no tier.
    ResourceError
        If there is none, or engines use it: these are named.

    """
    _core.remove_tier(os.fsencode(path))
    prefix = os.path.basename(event_words_prefix(path))
    for beside in list(Path(path).parent.iterdir()):
        if beside.name.startswith(prefix):
            beside.unlink(missing_ok=True)
