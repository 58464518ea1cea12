# SPDX-License-Identifier: Apache-2.0
"""Which seeds random lives are played with: the same few in every run, others where the environment says so."""

import os
import zlib
from typing import Any


def is_played(name: str, parameters: dict[str, Any]) -> bool:
    """Whether a test with this name and these parameters is one of a run.

    Where a test has a seed and both of vLLM's ways to schedule, the seeds take turns with these, unless the
    environment asks for seeds. Which one is first is another for each kind of life.
    """
    if not {"seed", "is_async"} <= parameters.keys() or {"KVFERRY_SEED", "KVFERRY_NUM_SEEDS"} & os.environ.keys():
        return True
    seed, is_async = parameters["seed"], parameters["is_async"]
    kind = name.replace(f"-{seed}", "").replace("async", "").replace("sync", "")
    return bool((seed + zlib.crc32(kind.encode())) % 2 == is_async)


def seed_range(num_seeds: int) -> range:
    """Return the seeds of a test.

    ``KVFERRY_SEED`` plays that one, and with ``KVFERRY_NUM_SEEDS`` as many from there on.

    Parameters
    ----------
    num_seeds
        Of a run without either.

    """
    if "KVFERRY_SEED" in os.environ:
        first = int(os.environ["KVFERRY_SEED"])
        return range(first, first + int(os.environ.get("KVFERRY_NUM_SEEDS", "1")))
    return range(int(os.environ.get("KVFERRY_NUM_SEEDS", num_seeds)))
