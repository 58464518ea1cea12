# SPDX-License-Identifier: Apache-2.0
"""What travels between the scheduler side and the ranks, inside vLLM's own messages."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass
class KvFerryMetadata(KVConnectorMetadata):
    """What every rank does in one step.

    Attributes
    ----------
    plan
        An encoded StepPlan; empty if the connector is inert.

    """

    plan: bytes = b""


@dataclass
class KvFerryWorkerMetadata(KVConnectorWorkerMetadata):
    """What ranks saw since they last said something.

    Attributes
    ----------
    reports
        Encoded StepReports, at most one of each rank.

    """

    reports: list[bytes] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Be true always: the engine's aggregator drops what is not."""
        return True

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Join with another rank's metadata; nothing of either is interpreted.

        Raises
        ------
        TypeError
            `other` is not of this class.

        """
        if not isinstance(other, KvFerryWorkerMetadata):
            raise TypeError(f"cannot aggregate KvFerryWorkerMetadata with {type(other).__name__}")
        return KvFerryWorkerMetadata(reports=self.reports + other.reports)
