# SPDX-License-Identifier: Apache-2.0
"""The current state of this machine's shared tiers."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from kvferry import _core

USUAL_PLACES = ("/dev/shm", "/dev/shm/kvferry")
"""The directories in which tiers are by default."""

# A driver ends a process's copies with its contexts, in milliseconds; this allows for a slow driver.
_GRACE_S = 30.0
# Until the tier is created again: TierDirectory::Identity::kForEver.
_FOR_EVER_S = 1e9


def grace_s() -> float:
    """Seconds for which a copy could continue after its process is gone."""
    return _FOR_EVER_S if _is_under_mps() else _GRACE_S


def _is_under_mps() -> bool:
    """Whether the MPS server, which outlives this process, makes the copies of all processes on the device."""
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return (pipes / "control").exists()


@dataclasses.dataclass(frozen=True)
class Instance:
    """An engine in a tier. The next engine that joins cleans up after a dead one."""

    name: str
    name_space: int
    is_alive: bool
    num_chunks: int
    weight: int


@dataclasses.dataclass(frozen=True)
class Tier:
    """The contents of a tier's file."""

    path: str
    made_by: str
    figures: dict[str, int]
    """Bytes, chunks, and slots by state (``slots/free``), with the names of ``_core.inspect_tier``."""
    instances: list[Instance]

    @property
    def is_stale(self) -> bool:
        """Whether the file is from before the last boot. The next engine then replaces it."""
        return not self.figures["is_of_this_boot"]

    @property
    def num_living(self) -> int:
        """Number of engines that use it."""
        return sum(instance.is_alive for instance in self.instances)


def inspect(path: str) -> Tier:
    """Look at a tier without joining it.

    Raises
    ------
    ConfigError
        If the file is not a tier that this version can read.
    ResourceError
        If there is none.

    """
    texts, figures, instances = _core.inspect_tier(os.fsencode(path))
    return Tier(path, texts["made_by"], figures, [Instance(*of) for of in instances])


def find(directories: Sequence[str] = USUAL_PLACES) -> list[str]:
    """Find the tiers directly in these directories. A name that is not UTF-8 is decoded as by `os.fsdecode`."""
    present = [directory for directory in directories if Path(directory).is_dir()]
    return [os.fsdecode(path) for directory in present for path in _core.find_tiers(os.fsencode(directory))]


def shown(path: str) -> str:
    r"""Make a path printable: bytes that are not UTF-8 become ``\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def event_words_prefix(path: str) -> str:
    """Return the prefix of a tier's files with the tokens of its blocks, which engines need for KV events."""
    return f"{path}.events-"


def remove(path: str) -> None:
    """Remove a tier that no engine uses, and the files that its engines have left next to it.

    Raises
    ------
    ConfigError
        If the file is not a tier.
    ResourceError
        If there is no such file, or engines use it; the message names them.

    """
    _core.remove_tier(os.fsencode(path))
    prefix = os.path.basename(event_words_prefix(path))
    for beside in list(Path(path).parent.iterdir()):
        if beside.name.startswith(prefix):
            beside.unlink(missing_ok=True)
