# SPDX-License-Identifier: Apache-2.0
"""Count the tokens that a tier holds, by model family, compared with OffloadingConnector: ``make bench-capacity``."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

FAMILIES = Path(__file__).resolve().parents[3] / "shared/tools/model_specs/families.py"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FAMILY", help="only these (default: all)")
    parser.add_argument("--tokens", type=int, default=131_072, help="of each prompt (default: 131072)")
    parser.add_argument("--tier", default="64GiB", help="host memory of one rank (default: 64GiB)")
    parser.add_argument("--families", type=Path, default=FAMILIES, help="file that plans the KV caches of the families")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    options = parser.parse_args()
    if not options.families.is_file():
        parser.error(f"--families is {options.families}, and there is no such file; name the families.py to use")
    return options


def plan(families: Any, name: str, num_tokens: int) -> tuple[Any, bool]:
    """Plan a family's KV cache with blocks for one prompt. Also return whether groups of several kinds are separate."""
    _, small, _ = families.plan(name)
    num_blocks = sum(-(-num_tokens // group.kv_cache_spec.block_size) + 8 for group in small.kv_cache_groups)
    _, scheduler, _ = families.plan(name, num_blocks=num_blocks)
    config = families.FAMILIES[name]()[0]
    return scheduler, not config.scheduler_config.disable_hybrid_kv_cache_manager


def main() -> int:
    options = parse_arguments()
    from kvferry.sizes import parse_size

    tier_bytes = parse_size(options.tier)
    if not tier_bytes:
        print(f"--tier is {options.tier!r}; allowed is a size such as 64GiB", file=sys.stderr)
        return 2
    from capacity_run import measure
    from model_families import load

    families = load(options.families)
    unknown = [name for name in options.names if name not in families.FAMILIES]
    if unknown:
        print(f"{unknown[0]!r} is no family; they are {', '.join(families.FAMILIES)}", file=sys.stderr)
        return 2
    found = {}
    print("| Family | kvferry, `dense` | kvferry, `engine` | OffloadingConnector | it, dense | `engine` / it |")
    print("|---|---|---|---|---|---|")
    for name in options.names or families.FAMILIES:
        try:
            kv_cache_config, is_hybrid = plan(families, name, options.tokens)
            one = measure(kv_cache_config, is_hybrid=is_hybrid, num_tokens=options.tokens, tier_bytes=tier_bytes)
        except (ImportError, AttributeError) as error:
            print(f"| {name} | this vLLM does not know it: {error} |", flush=True)
            continue
        found[name] = dataclasses.asdict(one)
        dense, engine = (one.costs[retention].tokens_in_tier for retention in ("dense", "engine"))
        figures = [f"{figure:,}" for figure in (dense, engine, one.stock_tokens, one.stock_dense_tokens)]
        print(f"| {name} | {' | '.join(figures)} | {engine / one.stock_tokens:.2f} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
