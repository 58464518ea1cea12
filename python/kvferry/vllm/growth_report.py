# SPDX-License-Identifier: Apache-2.0
"""Lines in the engine's log while the tier's memory becomes ready. The last one says that it is, and what it holds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

from kvferry import _core
from kvferry.sizes import format_size

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm.kvferry")


def engine_tokens(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> int:
    """Tokens that the engine's own KV cache holds, by vLLM's count for prompts of the maximum length; 0: not known."""
    try:
        return int(get_kv_cache_capacity(vllm_config, kv_cache_config)[0])
    except Exception as error:  # The figure is only for people; the engine does not need it.
        logger.debug("kvferry: vLLM did not count the tokens of its KV cache: %r", error)
        return 0


class GrowthReport:
    """Reports each further tenth of the tier that is ready on every rank.

    Parameters
    ----------
    planned_slots
        Slots that the tier should have.
    planned_bytes
        Host memory that it should have, on all ranks.
    planned_tokens
        Tokens that it holds then, of prompts of the maximum length.
    engine_tokens
        Tokens that the engine's own KV cache holds, of the same prompts; 0: not known.

    """

    def __init__(self, planned_slots: int, planned_bytes: int, planned_tokens: int, engine_tokens: int) -> None:
        self._planned_slots = planned_slots
        self._planned_bytes = planned_bytes
        self._planned_tokens = planned_tokens
        self._engine_tokens = engine_tokens
        self._num_slots = 0

    def lines(self, num_slots: int, max_slots: int) -> Iterator[str]:
        """Yield what is new.

        Parameters
        ----------
        num_slots
            Slots that are ready on every rank.
        max_slots
            Slots that the tier will have.

        """
        before, self._num_slots = self._num_slots, num_slots
        if num_slots == before:
            return
        if before == 0 and max_slots < self._planned_slots:
            yield f"kvferry: the tier will hold {max_slots} blocks: some rank has no memory for more"
        tenths = 10 * num_slots // max_slots
        if tenths <= 10 * before // max_slots:
            return
        yield self._ready() if tenths == 10 else f"kvferry: {10 * tenths} % of the tier is ready, {num_slots} blocks"

    def _ready(self) -> str:
        num_bytes = self._planned_bytes * self._num_slots // self._planned_slots
        num_tokens = self._planned_tokens * self._num_slots // self._planned_slots
        times = f", {num_tokens / self._engine_tokens:.1f} times the GPU's cache" if self._engine_tokens else ""
        return f"kvferry {_core.__version__} ready: {format_size(num_bytes)} = {num_tokens:,} tokens{times}"
