# SPDX-License-Identifier: Apache-2.0
"""A prompt that the tier holds to its last token: the engine loads it whole and computes that token for its logits."""

from pathlib import Path
from typing import Any

import pytest
from harness import expected_tokens, prompt_of
from scenarios import CHUNKED, HYBRID, LATENT, RECURRENT, STORE_ALL, Make, assert_at_rest, leave_to_the_tier

NUM_TOKENS = 96
PROMPT = prompt_of(5, NUM_TOKENS)
DENSE: dict[str, Any] = {"retention_interval": None}
# With the tokens that are loaded of a prompt that ends with a block.
MODELS = [
    pytest.param({}, NUM_TOKENS, id="plain"),
    pytest.param({**HYBRID, **DENSE}, NUM_TOKENS, id="hybrid"),
    pytest.param({**LATENT, **DENSE}, NUM_TOKENS, id="latent"),
    # The last token sees the first one of a block that the next token does not see any more.
    pytest.param({**HYBRID, **DENSE, "sliding_window": 33}, NUM_TOKENS - 16, id="window-of-blocks"),
    # The last token sees a chunk that ends with it.
    pytest.param({**CHUNKED, **DENSE}, NUM_TOKENS - 16, id="chunked"),
    pytest.param({**RECURRENT, **DENSE, "max_num_batched_tokens": 80}, NUM_TOKENS - 16, id="recurrent"),
]


@pytest.mark.parametrize(("model", "num_loaded"), MODELS)
def test_a_prompt_that_ends_with_a_block(
    make: Make, folder: Path, is_async: bool, model: dict[str, Any], num_loaded: int
) -> None:
    expected = expected_tokens(folder, {"first": PROMPT}, max_tokens=40, **model)["first"]
    engine = make({**STORE_ALL, "retention": "dense"}, async_scheduling=is_async, **model)
    assert engine.generate({"first": PROMPT}) == {"first": expected[:4]}
    leave_to_the_tier(engine)
    assert engine.generate({"second": PROMPT}, max_tokens=40) == {"second": expected}
    assert engine.external_hit_tokens["second"] == num_loaded
    leave_to_the_tier(engine)
    # What the second one computed after its load is in the tier, too.
    text = PROMPT + expected[:33]
    assert engine.generate({"third": text})["third"] == expected[33:37]
    assert engine.external_hit_tokens["third"] == 128
    assert_at_rest(engine)


def test_the_last_block_is_local(make: Make) -> None:
    engine = make(STORE_ALL)
    engine.generate({"first": PROMPT})
    engine.settle_stores()
    # The engine's own cache ends before the last token's block.
    engine.generate({"second": PROMPT})
    assert engine.external_hit_tokens["second"] == 16
    assert_at_rest(engine)
