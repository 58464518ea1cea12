# SPDX-License-Identifier: Apache-2.0
"""Where the documents' commands run: a folder that looks like the repository, with a node of its own.

The node has an engine that lives, its recording, a tier that nobody uses any more, and an engine that resizes its tier.
``vllm``, ``lmcache`` and ``curl`` only write down how they were called, because a server would not end.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from documents import ROOT, tracked
from harness import ToyEngine, ToySpec, prompt_of
from kvferry import recordings
from kvferry.engines import EngineFile, TierState
from model_configs import LLAMA, write_model
from scenarios import STORE_ALL
from test_tier import Rank

BENCH_PROGRAMS = Path(os.environ.get("KVFERRY_BENCH_PROGRAMS") or ROOT / "build/wheel/bench")
NODE = Path(f"/dev/shm/kvferry-docs-{os.getpid()}")
REQUEST = "cmpl-7f3a"
MIB = 1 << 20
TOY_BLOCK_BYTES = 6144
TINY = "--quick --rounds 1 --warm-up 0"
# What writes down a call instead of a program that would serve, or ask a server.
RECORDER = """#!{python}
import json, os, sys
with open(os.environ["KVFERRY_DOCS_CALLS"], "a") as file:
    print(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]), file=file)
"""
# The program, on a node that has nothing of other tests.
KVFERRY = """#!{python}
from kvferry import engines, recordings, tiers
engines.DIRECTORY = recordings.DIRECTORY = {node!r}
tiers.USUAL_PLACES = ({node!r},)
from kvferry.cli import main
main()
"""
# As Mooncake and Qwen publish them, and a session as WEKA does (tests/unit/bench/lab).
MOONCAKE = "".join(
    json.dumps(
        {"timestamp": 1000 * at, "input_length": 1000, "output_length": 10, "hash_ids": [2 * what, 2 * what + 1]}
    )
    + "\n"
    for at, what in enumerate((1, 2, 1, 1, 3, 2))
)
QWEN = "".join(
    json.dumps(
        {
            "chat_id": at, "parent_chat_id": -1, "timestamp": at, "input_length": 32, "output_length": 4,
            "type": "text", "turn": 1, "hash_ids": [2 * what, 2 * what + 1],
        }
    )
    + "\n"
    for at, what in enumerate((1, 2, 1, 3))
)  # fmt: skip
WEKA = json.dumps(
    {
        "id": "one", "block_size": 64, "hash_id_scope": "local",
        "requests": [{"t": at, "in": 128, "out": 4, "hash_ids": [1, 2]} for at in range(3)],
    }
)  # fmt: skip
FILES = {
    "conversation.jsonl": MOONCAKE, "mooncake_conversation_trace.jsonl": MOONCAKE,
    "qwen_traceA_blksz_16.jsonl": QWEN, "sessions/one.json": WEKA,
}  # fmt: skip

# What stands in the documents for something of the reader's, or would be too large here; each is replaced in turn.
SUBSTITUTIONS: tuple[tuple[str, str], ...] = (
    # What a usage line says in words.
    (r"KEY=VALUE", "eviction=lru"),
    (r"\.\.\. (?=--l2-adapter)", ""),
    (r"^(kvferry doctor .*)\bJSON\b", r"""\1'{"cpu_bytes_to_use": "64GiB"}'"""),
    # Of a usage line: the tier is then told for all ranks of the model.
    (r"--world-size RANKS", "--world-size 1"),
    (r"\bRANKS\b", "2"),
    (r"\bNUMBER\b", str(os.getpid())),
    (r"\bSECONDS\b", "5"),
    # Sizes and lengths of a machine with GPUs.
    (r"\b(\d+)GiB", r"\1MiB"),
    (r"(?<=--nodes )(?:8,64,)?\d+", "4"),
    (r"(?<=--capacity )(?:750,)?3000", "30"),
    (r"--device cuda(?::all)?(?![\w])", "--device cuda_stand_in"),
    # What is somewhere.
    (r"(?<=--model )(?:MODEL|\./Qwen3-8B)|(?<=serve )MODEL", "./model"),
    (r"\bPATH(?=$|\s)", f"{NODE}/tier"),
    (r"(?<=replay )FILE|(?<=--file )F\b", "engine.dump"),
    (r"(?<=why )REQUEST", REQUEST),
    # What a sentence names without its arguments.
    (r"^kvferry why$", f"kvferry why {REQUEST}"),
    (r"^kvferry top$", "kvferry top --once"),
    (r"^kvferry tier$", "kvferry tier --help"),
    (r"^kvferry replay$", "kvferry replay engine.dump"),
    (r"^kvferry tier (inspect|rm)$", rf"kvferry tier \1 {NODE}/tier"),
    (r"^kvferry tier resize$", "kvferry tier resize 48MiB"),
    (r"^kvferry size$", "kvferry size --model ./model --tier 64MiB"),
    (r"^(kvferry doctor --config)$", r"\1 '{}'"),
    (r"^(kvferry doctor --model)$", r"\1 ./model"),
    (r"^kvferry-lab trace$", "kvferry-lab trace conversation.jsonl"),
    # What a measurement makes long.
    (r"^kvferry-lab fleet (?!.*\.jsonl)(.*)", r"kvferry-lab fleet \1 --capacity 30"),
    (r"(?<=--count )512|(?<=--blocks )512", "4"),
    (r"^(kvferry-bench pipeline\b(?!.*--blocks).*)", r"\1 --blocks 4"),
    (r"^(kvferry-(?:bench (?:link|copy|pipeline)|lab)\b(?!.*--model list).*)", rf"\1 {TINY}"),
    (r"^(kvferry-bench (?:link|copy|pipeline)\b(?!.*--model list).*)", r"\1 --link-size 64KiB"),
    # The Python of these tests is that of .venv.
    (r"^\.venv/bin/python ", "python "),
    # A server that is stopped.
    (r"^python3 -m http\.server", "mkdir -p build/site && timeout 1 python3 -m http.server 0"),
    # In a copy, because it writes files.
    (r"^spin ", "cp $OLDPWD/tests/model/protocol/*.pml . && spin "),
)


@dataclass(frozen=True)
class Ended:
    """How a command ended, what it printed, and how it called the programs that only write that down."""

    status: int
    output: str
    calls: tuple[list[str], ...]


def forms_of(text: str) -> list[str]:
    """Return a command without the parts that its usage line has in brackets, and with all of them."""
    if not re.match(r"kvferry [^'\"]*\[", text):
        return [text]
    text = text.replace("[options of vllm serve]", "--block-size 32")
    least = text
    while (shorter := re.sub(r" ?\[[^\[\]]*\](?:\.\.\.)?", "", least)) != least:
        least = shorter
    return [least, re.sub(r"[\[\]]|\.\.\.", "", text)]


def substituted(text: str) -> str:
    """Return a command as it can run here."""
    for pattern, replacement in SUBSTITUTIONS:
        text = re.sub(pattern, replacement, text)
    return text


class Reader:
    """One who types what a document says.

    Parameters
    ----------
    folder
        The folder in which the commands run; an attribute, too.
    dump
        A recording of a dead engine.

    """

    def __init__(self, folder: Path, dump: Path) -> None:
        self.folder, self._dump = folder, dump
        self._programs = folder.with_name("programs")
        self._programs.mkdir(exist_ok=True)
        texts = dict.fromkeys(("vllm", "lmcache", "curl"), RECORDER) | {"kvferry": KVFERRY}
        for name, text in texts.items():
            path = self._programs / name
            path.write_text(text.format(python=sys.executable, node=str(NODE)))
            path.chmod(0o755)
        for name in ("kvferry-bench", "kvferry-lab"):
            if not (self._programs / name).is_symlink():
                (self._programs / name).symlink_to(BENCH_PROGRAMS / name)

    def prepare(self) -> None:
        """Make the folder anew: what the repository has, without `.venv` and `build`, which a command could remove."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for name in {path.split("/")[0] for path in tracked()} - {"Makefile"}:
            (self.folder / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "Makefile", self.folder)
        for name, text in FILES.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)
        shutil.copy(self._dump, self.folder / "engine.dump")
        write_model(self.folder / "model", LLAMA)

    def run(self, text: str, *, in_tree: bool = False) -> Ended:
        """Run one command in bash."""
        calls = self.folder.with_name("calls")
        calls.write_text("")
        variables = {
            "PATH": f"{self._programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "KVFERRY_DOCS_CALLS": str(calls),
            "MODEL_DIR": str(self.folder.with_name("tiny-llama")),
            "OLDPWD": str(ROOT),
            "VLLM": str(self._programs / "vllm"),
        }
        # A reader has the vLLM of .venv, and no wishes of the tests'.
        without = {"COLUMNS", "FIRST", "PYTHONPATH", "TIER", "VLLM_PLUGINS"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text], cwd=ROOT if in_tree else self.folder, timeout=120, check=False,
            env={name: value for name, value in os.environ.items() if name not in without} | variables,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, tuple(map(json.loads, calls.read_text().splitlines())))

    def run_here(
        self, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], main: Callable[[], None]
    ) -> Ended:
        """Run a `kvferry` command that asks vLLM in this process, which has imported vLLM."""
        monkeypatch.chdir(self.folder)
        monkeypatch.setattr(sys, "argv", shlex.split(text))
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        # vLLM's build for CPUs takes it for the size of the engine's own cache.
        monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return Ended(int(ended.value.code or 0), told.out + told.err, ())


@contextmanager
def living_engine(folder: Path) -> Iterator[ToyEngine]:
    """Make an engine that records on the node, whose tier had a part of a request and had evicted the rest."""
    before, recordings.DIRECTORY = recordings.DIRECTORY, str(NODE)
    try:
        config = {**STORE_ALL, "cpu_bytes_to_use": 8 * TOY_BLOCK_BYTES, "min_load_tokens": 0, "recorder_bytes": "1MiB"}
        engine = ToyEngine(folder, ToySpec(extra_config=config))
    finally:
        recordings.DIRECTORY = before
    try:
        prompt = prompt_of(1, 100)
        for name, tokens in (("cmpl-first-0", prompt), ("cmpl-other-0", prompt_of(2, 70))):
            engine.generate({name: tokens})
            engine.settle_stores()
        engine.drop_gpu_cache()
        engine.generate({f"{REQUEST}-0": prompt})
        engine.settle_stores()
        yield engine
    finally:
        engine.close()


@contextmanager
def resizing_engine() -> Iterator[None]:
    """Have an engine on the node that does at once what `kvferry tier resize` asks of it."""
    state = TierState(pid=os.getpid(), model="toy", num_bytes=64 * MIB, target_bytes=64 * MIB, limit_bytes=64 * MIB)
    file = EngineFile(str(NODE))
    file.say(state)
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            asked = file.take_request()
            if asked is not None:
                num_bytes, _ = asked
                file.say(replace(state, request=file.last_request, num_bytes=num_bytes, target_bytes=num_bytes))
            time.sleep(0.01)

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        yield
    finally:
        is_over.set()
        serving.join()
        file.close()


def leave_a_tier() -> None:
    """Leave a tier on the node that its engine kept, unless there is one."""
    if not (NODE / "tier").exists():
        rank = Rank(NODE / "tier", shared_keep=True)
        del rank


def options_of(words: Sequence[str]) -> list[str]:
    """Return the options among the words of a command, without values."""
    return [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]


def missing_words(text: str, words: Iterable[str]) -> list[str]:
    """Return the words that a text does not have as they are, neither longer nor shorter."""
    return [word for word in words if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)]
