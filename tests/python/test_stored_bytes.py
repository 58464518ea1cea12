# SPDX-License-Identifier: Apache-2.0
"""How many bytes the tier takes for a long prompt of each model family: those that vLLM's own cache retains."""

from typing import Any

import pytest
from event_mirror import CachedHashes, EventMirror
from harness import prompt_of
from kvferry.vllm import preflight, topology
from model_families import NEEDS_FAMILIES, family_names, plan, scaled
from scenarios import STORE_ALL, Make

pytestmark = NEEDS_FAMILIES


@pytest.fixture(autouse=True)
def whole_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events name blocks by what the pool finds them by."""
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")


@pytest.mark.parametrize("name", family_names())
def test_what_is_stored_is_what_vllm_retains(make: Make, name: str) -> None:
    # How many bytes a block has is the family's own; how many tokens is that of its small copy.
    _, scheduler = plan(name)
    family = scaled(name)
    extra: dict[str, Any] = {"cpu_bytes_to_use": "256MiB", "staging_bytes": "64MiB", **STORE_ALL}
    num_tokens = 512 + 4 * family.longest_window
    engine = make(
        extra, **family.engine_spec(), num_blocks=4000, max_model_len=num_tokens + 64, max_num_batched_tokens=1024,
        kv_events=True,
    )  # fmt: skip
    mirror, cached = EventMirror(engine), CachedHashes(engine)
    engine.generate({"a": prompt_of(1, num_tokens)}, max_tokens=2)
    engine.settle_stores()
    cached.look(engine)
    kept = [number for number, group in enumerate(scheduler.kv_cache_groups) if preflight.is_kept(group)]
    sizes = dict(zip(kept, topology.group_bytes(preflight.kept_part(scheduler)), strict=True))
    stored = sum(len(mirror.held.get(number, ())) * size for number, size in sizes.items())
    retained = sum(len(cached.by_group.get(number, ())) * size for number, size in sizes.items())
    assert 0.98 * retained <= stored <= 1.05 * retained, f"{stored / num_tokens} B for a token"
