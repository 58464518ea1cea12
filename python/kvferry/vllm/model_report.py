# SPDX-License-Identifier: Apache-2.0
"""The answer for a model: whether kvferry refuses it, and how many bytes its blocks take."""

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import vllm
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config

from kvferry import transfer_config
from kvferry.config import KvFerryConfig
from kvferry.errors import ConfigError, ResourceError
from kvferry.settings import known_keys
from kvferry.vllm import block_costs, preflight, shared_tier, tier_plan, versions
from kvferry.vllm.block_costs import BlockCosts
from kvferry.vllm.model_plan import MEMORY_BYTES, kv_caches_of

if TYPE_CHECKING:
    from vllm.config import CacheConfig, VllmConfig

_NO_CACHE = (
    "prefix caching is disabled, and kvferry does nothing without it: set --enable-prefix-caching (for a model with "
    "recurrent state also --mamba-cache-mode align); vLLM for CPUs disables it for latent attention. The figures "
    "assume that it is enabled"
)


@dataclass(frozen=True)
class ModelReport:
    """The report on one model.

    Attributes
    ----------
    model
        The model, as the user named it.
    engine
        vLLM's release and the kind of device. The answer depends on both.
    num_ranks
        Ranks of the engine; `num_local_ranks` of them are on one node.
    num_local_engines
        Engines of data parallelism on one node.
    refusal
        Why the engine would not start with kvferry, in its own words; empty if it would.
    costs
        The costs of its blocks; None if it is refused.
    notes
        Remarks for the user on a model that is accepted.

    """

    model: str
    engine: str
    num_ranks: int
    num_local_ranks: int
    num_local_engines: int
    refusal: str
    costs: BlockCosts | None
    notes: list[str]


def report_on(model: str, options: Sequence[str], transfer: Mapping[str, Any]) -> ModelReport:
    """Examine a model without loading it.

    Parameters
    ----------
    model
        A directory or a name, as ``vllm serve`` takes it.
    options
        Further options of ``vllm serve``.
    transfer
        ``--kv-transfer-config``, or only ``kv_connector_extra_config``.

    Raises
    ------
    ConfigError
        vLLM cannot make an engine with this model here. The message says what was wrong, and what to do.

    """
    with _warnings_kept() as warned:
        report = _report_on(model, options, transfer)
    return replace(report, notes=[*report.notes, *warned])


def _report_on(model: str, options: Sequence[str], transfer: Mapping[str, Any]) -> ModelReport:
    versions.check(vllm.__version__)
    engine = f"vLLM {vllm.__version__} for {current_platform.device_type or 'no device'}"
    arguments = _read_options(["--model", model, *options])
    if arguments.kv_transfer_config is not None:
        raise ConfigError(
            "--kv-transfer-config is given together with --model; leave it out: `kvferry vllm-config` makes it, and "
            "`kvferry doctor` takes it as --config"
        )
    try:
        vllm_config = _engine_config(arguments, transfer)
    except ConfigError as error:
        # vLLM has asked the connector's class (`early_check`).
        num_ranks = arguments.tensor_parallel_size * arguments.pipeline_parallel_size
        return ModelReport(model, engine, num_ranks, num_ranks, 1, str(error), None, [])
    except Exception as error:
        raise ConfigError(
            f"{engine} cannot make an engine with the model {model!r}: {_text(error)}; allowed is what `vllm serve` "
            "would start here: a directory with config.json, or a name that is in Hugging Face's cache or can be "
            "fetched, with options that fit; correct them, or run this on the machine that will serve the model"
        ) from error
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    notes = [] if cache.enable_prefix_caching else [_NO_CACHE]
    cache.enable_prefix_caching = True
    try:
        refusal, costs = "", _costs(vllm_config, engine)
    except _RefusedError as error:
        refusal, costs = str(error), None
    # A node with only an API server has no engine.
    num_engines = max(1, parallel.data_parallel_size_local)
    num_local_ranks = parallel.local_world_size
    return ModelReport(model, engine, parallel.world_size, num_local_ranks, num_engines, refusal, costs, notes)


class _RefusedError(Exception):
    """The engine would refuse to start with this message."""


def _costs(vllm_config: "VllmConfig", engine: str) -> BlockCosts:
    assert vllm_config.kv_transfer_config is not None
    try:
        config = KvFerryConfig.from_extra_config(vllm_config.kv_transfer_config.kv_connector_extra_config)
    except ConfigError as error:
        raise _RefusedError(str(error)) from None
    try:
        of_stages = kv_caches_of(vllm_config)
    except Exception as error:
        raise ConfigError(
            f"{engine} cannot make the layers of the model {vllm_config.model_config.model!r} here: {_text(error)}; "
            "allowed is a model whose layers and attention this build of vLLM has for this machine; run this on a "
            "machine with the engine's device, or choose another --attention-backend, --kv-cache-dtype or "
            "--quantization"
        ) from error
    try:
        preflight.check_engine(vllm_config)
        preflight.check_layout(config.kv_cache_layout, vllm_config)
        shared_tier.check_engine(config, vllm_config)
        kv_cache_config = generate_scheduler_kv_cache_config(of_stages)
        plan = tier_plan.plan_tier(config, vllm_config, kv_cache_config, of_stages[1:])
        tier_plan.warn_of_small_tier(plan.max_slots, plan.block_tokens, vllm_config.model_config.max_model_len)
        costs = block_costs.costs_of(config, vllm_config, kv_cache_config, plan)
    except (ConfigError, ResourceError) as error:
        raise _RefusedError(str(error)) from None
    return replace(costs, engine_tokens=_engine_tokens(costs.engine_tokens, vllm_config.cache_config))


def _engine_tokens(of_plan: int, cache: "CacheConfig") -> int:
    """Return the tokens of the engine's own KV cache, which only its user can say: no device has been measured."""
    if cache.num_gpu_blocks_override:
        return of_plan
    return round(of_plan * (cache.kv_cache_memory_bytes or 0) / MEMORY_BYTES)


class _Parser(FlexibleArgumentParser):
    """vLLM's parser, changed so that an error does not end the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"vLLM {vllm.__version__} does not accept the options after --model: {message}; allowed are options of "
            "`vllm serve` for the engine, such as --tensor-parallel-size 2; leave out options for the server"
        )


def _read_options(options: Sequence[str]) -> argparse.Namespace:
    parser = EngineArgs.add_cli_args(_Parser(add_help=False))
    read: argparse.Namespace = parser.parse_args(list(options))
    return read


def _engine_config(arguments: argparse.Namespace, transfer: Mapping[str, Any]) -> "VllmConfig":
    engine = EngineArgs.from_cli_args(arguments)
    of_kvferry = {
        "kv_connector": transfer_config.CONNECTOR,
        "kv_connector_module_path": transfer_config.MODULE,
        "kv_role": transfer_config.ROLE,
    }
    is_whole = transfer_config.is_whole(transfer, known_keys(KvFerryConfig))
    given = transfer if is_whole else {**of_kvferry, "kv_connector_extra_config": dict(transfer)}
    engine.kv_transfer_config = KVTransferConfig(**given)
    # Nothing is run, so no tokenizer, no compiler and no device for each rank is needed.
    engine.skip_tokenizer_init = engine.enforce_eager = True
    if engine.distributed_executor_backend is None and engine.tensor_parallel_size * engine.pipeline_parallel_size > 1:
        engine.distributed_executor_backend = "mp"
    return engine.create_engine_config()


@contextmanager
def _warnings_kept() -> Iterator[list[str]]:
    """Collect the warnings of kvferry that its engine would log, at any log level of vLLM."""
    kept: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    logger, keeper = logging.getLogger("vllm.kvferry"), Keeper(logging.WARNING)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(keeper)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield kept
    finally:
        logger.propagate = propagate
        logger.setLevel(level)
        logger.removeHandler(keeper)


def _text(error: Exception) -> str:
    """Write an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
