# SPDX-License-Identifier: Apache-2.0
"""Clients of a server that come at once and share prefixes, some of whom go away at random moments."""

from __future__ import annotations

import random
from typing import Any

from .engine_runs import BLOCK_TOKENS
from .http_clients import Patience

STAYS = Patience()


def make_crowd(
    rng: random.Random, num_clients: int, *, num_families: int, prefix_blocks: int, max_tokens: int = 32
) -> list[dict[str, Any]]:
    """A request of each client; those of a family share so many blocks."""
    prefixes = [_tokens(rng, prefix_blocks * BLOCK_TOKENS) for _ in range(num_families)]
    return [
        {
            "prompt": prefixes[index % num_families] + _tokens(rng, rng.choice([1, 40, 90, 150])),
            "max_tokens": max_tokens,
        }
        for index in range(num_clients)
    ]


def make_long(rng: random.Random, count: int, num_blocks: int, max_tokens: int = 4) -> list[dict[str, Any]]:
    """Requests that share nothing, each of so many whole blocks and one token more."""
    return [{"prompt": _tokens(rng, num_blocks * BLOCK_TOKENS + 1), "max_tokens": max_tokens} for _ in range(count)]


def make_round(rng: random.Random, num_clients: int) -> list[tuple[int, Patience]]:
    """All clients in any order; a third goes away, half of it by the clock and half in the middle of the answer."""
    order = rng.sample(range(num_clients), num_clients)
    impatient = [Patience(seconds=rng.uniform(0, 1.5)) for _ in range(num_clients // 6)]
    impatient += [Patience(num_tokens=rng.randint(1, 16)) for _ in range(num_clients // 6)]
    return list(zip(order, impatient + [STAYS] * (num_clients - len(impatient)), strict=True))


def _tokens(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randrange(256) for _ in range(num_tokens)]
