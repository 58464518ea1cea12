# SPDX-License-Identifier: Apache-2.0
"""The data that the scheduler side and the ranks exchange inside vLLM's own messages."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass
class KvFerryMetadata(KVConnectorMetadata):
    """The orders for every rank in one step.

    Attributes
    ----------
    plan
        An encoded StepPlan; empty if the connector is inert.

    """

    plan: bytes = b""


@dataclass
class KvFerryWorkerMetadata(KVConnectorWorkerMetadata):
    """The reports of ranks about what happened since their last reports.

    Attributes
    ----------
    reports
        Encoded StepReports, at most one for each rank.

    """

    reports: list[bytes] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Return True: the engine's aggregator drops metadata that is false."""
        return True

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Join with another rank's metadata, without interpreting either.

        Raises
        ------
        TypeError
            `other` is not of this class.

        """
        if not isinstance(other, KvFerryWorkerMetadata):
            raise TypeError(f"cannot aggregate KvFerryWorkerMetadata with {type(other).__name__}")
        return KvFerryWorkerMetadata(reports=self.reports + other.reports)
