# SPDX-License-Identifier: Apache-2.0
"""Which seeds random lives are played with: the same few in every run, others where the environment says so."""

import os


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
