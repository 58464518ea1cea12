# SPDX-License-Identifier: Apache-2.0
"""What vLLM does with a KV cache that the decode engine reads after its lease (docs/upstream/nixl-expired-lease.md).

It gives wrong tokens, and no error. If a test here fails, vLLM has mended it: then DEPLOYMENT.md has to change.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from e2e.crowds import STAYS, make_long
from e2e.engine_runs import BLOCK_TOKENS, EngineRunner
from e2e.http_clients import Answer, ask
from e2e.parallel_engines import count
from e2e.server_process import Metrics
from e2e.storm_checks import compare_with_alone
from pair import Pair, num_failed_transfers, pair
from processes import from_outside

LONG_BLOCKS = 59
LATE, OTHERS = 0, [1, 2]
# With it the engines meet: vLLM computes a prompt whose first handshake fails, as it can on a busy machine.
GREETING = 3
LEASE_S = 3


@dataclasses.dataclass
class Visit:
    """Answers for the prompt that was read late: at once, from the tier, and computed. What the engines counted."""

    late: Answer
    from_tier: Answer
    computed: Answer
    greeted: Metrics
    prefill: Metrics
    decode: Metrics
    after_tier: Metrics


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    rng = random.Random(53)
    return make_long(rng, 1 + len(OTHERS), LONG_BLOCKS) + make_long(rng, 1, 1)


@pytest.fixture(scope="module")
def visit(requests: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Visit:
    tier = {"cpu_bytes_to_use": "256MiB", "min_load_tokens": 0}
    with pair(tmp_path_factory.mktemp("pair"), tier, lease_s=LEASE_S) as engines:
        return use(engines, requests)


def use(engines: Pair, requests: list[dict[str, Any]]) -> Visit:
    def ask_decode(index: int, **wishes: Any) -> Answer:
        [answer] = ask(engines.decode.url, [{**requests[index], "kv_transfer_params": wishes}], [(0, STAYS)])
        return answer

    ask_decode(GREETING, **engines.prefill_alone(requests[GREETING]))
    greeted = engines.decode.metrics()
    # The prompt may come from the prefill engine's tier; that it loads it is not in question.
    where = engines.prefill_alone(requests[LATE])
    for index in OTHERS:  # each needs blocks of the one before it, and gets them when that one's lease ends
        engines.prefill_alone(requests[index])
    late = ask_decode(LATE, **where)
    prefill, decode = engines.metrics()
    for index in OTHERS:  # push it out of the decode engine's own cache
        ask_decode(index)
    from_tier = ask_decode(LATE)
    after_tier = engines.decode.metrics()
    for index in OTHERS:
        ask_decode(index)
    return Visit(late, from_tier, ask_decode(LATE, max_load_tokens=0), greeted, prefill, decode, after_tier)


def test_vllm_reads_what_has_become_another_prompts_and_says_nothing(visit: Visit) -> None:
    assert visit.prefill["vllm:nixl_num_kv_expired_reqs_total"][""] > 0
    assert from_outside(visit.decode) - from_outside(visit.greeted) == LONG_BLOCKS * BLOCK_TOKENS + 1
    assert count(visit.decode, "hit_tokens") == 0, "it came from the tier, which has no lease"
    assert num_failed_transfers(visit.decode) == num_failed_transfers(visit.greeted)
    assert visit.late.error is None
    assert visit.late.tokens != visit.computed.tokens


def test_the_tier_keeps_what_vllm_read(visit: Visit) -> None:
    assert count(visit.after_tier, "hit_tokens") == LONG_BLOCKS * BLOCK_TOKENS
    assert visit.from_tier.tokens == visit.late.tokens


def test_computed_it_is_right(runner: EngineRunner, visit: Visit, requests: list[dict[str, Any]]) -> None:
    compare_with_alone(runner, [visit.computed], requests[:1])
