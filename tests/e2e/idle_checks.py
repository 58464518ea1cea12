# SPDX-License-Identifier: Apache-2.0
"""What must hold when an engine has nothing to do."""

from __future__ import annotations

from typing import Any

from .storm import SLOT_STATES


def assert_nothing_is_kept(inspected: dict[str, Any]) -> None:
    """The engine is idle, its pool is whole, and no slot of the tier is in a reader's or writer's hands."""
    assert not inspected["has_work"]
    assert inspected["num_requests"] == 0
    assert inspected["num_free_gpu_blocks"] == inspected["num_gpu_blocks"] - 1  # the null block
    tier = inspected["tier"]
    assert sum(tier[state] for state in SLOT_STATES) == tier["num_slots"], tier
    assert tier["num_leased"] == tier["num_dying"] == 0, tier
    assert tier["num_writable"] == tier["num_aborted"] == 0, tier
    assert tier["num_quarantined"] == 0, tier
    assert tier["num_loads_in_flight"] == tier["num_stores_in_flight"] == 0, tier
    assert tier["num_requests"] == tier["num_tombstones"] == 0, tier
    assert tier["ready_ranks"] == len(inspected["workers"]), tier
    for worker in inspected["workers"]:
        assert worker["ring_used_bytes"] == worker["load_staging_used_bytes"] == 0, worker
        assert worker["quarantined_blocks"] == 0, worker
        assert worker["queued_bytes"] == worker["in_flight_bytes"] == 0, worker
