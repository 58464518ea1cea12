# SPDX-License-Identifier: Apache-2.0
"""What vLLM's block hashes hold beside tokens tells blocks apart in the tier too: salt, adapter, multimodal items.

The toy's KV depends on adapter and items: a hit on another one's blocks is wrong KV (`WrongKvError`).
"""

from collections.abc import Mapping
from typing import Any

import pytest
import vllm
from harness import ToyEngine, WrongKvError, prompt_of
from kvferry.vllm import versions
from scenarios import MODELS, Make, assert_at_rest
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

PROMPT = prompt_of(1, 100)
NUM_HIT_TOKENS = 96  # whole blocks of 16
ITEM_START, ITEM_TOKENS = 40, 20


def lora(name: str, path: str) -> dict[str, Any]:
    return {"lora_request": LoRARequest(lora_name=name, lora_int_id=1, lora_path=path)}


def items(*placed: tuple[str, int]) -> dict[str, Any]:
    """Options of a request with images: identifier and start of each."""
    return {
        "mm_features": [
            MultiModalFeatureSpec(
                data=None, modality="image", identifier=name, mm_position=PlaceholderRange(start, ITEM_TOKENS)
            )
            for name, start in placed
        ]
    }


def accept_items(engine: ToyEngine) -> ToyEngine:
    """Give the scheduler the encoder budget that it would have for a model with images."""
    engine.scheduler.max_num_encoder_input_tokens = 1024
    engine.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=1024)
    return engine


def run(engine: ToyEngine, request_id: str, options: Mapping[str, Any]) -> tuple[list[int], int]:
    """Tokens of the prompt with `options`, and how many of it came from the tier."""
    engine.add(request_id, PROMPT, options=options)
    engine.run()
    engine.settle_stores()
    engine.drop_gpu_cache()
    return engine.finished[request_id].tokens, engine.external_hit_tokens[request_id]


# Where vLLM's hashes do not tell it apart, kvferry refuses LoRA (`preflight`).
OTHER_PATH = [(lora("sql", "/adapters/3"), 0)] if versions.hashes_cover_adapter_path(vllm.__version__) else []

# Each with what the prompt up to the first difference gives.
KINDS = {
    "salt": ({"cache_salt": "one"}, [({"cache_salt": "two"}, 0), ({}, 0)]),
    "lora": (
        lora("sql", "/adapters/1"),
        [(lora("chat", "/adapters/2"), 0), *OTHER_PATH, ({}, 0)],
    ),
    "items": (
        items(("cat", ITEM_START)),
        [
            (items(("dog", ITEM_START)), ITEM_START // 16 * 16),
            (items(("cat", ITEM_START + 1)), ITEM_START // 16 * 16),
            # The second item of one request, which has the first in common.
            (items(("cat", ITEM_START), ("dog", 70)), 64),
            ({}, ITEM_START // 16 * 16),
        ],
    ),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_only_a_request_with_the_same_one_gets_the_blocks(
    make: Make, is_async: bool, kind: str, model: dict[str, Any]
) -> None:
    mine, others = KINDS[kind]
    # Two prompts part where no request has ended.
    engine = accept_items(make({"retention": "dense"}, async_scheduling=is_async, **model))
    alone = accept_items(make(num_blocks=512, async_scheduling=is_async, **model))
    first, num_hit = run(engine, "first", mine)
    assert num_hit == 0
    assert run(engine, "same", mine) == (first, NUM_HIT_TOKENS)
    # Each on its own, so that none gets what another one left.
    for i, (options, num_common) in enumerate(others):
        engine.scheduler.reset_connector_cache()
        assert run(engine, f"again {i}", mine) == (first, 0)
        expected, _ = run(alone, f"alone {i}", options)
        assert run(engine, f"other {i}", options) == (expected, num_common)
        # Both lie side by side.
        assert run(engine, f"same {i}", mine) == (first, NUM_HIT_TOKENS)
        assert run(engine, f"other again {i}", options) == (expected, NUM_HIT_TOKENS)
        alone.scheduler.reset_connector_cache()
    assert_at_rest(engine)


def test_wrong_hit_would_be_noticed_by_the_toy(make: Make, folder: Any) -> None:
    # Without the adapter in the hashes: the check of the test above can fail.
    engine = make()
    first, _ = run(engine, "first", lora("sql", "/adapters/1"))
    plain, _ = run(engine, "plain", {})
    assert first != plain
    engine.scheduler.reset_connector_cache()
    run(engine, "first again", lora("sql", "/adapters/1"))
    request = engine.make_request("wrong", PROMPT)
    request.block_hashes[:] = engine.requests["first again"].block_hashes[: len(request.block_hashes)]
    engine.scheduler.add_request(request)
    with pytest.raises(WrongKvError):
        engine.run()
