# SPDX-License-Identifier: Apache-2.0
"""What vLLM shows of kvferry: in its log line, and at ``/metrics`` as ``vllm:kvferry_...``.

Each side counts for itself and tells the difference since it last did. A key is the name of a metric, and behind a
slash the value of its label, if it has one.
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

# A figure in a log line of every ten seconds and a scrape of every fifteen need not be newer, and taking it costs some
# microseconds of a step.
PERIOD_S = 1.0


class Metric(NamedTuple):
    """One metric.

    Attributes
    ----------
    kind
        `Counter`, `Gauge` or `Histogram`.
    documentation
        As ``/metrics`` shows it.
    label
        That it has beside vLLM's own; empty for none.

    """

    kind: type[PromMetric]
    documentation: str
    label: str = ""


METRICS = {
    "hit_tokens": Metric(Counter, "Tokens that were loaded from the CPU tier instead of being computed."),
    "stored_blocks": Metric(Counter, "Blocks that were stored, on every rank."),
    "loaded_blocks": Metric(Counter, "Blocks that were loaded, on every rank."),
    "evicted_blocks": Metric(Counter, "Blocks that left the tier for others."),
    "skipped_blocks": Metric(Counter, "Blocks that were not stored when they might have been.", "reason"),
    "hints": Metric(Counter, "What clients said of blocks, by what was done about it.", "action"),
    "promises": Metric(Gauge, "Sessions, and requests without one, whose blocks are promised."),
    "promised_blocks": Metric(Gauge, "Keys of blocks that clients have promised to need again."),
    "tier_kept_blocks": Metric(Gauge, "Blocks that are kept longer than their turn because they are promised."),
    "tier_keepable_blocks": Metric(Gauge, "How many may be kept so now: what hints have won less what they cost."),
    "hints_won_blocks": Metric(Counter, "Blocks that were kept because they were promised, and were loaded."),
    "hints_lost_blocks": Metric(Counter, "Blocks that left in the place of others, and were asked for."),
    "demoted_blocks": Metric(Counter, "Blocks that left early because their clients said so."),
    "failed_stores": Metric(Counter, "Stores that failed on a rank."),
    "failed_loads": Metric(Counter, "Loads that failed on a rank; their tokens are computed, or the request fails."),
    "expired_loads": Metric(Counter, "Loads of these that some rank had not begun within load_timeout_s."),
    "load_waits": Metric(Counter, "Requests that waited for another one's load of the same prefix."),
    "stale_reports": Metric(Counter, "Words of ranks about what no request waits for any more; dropped."),
    "policy_switches": Metric(Counter, "How often an adaptive tier changed its rule."),
    "tier_blocks": Metric(Gauge, "Slots of the tier by state; aborted and quarantined are not reused yet.", "state"),
    "tier_ready_blocks": Metric(Gauge, "Slots of the tier that are ready on every rank."),
    "tier_size_blocks": Metric(Gauge, "Slots that the tier is going to have."),
    "tier_awaited_blocks": Metric(Gauge, "Blocks that are kept because queued requests will load them."),
    "tier_moved_chunks": Metric(Counter, "Pieces of the tier that went from one size of slots to another."),
    "tier_chunks": Metric(Gauge, "Chunks of the tier that are this engine's; of a shared one others have the rest."),
    "tier_foreign_blocks": Metric(Gauge, "Blocks of other engines in a shared tier that this one is about to load."),
    "found_foreign_blocks": Metric(Counter, "Blocks that this engine found in a shared tier and others had stored."),
    "tier_wasted_bytes": Metric(Gauge, "Bytes of a rank's tier behind the slots of its chunks."),
    "stores_in_flight": Metric(Gauge, "Stores under way."),
    "loads_in_flight": Metric(Gauge, "Loads under way."),
    "backlog_blocks": Metric(Gauge, "Blocks that wait for their turn to be stored."),
    "queue_seconds": Metric(Histogram, "How long a transfer waited for its first copy, on each rank.", "kind"),
    "device_seconds": Metric(Histogram, "Device time of a transfer's copies, on each rank.", "kind"),
    "rank_stored_bytes": Metric(Counter, "Bytes that a rank copied to host memory.", "rank"),
    "rank_loaded_bytes": Metric(Counter, "Bytes that a rank copied back.", "rank"),
    "rank_failed_transfers": Metric(Counter, "Transfers that failed on a rank.", "rank"),
    "rank_damaged_blocks": Metric(Counter, "Blocks that a rank loaded and that were not what was stored.", "rank"),
    "rank_staging_bytes": Metric(Gauge, "Device memory of the staging ring that is in use.", "rank"),
    "rank_in_flight_bytes": Metric(Gauge, "Bytes on their way over the link.", "rank"),
    "rank_queued_bytes": Metric(Gauge, "Bytes that wait for the link.", "rank"),
    "rank_ready_blocks": Metric(Gauge, "Slots of a rank's host memory that are populated and pinned.", "rank"),
    "rank_numa_node": Metric(Gauge, "The NUMA node that a rank's host memory is preferred on.", "rank"),
    "rank_on_node_ratio": Metric(Gauge, "How much of that memory is there.", "rank"),
    "rank_huge_page_ratio": Metric(Gauge, "How much of that memory is in huge pages.", "rank"),
}

# From the core's figures to keys.
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


# From one copy call of some blocks to a prompt of a million tokens over a busy link.
SECONDS_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

# Levels that come back to 0 in a step that may be the engine's last for long.
_PASSING = ("num_stores_in_flight", "num_loads_in_flight", "in_flight_bytes", "queued_bytes")

# What the log line has, in its order.
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
    """Return the metric that `key` is a value of."""
    return METRICS[key.partition("/")[0]]


class KvFerryStats(KVConnectorStats):
    """Figures by key: of counters what came to them, of gauges what they are, of histograms a list of what was seen."""

    def reset(self) -> None:
        """Forget all."""
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> "KvFerryStats":
        """Add what came later, or from another rank."""
        for key, value in other.data.items():
            kind = metric_of(key).kind
            if kind is Gauge or key not in self.data:
                self.data[key] = value
            else:
                self.data[key] = self.data[key] + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what the log line has: all, if it would be empty."""
        main = {key: self.data[key] for key in LOGGED_KEYS if key in self.data}
        return main or {key: value for key, value in self.data.items() if metric_of(key).kind is not Histogram}

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.data


class StatsSource:
    """Takes one side's figures now and then; used by its engine thread only.

    Parameters
    ----------
    read
        Returns the figures: counters since the start, and levels of now.
    keys
        From their names to keys.
    is_busy
        Whether any of the levels that pass is not 0: asked in every step, where the figures are not.
    label
        Behind each key; empty for none.
    take_timings
        Takes what histograms have seen since the last call, by key.

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
        self._last: dict[str, float] = {}
        self._due = 0.0
        self._is_passing = False  # what was told last

    def hurry(self) -> None:
        """Take them at the next occasion: perhaps it is the last one for long."""
        self._due = 0.0

    def take(self) -> KvFerryStats | None:
        """Take them if it is time, or if copies were under way when they were told and none is any more.

        Counters that stand still are left out.
        """
        now = time.monotonic()
        if now < self._due and (not self._is_passing or self._is_busy()):
            return None
        figures = self._read()
        self._due = now + PERIOD_S
        self._is_passing = any(figures.get(name) for name in _PASSING)
        data: dict[str, float | list[float]] = dict(self._take_timings())
        for name, (key, is_counter) in self._keys.items():
            if (value := figures.get(name)) is None:
                continue
            last = self._last.get(key)
            if value == last:
                continue
            self._last[key] = value
            if not is_counter:
                data[key] = value
            elif grown := value - (last or 0):
                data[key] = grown
        return KvFerryStats(data=data) if data else None


class KvFerryPromMetrics(KVConnectorPromMetrics):
    """The metrics of ``/metrics``, of all engines of the process.

    Parameters
    ----------
    vllm_config, metric_types, labelnames, per_engine_labelvalues
        As vLLM gives them.

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
                # Of several processes that serve one engine's metrics, the one that was told last.
                options["multiprocess_mode"] = "mostrecent"
            elif metric.kind is Histogram:
                options["buckets"] = SECONDS_BUCKETS
            self._metrics[name] = metric_types[metric.kind](
                name=f"vllm:kvferry_{name}",
                documentation=metric.documentation,
                labelnames=[*labelnames, metric.label] if metric.label else labelnames,
                **options,
            )
        # What the scheduler side tells is there from the start, as 0.
        for engine_idx in per_engine_labelvalues:
            for key in SCHEDULER_KEYS.values():
                self._child(key, engine_idx)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record what an engine told."""
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
