# SPDX-License-Identifier: Apache-2.0
"""LMCache's command line, run by the Python of its own environment, with benchmark objects for its dax adapter.

The objects of ``lmcache bench l2`` 0.5.6 have their shape in one of two places, and the dax adapter reads the other.
"""

import sys
from typing import Any

from lmcache.cli.commands.bench.l2_adapter_bench import data
from lmcache.cli.main import main

_make = data.make_memory_objects


def make_memory_objects(*arguments: Any, **named: Any) -> list[Any]:
    """Make the objects, and set the lists of shapes and types of each."""
    objects: list[Any] = _make(*arguments, **named)
    for made in objects:
        made.meta.shapes = [made.meta.shape]
        made.meta.dtypes = [made.meta.dtype]
    return objects


if __name__ == "__main__":
    data.make_memory_objects = make_memory_objects
    sys.argv[0] = "lmcache"
    sys.exit(main())
