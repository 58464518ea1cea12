# SPDX-License-Identifier: Apache-2.0
"""A connector that stands beside kvferry in vLLM's ``MultiConnector``: it has some prompts, loads them, and may fail.

It loads as vLLM lets connectors load: within the step that computes (synchronously), or while the engine steps on. What
it loads is what the toy model would have computed. What it fails to load it leaves spoilt in the GPU blocks, and says
so: the blocks, where vLLM takes that (one KV cache group), or the request.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toy_model import ToyModel
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

if TYPE_CHECKING:
    from toy_engine import ToyEngine

NAME = "ToySibling"


@dataclass
class Script:
    """What a sibling does; one for both sides of it, found by name.

    Attributes
    ----------
    prompts
        What it has.
    is_async
        Whether its loads take place beside the steps.
    fail_share
        So many of its loads fail, from a block of theirs on, and the first one if it is not 0.
    delay
        Steps that a load beside the steps takes; one that times out takes that long, and then fails.
    rng
        For what fails.
    num_loads, num_failures
        Since the start.

    """

    prompts: list[Sequence[int]] = field(default_factory=list)
    is_async: bool = False
    fail_share: float = 0.0
    delay: int = 2
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    num_loads: int = 0
    num_failures: int = 0

    def num_held(self, tokens: Sequence[int], block_size: int) -> int:
        """Tokens of the longest of its prompts that these begin with, in whole blocks, less the last one."""
        longest = 0
        for prompt in self.prompts:
            same = 0
            for ours, theirs in zip(prompt, tokens, strict=False):
                if ours != theirs:
                    break
                same += 1
            longest = max(longest, same)
        return min(longest, len(tokens) - 1) // block_size * block_size


SCRIPTS: dict[str, Script] = {}


@dataclass
class SiblingLoad:
    """A load: into which blocks of which request, which tokens, and from which token on it fails."""

    request_id: str
    tables: list[list[int]]
    tokens: list[int]
    start: int
    end: int
    fails_from: int | None


@dataclass
class SiblingMetadata(KVConnectorMetadata):
    """The loads that begin in a step."""

    loads: list[SiblingLoad] = field(default_factory=list)


class ToySibling(KVConnectorBase_V1, SupportsHMA):
    """Both sides of it.

    Attributes
    ----------
    model
        Of the rank, on the worker side: what there is to load.

    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.model: ToyModel | None = None
        self._script = SCRIPTS[self._kv_transfer_config.kv_connector_extra_config["script"]]
        self._block_size = int(kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size)
        self._names_blocks = len(kv_cache_config.kv_cache_groups) == 1
        self._begun: list[SiblingLoad] = []
        self._under_way: list[tuple[int, SiblingLoad]] = []
        self._invalid: set[int] = set()
        self._step = 0

    # The scheduler side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        num_tokens = self._script.num_held(request.all_token_ids, self._block_size) - num_computed_tokens
        return (num_tokens, self._script.is_async) if num_tokens > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            return
        script, size = self._script, self._block_size
        # What is loaded synchronously, ends where the step begins.
        end = script.num_held(request.all_token_ids, size)
        start = end - num_external_tokens
        fails_from = None
        # The first one in any case: a life without a failure shows nothing.
        if script.fail_share and (script.num_loads == 0 or script.rng.random() < script.fail_share):
            fails_from = start + size * script.rng.randrange(num_external_tokens // size)
            script.num_failures += 1
        script.num_loads += 1
        tables = [list(group) for group in blocks.get_block_ids()]
        tokens = list(request.all_token_ids)[:end]
        self._begun.append(SiblingLoad(request.request_id, tables, tokens, start, end, fails_from))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        metadata, self._begun = SiblingMetadata(self._begun), []
        return metadata

    # The worker side.

    def register_kv_caches(self, kv_caches: Any) -> None:
        """Do nothing: it writes through the model."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, SiblingMetadata)
        self._step += 1
        for load in metadata.loads:
            if self._script.is_async:
                self._under_way.append((self._step + self._script.delay, load))
            else:
                self._execute(load)

    def _execute(self, load: SiblingLoad) -> None:
        assert self.model is not None
        end = load.end if load.fails_from is None else load.fails_from
        self.model.put(load.tables, load.tokens, load.start, end)
        if load.fails_from is None:
            return
        self.model.put(load.tables, load.tokens, load.fails_from, load.end, is_right=False)
        if self._names_blocks:
            (table,) = load.tables
            self._invalid.update(table[load.fails_from // self._block_size : load.end // self._block_size])

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        due = [load for step, load in self._under_way if step <= self._step]
        self._under_way = [(step, load) for step, load in self._under_way if step > self._step]
        results = KVConnectorTransferResults()
        for load in due:
            self._execute(load)
            results.finished_recving.add(load.request_id)
            if load.fails_from is not None and not self._names_blocks:
                results.failed_recving.add(load.request_id)
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        invalid, self._invalid = self._invalid, set()
        return invalid

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do not wait: its loads are done when they begin."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Store nothing."""

    def wait_for_save(self) -> None:
        """Store nothing."""

    # Both.

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None


KVConnectorFactory.register_connector(NAME, __name__, "ToySibling")


def siblings(script: str, *, is_first: bool = True, **extra: Any) -> dict[str, Any]:
    """``ToySpec`` of an engine with kvferry and a sibling that follows a script; `extra` is kvferry's configuration."""
    kvferry = {
        "kv_connector": "KvFerryConnector",
        "kv_connector_module_path": "kvferry.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": "16MiB", "min_load_tokens": 0, **extra},
    }
    sibling = {
        "kv_connector": NAME,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"script": script},
    }
    children = [sibling, kvferry] if is_first else [kvferry, sibling]
    return {"extra": {"connectors": children}, "connector": "MultiConnector", "connector_module": None}


def lend_models(engine: "ToyEngine") -> None:
    """Give each rank's sibling the model of the rank."""
    for worker in engine.workers:
        for child in worker.connector.sub_connectors:
            if isinstance(child, ToySibling):
                child.model = worker.model
