# SPDX-License-Identifier: Apache-2.0
"""One of two engines that share a small device: ``instance.py SEED FOLDER``; says how its requests ended, as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import elastic  # noqa: E402
from harness import prompt_of  # noqa: E402

NUM_REQUESTS = 24
NUM_TOKENS = 24
TIMEOUT_S = 120.0


def main(seed: int, folder: Path) -> None:
    """Run requests whose prompts come again, so that the tier serves some; the peer has the memory at times."""
    elastic.patch_vllm()
    # Some blocks each, and a page has four: all that run at once take more than the device has.
    prompts = {f"p{i}": prompt_of(100 * seed + i % 8, 100 + 16 * (i % 3)) for i in range(NUM_REQUESTS)}
    expected = elastic.expected_without_kvcached(folder, prompts, NUM_TOKENS)
    extra = {"cpu_bytes_to_use": "16MiB", "min_load_tokens": 0}
    misses = 0
    with elastic.elastic_engine(folder, elastic.elastic_spec(num_blocks=41, extra_config=extra)) as engine:
        manager = engine.scheduler.kv_cache_manager
        allocate_slots = manager.allocate_slots

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal misses
            blocks = allocate_slots(*args, **kwargs)
            misses += blocks is None
            return blocks

        manager.allocate_slots = counted
        for i, (request_id, prompt) in enumerate(prompts.items()):
            engine.add(request_id, prompt, NUM_TOKENS)
            if i % 4 == 3:
                engine.run(TIMEOUT_S)
        engine.settle_stores()
        result = {
            "finished": len(engine.finished),
            "right": sum(engine.finished[r].tokens == expected[r] for r in prompts if r in engine.finished),
            "hits": sum(engine.external_hit_tokens.values()),
            "misses": misses,
            "num_held": engine.num_held_blocks,
        }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
