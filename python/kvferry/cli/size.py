# SPDX-License-Identifier: Apache-2.0
"""``kvferry size``: how many tokens of a model fit into a tier, and how long the tier takes to be ready."""

import dataclasses
import json
import mmap
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from kvferry.cli.doctor import REFUSED, examine_model
from kvferry.errors import ConfigError
from kvferry.sizes import ALLOWED, format_size, parse_size

if TYPE_CHECKING:
    from kvferry.vllm.model_report import ModelReport

# Enough that the time is not that of the first call, and little enough for any machine.
_PROBE_BYTES = 256 << 20
# Linux 5.14, asm-generic/mman-common.h.
_MADV_POPULATE_WRITE = 23


@dataclasses.dataclass(frozen=True)
class Sizing:
    """What a tier holds of a model.

    Attributes
    ----------
    tier_bytes
        Host memory of the tier on one node.
    num_tokens
        Tokens of prompts of the maximum length that fit into it, if the prompts have nothing in common.
    bytes_per_token
        Bytes of host memory for each of these, on all ranks together.
    gpu_tokens
        Tokens that the GPU's own cache holds; None: not known.
    populate_bytes_per_second
        Bytes of host memory that one thread made ready in a second on this machine, just now.
    seconds_until_ready
        Seconds until the tier is ready at that rate, without what a GPU's driver takes.

    """

    tier_bytes: int
    num_tokens: int
    bytes_per_token: float
    gpu_tokens: int | None
    populate_bytes_per_second: float
    seconds_until_ready: float


def size(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A model as for `vllm serve`, or a model's configuration file (JSON).")],
    tier: Annotated[str, typer.Option(help="Host memory of the tier on one node, such as 64GiB.")],
    tp: Annotated[int | None, typer.Option("--tp", min=1, help="Tensor-parallel ranks. Default: 1.")] = None,
    gpu_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of the GPU's own cache: `GPU KV cache size` in vLLM's log."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how many tokens of a model fit into a tier: bytes of each KV cache group, tokens, seconds until it is ready.

    Options of `vllm serve` may follow; with --kv-cache-memory-bytes the GPU's own cache is known too. Needs vLLM; loads
    no weights and uses no GPU. Exits with 1 if an engine would refuse the model.
    """
    tier_bytes = parse_size(tier)
    if not tier_bytes:
        raise ConfigError(f"--tier is {tier!r}; allowed is {ALLOWED}, more than zero; write for example 64GiB")
    if find_spec("vllm") is None:
        raise ConfigError(
            "kvferry size asks vLLM for the KV cache of the model, and vLLM is not installed for this Python; install "
            "it, or run this where it is installed"
        )
    options = context.args if tp is None else ["--tensor-parallel-size", str(tp), *context.args]
    report = examine_model(model, options, json.dumps({"cpu_bytes_to_use": tier_bytes}))
    assert report is not None
    if report.costs is None:
        print(f"REFUSED {report.refusal}")
        raise typer.Exit(REFUSED)
    sizing = sizing_of(report, tier_bytes, gpu_tokens, populate_rate())
    if as_json:
        print(json.dumps({**dataclasses.asdict(sizing), "report": dataclasses.asdict(report)}, indent=2))
    else:
        print("\n".join(lines_of(report, sizing)))


def sizing_of(report: "ModelReport", tier_bytes: int, gpu_tokens: int | None, rate: float) -> Sizing:
    """Compute what a tier of `tier_bytes` holds of an accepted model, which `report` describes with such a tier."""
    assert report.costs is not None
    num_tokens = report.costs.tokens_in_tier
    return Sizing(
        tier_bytes=tier_bytes,
        num_tokens=num_tokens,
        bytes_per_token=tier_bytes / num_tokens if num_tokens else 0.0,
        gpu_tokens=gpu_tokens or report.costs.engine_tokens or None,
        populate_bytes_per_second=rate,
        seconds_until_ready=tier_bytes / rate,
    )


def lines_of(report: "ModelReport", sizing: Sizing) -> Iterator[str]:
    """Yield the lines for people."""
    from kvferry.vllm import block_costs
    from kvferry.vllm.growth_report import times_of

    assert report.costs is not None
    ranks = "1 rank" if report.num_ranks == 1 else f"{report.num_ranks} ranks"
    yield f"{report.model}, {ranks} of {report.engine}, tier {format_size(sizing.tier_bytes)}"
    yield (
        f"tokens: {sizing.num_tokens:,} of prompts of the maximum length, {sizing.bytes_per_token:,.0f} B a token on "
        "all ranks"
    )
    if sizing.gpu_tokens is None:
        yield (
            "GPU's cache: not known; add --gpu-tokens with the `GPU KV cache size` of vLLM's log, or vLLM's own "
            "--kv-cache-memory-bytes"
        )
    else:
        times = times_of(sizing.num_tokens, sizing.gpu_tokens)
        yield f"GPU's cache: {sizing.gpu_tokens:,} tokens; the tier has {times}"
    rate = format_size(int(sizing.populate_bytes_per_second))
    yield (
        f"ready after about {sizing.seconds_until_ready:,.1f} s, at {rate} a second: measured on this machine, with "
        f"{format_size(_PROBE_BYTES)} and one thread. An engine uses up to 16 threads, but takes up to four times as "
        "long while it serves; and a GPU's driver has to register the memory too (`kvferry-lab pin` measures that)"
    )
    yield from block_costs.lines_of(report.costs)
    yield from (f"note: {note}" for note in report.notes)


def populate_rate(num_bytes: int = _PROBE_BYTES) -> float:
    """Measure how many bytes of new host memory one thread makes ready in a second."""
    with mmap.mmap(-1, num_bytes) as memory:
        began = time.perf_counter()
        try:
            memory.madvise(_MADV_POPULATE_WRITE)
        except OSError:  # An older kernel.
            for page in range(0, num_bytes, mmap.PAGESIZE):
                memory[page] = 1
        return num_bytes / (time.perf_counter() - began)
