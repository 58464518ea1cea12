# SPDX-License-Identifier: Apache-2.0
"""What travels inside vLLM's messages arrives."""

import pickle

import pytest
from kvferry.vllm.metadata import KvFerryMetadata, KvFerryWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput


def test_plan_survives_the_way_to_a_worker() -> None:
    assert pickle.loads(pickle.dumps(KvFerryMetadata(b"\0plan\xff"))) == KvFerryMetadata(b"\0plan\xff")


def test_reports_are_true_even_when_they_say_nothing() -> None:
    # The engine drops what `or None` drops on the way.
    assert KvFerryWorkerMetadata()
    assert KvFerryWorkerMetadata([])
    assert not KVConnectorOutput(kv_connector_worker_meta=KvFerryWorkerMetadata()).is_empty()


def test_aggregate_keeps_every_report_and_changes_neither() -> None:
    one, other = KvFerryWorkerMetadata([b"a"]), KvFerryWorkerMetadata([b"b", b"c"])
    assert one.aggregate(other) == KvFerryWorkerMetadata([b"a", b"b", b"c"])
    assert (one.reports, other.reports) == ([b"a"], [b"b", b"c"])


def test_aggregate_with_a_stranger_is_refused() -> None:
    class Stranger(KVConnectorWorkerMetadata):
        def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
            return self

    with pytest.raises(TypeError, match="Stranger"):
        KvFerryWorkerMetadata().aggregate(Stranger())


@pytest.mark.parametrize("silent_rank", [None, 0, 1])
def test_reports_of_all_ranks_pass_the_engines_aggregator(silent_rank: int | None) -> None:
    outputs = [
        ModelRunnerOutput(
            req_ids=[],
            req_id_to_index={},
            kv_connector_output=KVConnectorOutput(
                kv_connector_worker_meta=None if rank == silent_rank else KvFerryWorkerMetadata([bytes([rank])])
            ),
        )
        for rank in range(3)
    ]
    result = KVOutputAggregator(3).aggregate(outputs)
    expected = [bytes([rank]) for rank in range(3) if rank != silent_rank]
    assert result.kv_connector_output.kv_connector_worker_meta == KvFerryWorkerMetadata(expected)
