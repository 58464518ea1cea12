# SPDX-License-Identifier: Apache-2.0
"""The scheduler side: translates each of vLLM's hooks to one call of the core's SchedulerEngine."""

from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.logger import init_logger

from kvferry import _core, tiers
from kvferry.config import SCHEDULER, KvFerryConfig
from kvferry.config_readers import MAX_SECONDS
from kvferry.sizes import format_size
from kvferry.vllm import (
    block_costs,
    fingerprint,
    growth_report,
    kv_events,
    preflight,
    recorder,
    shared_events,
    shared_tier,
    tier_plan,
    topology,
    weights_versions,
)
from kvferry.vllm.callers import being_made
from kvferry.vllm.client_hints import HintReader
from kvferry.vllm.failed_loads import FailedLoads
from kvferry.vllm.hit_report import HitReport
from kvferry.vllm.load_choice import LoadChoice
from kvferry.vllm.metadata import KvFerryMetadata
from kvferry.vllm.request_wishes import WishReader
from kvferry.vllm.stats import SCHEDULER_KEYS, KvFerryStats, StatsSource, damage_keys
from kvferry.vllm.tier_size import TierSize

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.kvferry")


# Three times the duration of a load of 128k tokens for a model with 8B parameters (16 GB at 50 GB/s).
_MAX_LOAD_WAIT_S = 1.0


def _log(warnings: list[str]) -> None:
    for line in warnings:
        logger.warning("kvferry: %s", line)


class SchedulerSide:
    """Decides what is stored and loaded; used only by the engine's scheduler thread.

    Parameters
    ----------
    config
        The connector's configuration.
    vllm_config, kv_cache_config
        The engine's configuration.

    Raises
    ------
    ConfigError
        The tier is too small for one block, or kvferry refuses the engine.

    """

    def __init__(self, config: KvFerryConfig, vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
        plan = tier_plan.plan_tier(config, vllm_config, kv_cache_config)
        groups, sizes, first, shared = plan.groups, plan.sizes, plan.first, plan.first.shared
        parallel = vllm_config.parallel_config
        slot_bytes = topology.bytes_by_rank(first.classes, parallel)
        name_space = fingerprint.NameSpace(0)
        if shared is not None:
            name_space = fingerprint.name_space_of(vllm_config, kv_cache_config, slot_bytes, config.weights_run)
            for line in name_space.warnings:
                logger.warning("kvferry: this engine shares the memory of %s and %s", config.shared_path, line)
        self._versions: weights_versions.WeightsVersions | None = None
        if config.weights_run is not None:
            self._versions = weights_versions.WeightsVersions(config.weights_run, name_space.weights)
            weights_versions.follow_engine(self.on_weights_version)
        self._stays_out = shared_tier.stays_out(config, vllm_config)
        self._wishes = WishReader()
        self._hints = HintReader()
        max_slots, block_tokens = plan.max_slots, plan.block_tokens
        tier_plan.warn_of_small_tier(max_slots, block_tokens, vllm_config.model_config.max_model_len)
        # Of a window, a load brings only the part after the engine's own hit, not the part before it.
        self.completes_divergent_hits = all(kind in {"all", "state", "states", "none"} for kind, _ in plan.reaches)
        self._recorder = recorder.EngineRecorder(config.recorder_bytes)
        has_others = being_made(MultiConnector) is not None
        self.engine = _core.SchedulerEngine(
            **config.told_to(SCHEDULER),
            **self._recorder.options,
            model=vllm_config.model_config.model,
            start=recorder.start_mark(vllm_config),
            **(shared.options if shared else {}),
            world_size=parallel.world_size,
            hash_tokens=sizes.hash_tokens,
            group_hashes_per_block=sizes.hashes_per_block,
            num_blocks=kv_cache_config.num_blocks,
            slot_bytes=slot_bytes,
            slots_per_chunk=first.slots_per_chunk,
            max_chunks=plan.num_chunks,
            replicas=first.sharing.places,
            name_space=name_space.number,
            weights=self._versions.at_start if self._versions else 0,
            most_chunks=shared.most_chunks(config) if shared else 0,
            grace_s=tiers.grace_s() if shared else 0,
            key_events=kv_events.are_on(vllm_config),
            group_reaches=plan.reaches,
            group_classes=plan.of_groups,
            group_unseen_tokens=[preflight.unseen_tokens(group) for group in groups],
            others_load=has_others,
            # The other children would have to wait too while this one answers "ask again".
            max_load_wait_s=_MAX_LOAD_WAIT_S if config.share_loads and not has_others else 0,
            # The sum can exceed the core's limit.
            rank_timeout_s=min(config.rank_timeout_s, MAX_SECONDS),
            store_later_turns=preflight.can_store_later_turns(vllm_config, groups),
        )
        self._recorder.begin(self.engine)
        logger.info(
            "kvferry: the tier holds %s%d blocks of %d tokens, %s in each of %d arenas for %d ranks",
            # The ranks of later pipeline stages report their own numbers.
            "at most " if parallel.pipeline_parallel_size > 1 else "",
            max_slots,
            block_tokens,
            format_size(plan.start_chunks * plan.chunk_bytes),
            plan.num_arenas,
            parallel.world_size,
        )
        costs = block_costs.costs_of(config, vllm_config, kv_cache_config, plan)
        for line in block_costs.lines_of(costs):
            logger.info("kvferry: %s", line)
        self._growth = growth_report.GrowthReport(
            max_slots,
            plan.start_chunks * plan.chunk_bytes * plan.num_arenas,
            costs.tokens_in_tier,
            costs.engine_tokens,
        )
        self._size = TierSize(self.engine, config, vllm_config, plan.num_chunks, plan.start_chunks)
        self._events: kv_events.KvEvents | shared_events.SharedEvents | None = None
        if kv_events.are_on(vllm_config):
            self._events = own = kv_events.KvEvents(self.engine, groups, sizes, kv_cache_config.num_blocks)
            if config.shared_path is not None:
                largest = max(map(sizes.block_tokens, range(len(groups))))
                self._events = shared_events.of_tier(config.shared_path, config.shared_keep, largest, self.engine, own)
        self._failed_loads = FailedLoads()
        self._choice = LoadChoice(config.min_load_tokens, is_async=bool(vllm_config.scheduler_config.async_scheduling))
        self._hits = HitReport(lambda: self._choice.token_seconds, self.engine.snapshot)
        self._stats = StatsSource(
            self.engine.take_changes,
            SCHEDULER_KEYS | damage_keys(parallel.world_size),
            self.engine.is_busy,
        )
        # Whether the output that the engine processes now had reports.
        self._has_folded = False
        self._lookup = self.engine.lookup
        self._on_allocated = self.engine.on_allocated
        self._build_plan = self.engine.build_plan
        self._fold = self.engine.fold

    def bind_pool(self, pool: "BlockPool") -> None:
        """Let the core see which hash each GPU block carries."""
        self.engine.bind_pool(pool.blocks)

    def on_new_request(self, request: "Request") -> None:
        """Begin to follow a request, unless it stays out of the tier."""
        if self._stays_out(request):
            self.engine.on_finished(request.request_id)
            return
        self.engine.on_request(request.request_id, request.block_hashes, *self._wishes.read(request))
        said = self._hints.read(request)
        if said.hints:
            self.engine.on_hints(request.request_id, *said)
        if self._events is not None:
            self._events.follow(request)

    def num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """Look up a request's prefix.

        Parameters
        ----------
        request
            A request that waits for its first blocks.
        num_computed_tokens
            Tokens of its prefix in the engine's own cache.

        Returns
        -------
        tuple[int | None, bool]
            First, the tokens after them that the tier holds. None: ask again in the next step, because another request
            loads them now, because a load of this request has just failed (`FailedLoads`), or because loaded requests
            behind it hold the blocks that it lacks. Second, whether they are loaded asynchronously: always, if there
            are any.

        """
        num_tokens, is_loaded = self._find(request, num_computed_tokens)
        if num_tokens is None:
            return None, False
        self._hits.on_lookup(request.request_id, num_computed_tokens, num_tokens)
        return (num_tokens, True) if is_loaded else (0, False)

    def _find(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return the tokens that the tier holds, or None, and whether to load them."""
        if self._failed_loads.take_put_off(request.request_id):
            return None, False
        if request.request_id in self._failed_loads or request.skip_reading_prefix_cache or self._stays_out(request):
            # Another connector may load the tokens after them.
            may_go_on = self.engine.note_local(request.request_id, num_computed_tokens)
            return (0 if may_go_on else None), False
        num_tokens = self._lookup(request.request_id, request.block_hashes, num_computed_tokens, request.num_tokens)
        is_loaded = (
            num_tokens is not None
            and num_tokens > 0
            and self._choice.is_worth(request.request_id, num_tokens)
            and self._failed_loads.may_load(request.request_id)
        )
        return num_tokens, is_loaded

    @recorder.kept_on_error
    def on_allocated(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """Note that a request got blocks, and begin the load of `num_external_tokens` tokens, if there are any."""
        self._hits.on_allocated(request, num_external_tokens)
        self._choice.forget(request.request_id)
        self._failed_loads.on_allocated(request.request_id)
        if num_external_tokens:
            self._choice.on_load_begun(request.request_id, num_external_tokens)
        self._on_allocated(request.request_id, request.block_hashes, blocks.blocks, num_external_tokens)

    @recorder.kept_on_error
    def build_metadata(self, scheduler_output: "SchedulerOutput") -> KvFerryMetadata:
        """Plan a step."""
        self._size.step()
        cached = scheduler_output.scheduled_cached_reqs
        self._choice.on_step(scheduler_output.total_num_scheduled_tokens, bool(cached.req_ids))
        return KvFerryMetadata(self._build_plan(scheduler_output))

    @recorder.kept_on_error
    def on_worker_output(self, output: "KVConnectorOutput") -> None:
        """Process the ranks' reports. Leave in `output` only the ends of loads for which the engine waits."""
        if output.invalid_block_ids:
            # These come from another connector: kvferry reports requests.
            self.engine.on_blocks_invalid(output.invalid_block_ids)
        metadata = output.kv_connector_worker_meta
        ended: list[str] = []
        stale: list[str] = []
        if metadata is not None:
            ended, stale, warnings = self._fold(metadata.reports)
            self._has_folded = True
            _log(warnings)
        if output.failed_recving:
            for request_id in output.failed_recving.difference(stale):
                self._failed_loads.add(request_id)
        for request_id in ended:
            has_succeeded = request_id not in self._failed_loads
            self._choice.on_load_ended(request_id, has_succeeded)
            self._hits.on_load_ended(request_id, has_succeeded)
        if self.engine.num_slots != self._growth.num_slots:
            for line in self._growth.lines(self.engine.num_slots, self.engine.max_slots):
                logger.info("%s", line)
        if ended or stale:
            output.finished_recving = (output.finished_recving or set()).difference(stale).union(ended)

    @recorder.kept_on_error
    def take_stats(self) -> KvFerryStats | None:
        """Take this side's figures, if it is time.

        vLLM calls this once for each step's output, after it has processed the output. So this call tells the core
        about outputs without a report, which its time-outs count.
        """
        if not self._has_folded:
            *_, warnings = self._fold([])
            _log(warnings)
        self._has_folded = False
        self._log_hits()
        return self._stats.take()

    def _log_hits(self, at_once: bool = False) -> None:
        if line := self._hits.take_line(at_once):
            logger.info("kvferry: %s", line)

    def on_finished(self, request: "Request") -> None:
        """Release everything that a request holds; can be called any number of times."""
        self._failed_loads.forget(request.request_id)
        self._choice.forget(request.request_id)
        self._choice.on_load_ended(request.request_id, succeeded=False)
        self._hits.on_finished(request.request_id)
        self.engine.on_finished(request.request_id, request.num_tokens)
        if self._events is not None:
            self._events.unfollow(request)
        self._stats.hurry()

    def take_events(self) -> list["KVCacheEvent"]:
        """Take the tier's events that the engine should publish."""
        return self._events.take() if self._events is not None else []

    def reset_cache(self) -> None:
        """Forget every block, even while transfers are in flight.

        With `weights_run`, the blocks of a version are found again when vLLM is told that version again.
        """
        if self._versions is None:
            self.engine.reset_cache()
        else:
            self.engine.change_weights(*self._versions.unname())

    def on_weights_version(self, version: str) -> None:
        """From now on find and store only blocks of this version of the weights. vLLM calls this between steps."""
        if self._versions is not None:
            self.engine.change_weights(*self._versions.name(version))

    @property
    def wants_steps(self) -> bool:
        """Whether the engine should step without a request."""
        return self._size.wants_steps

    def close(self) -> None:
        """End; idempotent."""
        self._log_hits(at_once=True)
        if self._events is not None:
            self._events.close()
        self._size.close()
        self.engine.close()
        self._recorder.close()
