# SPDX-License-Identifier: Apache-2.0
"""Lives of long requests of model families, whose KV caches have several groups."""

from collections.abc import Sequence
from dataclasses import replace

from lives import Lives, Progress
from model_families import light
from rigs import KINDS, LONG_TOKENS, MAX_BATCHED_TOKENS, Rig
from vllm.v1.kv_cache_interface import KVCacheSpec

FAMILY_NAMES = ("gemma3_27b", "deepseek_v4_flash")
OURS, *STOCK = KINDS
DENSE = replace(OURS, name="kvferry, dense", extra={**OURS.extra, "retention": "dense"})


class FamilyLives(Lives):
    """Runs the lives with one family. The blocks of its layers have few bytes, and as many tokens as in the model.

    Parameters
    ----------
    name
        Name of the family.

    Attributes
    ----------
    refused
        For each stock connector that refuses the family, the reason.

    """

    def __init__(self, name: str, num_rounds: int, num_residents: int, progress: Progress) -> None:
        super().__init__(num_rounds, num_residents, lambda message: progress(f"{name}: {message}"))
        self.refused: dict[str, str] = {}
        self._family = light(name)
        layers = self._family.layers.values()
        # The engine caches the windows at the end of a prompt, and a prompt that continues ends elsewhere.
        self._most_missed = max(layer.block_size for layer in layers)
        self._num_blocks = 2 + sum(-(-_kept_tokens(layer) // layer.block_size) for layer in layers)
        # The resident requests, the warm-up and one miss for each round, with every block of every layer.
        num_requests = num_residents + 1 + num_rounds
        self._num_slots = num_requests * sum(LONG_TOKENS // layer.block_size + 1 for layer in layers)

    def _start(self, rigs: list[Rig]) -> None:
        for kind in (OURS, DENSE, *STOCK):
            try:
                rigs.append(Rig(kind, self._num_blocks, self._num_slots, self._family.engine_spec()))
            except Exception as error:
                if kind not in STOCK:
                    raise
                self.refused[kind.name] = f"{type(error).__name__}: {error}".splitlines()[0]

    def _measure(self, rigs: Sequence[Rig]) -> None:
        self._lives(rigs)


def _kept_tokens(layer: KVCacheSpec) -> int:
    """Return the tokens of one request whose blocks a layer has in the pool, with some room."""
    window = getattr(layer, "sliding_window", None)
    return LONG_TOKENS + MAX_BATCHED_TOKENS if window is None else window + 2 * MAX_BATCHED_TOKENS
