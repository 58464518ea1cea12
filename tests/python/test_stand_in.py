# SPDX-License-Identifier: Apache-2.0
"""The cuda back end under the real scheduler, on the stand-in driver: every copy path, every end of a process."""

import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import expected_tokens
from kvferry.config import COPY_PATHS
from random_lives import NUM_TOKENS, live, random_prompts
from scenarios import MODELS, PROMPTS, Make, again, assert_at_rest, store_all
from stand_in import StandIn


@pytest.fixture(autouse=True)
def on_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn().install(monkeypatch.setattr)


@pytest.mark.parametrize("copy_path", COPY_PATHS)
@pytest.mark.parametrize("model", MODELS)
def test_blocks_come_back_on_every_copy_path(
    make: Make, folder: Path, log_lines: list[str], copy_path: str, model: dict[str, Any]
) -> None:
    expected = expected_tokens(folder, PROMPTS, **model)
    engine = make({"copy_path": copy_path}, **model)
    store_all(engine)
    tokens = engine.generate(again("2"))
    assert tokens == {f"{request_id}2": expected[request_id] for request_id in PROMPTS}
    assert all(engine.external_hit_tokens[request_id] > 0 for request_id in tokens)
    assert_at_rest(engine)
    text = "\n".join(log_lines)
    assert "stand-in for an H100" in text
    assert "copy paths of cuda" in text if copy_path == "auto" else copy_path in text


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_random_lives_get_their_tokens(
    make: Make, folder: Path, is_async: bool, seed: int, model: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    expected = expected_tokens(folder, prompts, max_tokens=NUM_TOKENS, **model)
    extra = {
        "cpu_bytes_to_use": 2 * 30 * 6144,
        "staging_bytes": 8 * 6144,
        "load_staging_bytes": rng.choice([0, 2 * 6144, 20 * 6144]),
        "store_bandwidth_limit": rng.choice([10**7, 10**12]),
    }
    engine = make(extra, num_blocks=36, async_scheduling=is_async, world_size=rng.choice([1, 2]), **model)
    live(engine, rng, prompts, expected, str(extra))
    assert_at_rest(engine)


ENDS = {
    "falls off its end": "",
    "exits": "sys.exit(0)",
    "exits from an atexit handler": "import atexit; atexit.register(lambda: engine.step())",
    "exits without a word": "os._exit(0)",
    "keeps the engine in a cycle": "engine.workers.append(engine); del engine",
    "lets the engine go": "del engine; import gc; gc.collect()",
    "closes twice": "engine.close(); engine.close()",
}
# One process imports vLLM, which takes most of the time, and a child of it ends in each way.
SCRIPT = """
import json, os, pathlib, sys
sys.path[:0] = {paths!r}
from harness import ToyEngine, ToySpec
from scenarios import PROMPTS
from stand_in import StandIn
folder = pathlib.Path({folder!r})
codes = []
for number, end in enumerate({ends!r}):
    child = os.fork()
    if child == 0:
        break
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    (folder / "codes").write_text(json.dumps(codes))
    os._exit(0)
for descriptor, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(folder / f"{{number}}.{{name}}", os.O_CREAT | os.O_WRONLY), descriptor)
StandIn().install(setattr)
extra = {{"cpu_bytes_to_use": "16MiB", "store_bandwidth_limit": 50_000}}
engine = ToyEngine(folder / f"model{{number}}", ToySpec(extra_config=extra))
engine.generate(PROMPTS)
stats = engine.workers[0].copy_stats()
assert stats["queued_bytes"] + stats["in_flight_bytes"] > 0, stats
print("under way", flush=True)
exec(end)
"""


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    here, folder = Path(__file__).resolve().parent, tmp_path_factory.mktemp("ends")
    paths = [str(here), str(here.parent / "fakes")]
    script = SCRIPT.format(paths=paths, folder=str(folder), ends=list(ENDS.values()))
    # Less than the transfer time-out, and than what the stores would take.
    subprocess.run([sys.executable, "-c", script], timeout=200, check=True)
    codes = json.loads((folder / "codes").read_text())
    said = [[(folder / f"{number}.{name}").read_text() for name in ("out", "err")] for number in range(len(ENDS))]
    return {name: Ended(code, *texts) for name, code, texts in zip(ENDS, codes, said, strict=True)}


@pytest.mark.xdist_group("ended")
@pytest.mark.parametrize("end", ENDS)
def test_process_ends_at_once_and_in_peace_with_stores_under_way(ended: dict[str, Ended], end: str) -> None:
    one = ended[end]
    assert one.out.endswith("under way\n"), one.err
    assert one.code == 0, one.err
    for word in ("Traceback", "Error", "terminate", "core dumped"):
        assert word not in one.err, one.err
