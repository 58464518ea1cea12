# SPDX-License-Identifier: Apache-2.0
"""kvferry's figures in vLLM's log line, and at ``/metrics`` as ``vllm:kvferry_...``.

Each side counts for itself, and reports the difference since its last report. A key is the name of a metric; if the
metric has a label, a slash and the label's value follow.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from prometheus_client import Counter, Gauge, Histogram
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)

# Newer figures would not help a log line every ten seconds or a scrape every fifteen, and reading them takes some
# microseconds of a step.
PERIOD_S = 1.0


class Metric(NamedTuple):
    """One metric.

    Attributes
    ----------
    kind
        `Counter`, `Gauge` or `Histogram`.
    documentation
        The text at ``/metrics``.
    label
        Name of its label besides vLLM's own; empty: none.

    """

    kind: type[PromMetric]
    documentation: str
    label: str = ""


METRICS = {
    "hit_tokens": Metric(Counter, "Tokens that were loaded from the CPU tier instead of being computed."),
    "stored_blocks": Metric(Counter, "Blocks that were stored, on every rank."),
    "loaded_blocks": Metric(Counter, "Blocks that were loaded, on every rank."),
    "evicted_blocks": Metric(Counter, "Blocks that were evicted to make room for others."),
    "skipped_blocks": Metric(Counter, "Blocks that could have been stored and were not, by reason.", "reason"),
    "hints": Metric(Counter, "Hints from clients about blocks, by action or result.", "action"),
    "promises": Metric(Gauge, "Sessions, and requests without a session, whose blocks are promised."),
    "promised_blocks": Metric(Gauge, "Keys of blocks that clients have promised to need again."),
    "tier_kept_blocks": Metric(Gauge, "Blocks that would have been evicted, and stay because they are promised."),
    "tier_keepable_blocks": Metric(Gauge, "Most blocks that may stay so now: what hints have won, less their cost."),
    "hints_won_blocks": Metric(Counter, "Blocks that stayed because they were promised, and were then loaded."),
    "hints_lost_blocks": Metric(Counter, "Blocks that were evicted instead of promised ones, and were then asked for."),
    "demoted_blocks": Metric(Counter, "Blocks that left early because of a client's hint."),
    "failed_stores": Metric(Counter, "Stores that failed on a rank."),
    "failed_loads": Metric(Counter, "Loads that failed on a rank; their tokens are computed, or the request fails."),
    "expired_loads": Metric(Counter, "Failed loads that some rank had not begun within load_timeout_s."),
    "load_waits": Metric(Counter, "Requests that waited while another request loaded the same prefix."),
    "stale_reports": Metric(Counter, "Late transfer reports for finished requests; ignored."),
    "policy_switches": Metric(Counter, "How often an adaptive tier changed its rule."),
    "tier_blocks": Metric(Gauge, "Slots of the tier by state; aborted and quarantined are not reused yet.", "state"),
    "tier_ready_blocks": Metric(Gauge, "Slots of the tier that are ready on every rank."),
    "tier_size_blocks": Metric(Gauge, "Slots that the tier will have."),
    "tier_awaited_blocks": Metric(Gauge, "Blocks that are kept because queued requests will load them."),
    "tier_moved_chunks": Metric(Counter, "Chunks of the tier that changed to another slot size."),
    "tier_chunks": Metric(Gauge, "Chunks of the tier that belong to this engine; others can have the rest."),
    "tier_foreign_blocks": Metric(Gauge, "Blocks of other engines in a shared tier that this engine is about to load."),
    "found_foreign_blocks": Metric(Counter, "Blocks that this engine found in a shared tier and others had stored."),
    "tier_wasted_bytes": Metric(Gauge, "Bytes at the ends of chunks, of a rank's tier, that hold no slot."),
    "stores_in_flight": Metric(Gauge, "Stores under way."),
    "loads_in_flight": Metric(Gauge, "Loads under way."),
    "backlog_blocks": Metric(Gauge, "Blocks that wait to be stored."),
    "queue_seconds": Metric(Histogram, "How long a transfer waited for its first copy, on each rank.", "kind"),
    "device_seconds": Metric(Histogram, "Device time of a transfer's copies, on each rank.", "kind"),
    "rank_stored_bytes": Metric(Counter, "Bytes that a rank copied to host memory.", "rank"),
    "rank_loaded_bytes": Metric(Counter, "Bytes that a rank copied back.", "rank"),
    "rank_failed_transfers": Metric(Counter, "Transfers that failed on a rank.", "rank"),
    "rank_damaged_blocks": Metric(Counter, "Blocks that a rank found not to be what was stored.", "rank"),
    "rank_staging_bytes": Metric(Gauge, "Device memory of the staging ring that is in use.", "rank"),
    "rank_in_flight_bytes": Metric(Gauge, "Bytes under way on the link.", "rank"),
    "rank_queued_bytes": Metric(Gauge, "Bytes that wait for the link.", "rank"),
    "rank_ready_blocks": Metric(Gauge, "Slots of a rank's host memory that are populated and pinned.", "rank"),
    "rank_numa_node": Metric(Gauge, "The preferred NUMA node of a rank's host memory.", "rank"),
    "rank_on_node_ratio": Metric(Gauge, "Share of that memory on that node.", "rank"),
    "rank_huge_page_ratio": Metric(Gauge, "Share of that memory in huge pages.", "rank"),
}

# The key of each of the core's figures.
SCHEDULER_KEYS = {
    "hit_tokens": "hit_tokens",
    "stored": "stored_blocks",
    "loaded": "loaded_blocks",
    "num_evicted_total": "evicted_blocks",
    "skipped_ring": "skipped_blocks/ring",
    "skipped_exhausted": "skipped_blocks/exhausted",
    "skipped_declined": "skipped_blocks/declined",
    "skipped_reallocated": "skipped_blocks/reallocated",
    "skipped_unwanted": "skipped_blocks/unwanted",
    "hints_retain": "hints/retain",
    "hints_release": "hints/release",
    "hints_demote": "hints/demote",
    "hints_prefetch": "hints/prefetch",
    "hints_refused": "hints/refused",
    "hints_without_effect": "hints/without_effect",
    "hints_expired": "hints/expired",
    "num_promises": "promises",
    "num_promised": "promised_blocks",
    "num_stays": "tier_kept_blocks",
    "num_stays_max": "tier_keepable_blocks",
    "num_won_total": "hints_won_blocks",
    "num_lost_total": "hints_lost_blocks",
    "num_early_total": "demoted_blocks",
    "failed_stores": "failed_stores",
    "failed_loads": "failed_loads",
    "expired_loads": "expired_loads",
    "load_waits": "load_waits",
    "stale_reports": "stale_reports",
    "num_rule_switches_total": "policy_switches",
    "num_free": "tier_blocks/free",
    "num_writable": "tier_blocks/writable",
    "num_aborted": "tier_blocks/aborted",
    "num_evictable": "tier_blocks/evictable",
    "num_leased": "tier_blocks/leased",
    "num_dying": "tier_blocks/dying",
    "num_quarantined": "tier_blocks/quarantined",
    "num_slots": "tier_ready_blocks",
    "max_slots": "tier_size_blocks",
    "num_awaited": "tier_awaited_blocks",
    "num_moved_chunks": "tier_moved_chunks",
    "num_chunks": "tier_chunks",
    "num_guests": "tier_foreign_blocks",
    "num_guests_total": "found_foreign_blocks",
    "wasted_bytes": "tier_wasted_bytes",
    "num_stores_in_flight": "stores_in_flight",
    "num_loads_in_flight": "loads_in_flight",
    "num_backlog": "backlog_blocks",
}
RANK_KEYS = {
    "stored_bytes": "rank_stored_bytes",
    "loaded_bytes": "rank_loaded_bytes",
    "failed_transfers": "rank_failed_transfers",
    "ring_used_bytes": "rank_staging_bytes",
    "in_flight_bytes": "rank_in_flight_bytes",
    "queued_bytes": "rank_queued_bytes",
    "num_slots": "rank_ready_blocks",
    "numa_node": "rank_numa_node",
    "on_node_ratio": "rank_on_node_ratio",
    "huge_page_ratio": "rank_huge_page_ratio",
}


def damage_keys(world_size: int) -> dict[str, str]:
    """Return the scheduler side's keys that have one value for each rank.

    Parameters
    ----------
    world_size
        Number of ranks.

    Returns
    -------
    dict
        From the core's figures to keys, as `SCHEDULER_KEYS`.

    """
    return {f"damaged_blocks/{rank}": f"rank_damaged_blocks/{rank}" for rank in range(world_size)}


# From one copy call for some blocks up to a prompt of a million tokens over a busy link.
SECONDS_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

# Gauges that return to 0 in a step that can be the engine's last one for a long time.
_PASSING = ("num_stores_in_flight", "num_loads_in_flight", "in_flight_bytes", "queued_bytes")

# The keys of the log line, in its order.
LOGGED_KEYS = (
    "hit_tokens",
    "stored_blocks",
    "loaded_blocks",
    "evicted_blocks",
    "failed_stores",
    "failed_loads",
    "tier_ready_blocks",
    "tier_blocks/free",
    "tier_blocks/quarantined",
)


def metric_of(key: str) -> Metric:
    """Return the metric to which `key` belongs."""
    return METRICS[key.partition("/")[0]]


class KvFerryStats(KVConnectorStats):
    """Figures by key: the increase of a counter, the value of a gauge, the list of a histogram's observations."""

    def reset(self) -> None:
        """Forget all figures."""
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> "KvFerryStats":
        """Add later figures, or those of another rank."""
        for key, value in other.data.items():
            kind = metric_of(key).kind
            if kind is Gauge or key not in self.data:
                self.data[key] = value
            else:
                self.data[key] = self.data[key] + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return the figures of the log line; if it would be empty, all figures except histograms."""
        main = {key: self.data[key] for key in LOGGED_KEYS if key in self.data}
        return main or {key: value for key, value in self.data.items() if metric_of(key).kind is not Histogram}

    def is_empty(self) -> bool:
        """Whether there are no figures."""
        return not self.data


class StatsSource:
    """Takes one side's figures from time to time; used only by its engine thread.

    Parameters
    ----------
    read
        Returns the figures: counters since the start, and current values of gauges. It may leave out those that have
        not changed since its last call.
    keys
        The key of each figure, by its name.
    is_busy
        Whether any of the gauges `_PASSING` is not 0. It is called in every step, `read` is not.
    label
        Value of the label of each key; empty: none.
    take_timings
        Takes the observations of histograms since the last call, by key.

    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, float]],
        keys: Mapping[str, str],
        is_busy: Callable[[], bool],
        label: str = "",
        take_timings: Callable[[], Mapping[str, list[float]]] = dict,
    ) -> None:
        self._read = read
        self._take_timings = take_timings
        self._is_busy = is_busy
        labelled = {name: f"{key}/{label}" if label else key for name, key in keys.items()}
        self._keys = {name: (key, metric_of(key).kind is Counter) for name, key in labelled.items()}
        self._passing = [labelled[name] for name in _PASSING if name in labelled]
        self._last: dict[str, float] = {}
        self._due = 0.0
        self._is_passing = False  # in the last report

    def hurry(self) -> None:
        """Take the figures at the next call, because it can be the last one for a long time."""
        self._due = 0.0

    def take(self) -> KvFerryStats | None:
        """Take the figures if it is time, or if the last report had copies under way and all have ended since.

        Unchanged figures are left out.
        """
        now = time.monotonic()
        if now < self._due and (not self._is_passing or self._is_busy()):
            return None
        figures = self._read()
        self._due = now + PERIOD_S
        data: dict[str, float | list[float]] = dict(self._take_timings())
        for name, value in figures.items():
            if name not in self._keys:
                continue
            key, is_counter = self._keys[name]
            last = self._last.get(key)
            if value == last:
                continue
            self._last[key] = value
            if not is_counter:
                data[key] = value
            elif grown := value - (last or 0):
                data[key] = grown
        self._is_passing = any(self._last.get(key) for key in self._passing)
        return KvFerryStats(data=data) if data else None


class KvFerryPromMetrics(KVConnectorPromMetrics):
    """The metrics at ``/metrics``, for all engines of the process.

    Parameters
    ----------
    vllm_config, metric_types, labelnames, per_engine_labelvalues
        As vLLM passes them.

    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics: dict[str, Any] = {}
        for name, metric in METRICS.items():
            options: dict[str, Any] = {}
            if metric.kind is Gauge:
                # If several processes serve one engine's metrics, the last value that any of them got.
                options["multiprocess_mode"] = "mostrecent"
            elif metric.kind is Histogram:
                options["buckets"] = SECONDS_BUCKETS
            self._metrics[name] = metric_types[metric.kind](
                name=f"vllm:kvferry_{name}",
                documentation=metric.documentation,
                labelnames=[*labelnames, metric.label] if metric.label else labelnames,
                **options,
            )
        # The scheduler side's metrics and the counters of all ranks exist from the start, with the value 0: Prometheus
        # sees no increase in a counter that begins at 1. A rank's gauges have no value until the rank tells it.
        ranks = range(vllm_config.parallel_config.world_size)
        of_ranks = [f"{name}/{rank}" for name in METRICS if name.startswith("rank_") for rank in ranks]
        counters = [key for key in of_ranks if metric_of(key).kind is Counter]
        for engine_idx in per_engine_labelvalues:
            for key in (*SCHEDULER_KEYS.values(), *counters):
                self._child(key, engine_idx)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record the figures that an engine reported."""
        for key, value in transfer_stats_data.items():
            child = self._child(key, engine_idx)
            kind = metric_of(key).kind
            if kind is Histogram:
                for seen in value:
                    child.observe(seen)
            elif kind is Counter:
                child.inc(value)
            else:
                child.set(value)

    def _child(self, key: str, engine_idx: int) -> Any:
        name, _, label = key.partition("/")
        return self._metrics[name].labels(*self.per_engine_labelvalues[engine_idx], *([label] if label else []))
