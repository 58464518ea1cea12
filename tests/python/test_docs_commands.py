# SPDX-License-Identifier: Apache-2.0
"""Every command of the documents is run by a test, or says why not.

A command is a line of a block of code, or code in a sentence that begins with a program and has an argument. Each one
is run here, as command_runs.py substitutes what it cannot have; or another test runs it, which is looked up; or it is
in a short list with one of three reasons (command_table.py). Left out are documents whose commands are records of what
gave a figure: bench/RESULTS.md, CHANGELOG.md, docs/decisions, the reports of GPUs, and FAILURES.md, which has the
commands of others.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_runs import (
    NODE,
    Ended,
    Reader,
    forms_of,
    leave_a_tier,
    living_engine,
    missing_words,
    options_of,
    resizing_engine,
    substituted,
)
from command_table import ELSEWHERE, HERE, NOT_RUN, Elsewhere, Here, NotRun
from document_commands import BEGIN, PROMPT, TEXTS, blocks_of, is_text, pages, parts, texts
from documents import ROOT, text_of, tracked
from kvferry import recordings
from kvferry.cli import main
from kvferry.doctor.verdict import judge
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.utils.argparse_utils import FlexibleArgumentParser

ROWS: tuple[Here | Elsewhere | NotRun, ...] = (*HERE, *ELSEWHERE, *NOT_RUN)
# Where vLLM has the arguments of `vllm serve`: 0.33, and 0.32. The program itself imports more than 0.33's tests have.
SERVE_ARGUMENTS = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args")
MAKE = re.compile(r"(?:\w+=(?:\"[^\"]*\"|\S*) )*make ")
WHAT_TO_ADD = (
    "add a row to tests/python/command_table.py: to HERE if it can run without a GPU in seconds (what it cannot have "
    "is replaced by SUBSTITUTIONS of command_runs.py), to ELSEWHERE if another test runs it, else to NOT_RUN"
)


def rows_of(text: str) -> list[Here | Elsewhere | NotRun]:
    """Return the rows for a command."""
    return [row for row in ROWS if re.fullmatch(row.pattern, text, re.DOTALL)]


def with_row(*kinds: type) -> list[str]:
    """Return the commands that have a row of these kinds."""
    return [text for text in texts() if any(isinstance(row, kinds) for row in rows_of(text))]


def name_of(text: str) -> str:
    """Return a test's name for a command."""
    return f"{texts()[text].place} {' '.join(text.split())[:60]}"


# ---- the list is whole ----


def test_every_part_of_a_block_is_shell_or_known_to_be_none() -> None:
    """A part whose program is unknown would not be found to be a command."""
    unknown = [
        f"{document}:{line}: {lines[0].strip()!r}"
        for document in pages()
        for block in blocks_of(document)
        for line, lines in parts(block)
        if not (is_text(lines) or lines[0].startswith(PROMPT) or BEGIN.match(lines[0]))
    ]
    assert not unknown, "add its program to PROGRAMS, or its beginning to TEXTS, in tests/python/document_commands.py"


def test_every_line_of_shell_begins_with_a_known_program() -> None:
    """A line of shell that begins with something else is a continuation that was not understood."""
    assert [f"{command.place}: {text}" for text, command in texts().items() if not BEGIN.match(text)] == []


def test_every_command_has_exactly_one_row() -> None:
    """The requirement: a command is run here, is run elsewhere, or has a reason."""
    wrong = {
        f"{texts()[text].place}: {text}": [row.pattern for row in rows]
        for text in texts()
        if len(rows := rows_of(text)) != 1
    }
    assert not wrong, WHAT_TO_ADD


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.pattern[:60])
def test_every_row_has_a_command(row: Here | Elsewhere | NotRun) -> None:
    """A row that no document needs any more goes."""
    assert any(re.fullmatch(row.pattern, text, re.DOTALL) for text in texts()), (
        "no document has such a command: remove it"
    )


def test_every_known_text_is_in_a_document() -> None:
    """What is said to be no command is still there."""
    begins = {lines[0].lstrip() for document in pages() for block in blocks_of(document) for _, lines in parts(block)}
    assert [text for text in TEXTS if not any(begin.startswith(text) for begin in begins)] == []


# ---- run here ----


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One who types the commands, on a node on which an engine lives."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.rmtree(NODE, ignore_errors=True)
    NODE.mkdir(mode=0o700)
    try:
        with living_engine(folder / "toy"), resizing_engine():
            [found] = recordings.find(str(NODE))
            yield Reader(folder / "repository", recordings.dump(found.path, folder / "dump"))
    finally:
        shutil.rmtree(NODE)


@pytest.mark.xdist_group("docs-commands")
@pytest.mark.parametrize("text", with_row(Here), ids=name_of)
def test_command_runs(
    text: str, reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends as the document implies, and says what a reader looks for."""
    [row] = rows_of(text)
    assert isinstance(row, Here)
    for form in forms_of(text):
        reader.prepare()
        leave_a_tier()
        command = substituted(form)
        if command.startswith("kvferry plot"):
            reader.run(substituted("kvferry-bench link --json results.json"))
        if re.match("kvferry plot|kvferry .* --model ", command):
            ended = reader.run_here(command, monkeypatch, capsys, main)
        else:
            ended = reader.run(command, in_tree=row.in_tree)
        assert ended.status == row.status, f"{command}\n{ended.output}"
        assert re.search(row.says, ended.output), f"{command}\n{ended.output}"
        assert shapes_of(texts()[text].output) <= shapes_of(ended.output), f"{command}\n{ended.output}"
        # A model's directory is one of the reader's.
        monkeypatch.chdir(reader.folder)
        check_calls(ended)


def shapes_of(output: str) -> set[str]:
    """Return what a program prints without its figures; a line that a document breaks is indented as the next one."""
    lines = re.sub(r",\n +", ", ", output).splitlines()
    return {re.sub(r"\d[\d:.,]*( [µm]?s)?", "#", line.strip()) for line in lines}


def check_calls(ended: Ended) -> None:
    """Hold what servers were told against what these servers take."""
    for program, *words in ended.calls:
        {"vllm": check_vllm, "lmcache": check_lmcache, "curl": check_curl}[program](words)


def check_vllm(words: list[str]) -> None:
    """The program's own parser takes the arguments, and makes an engine's configuration; the doctor accepts it here."""
    assert words[0] == "serve"
    [module] = filter(find_spec, SERVE_ARGUMENTS)
    serve = import_module(module)
    parser = serve.make_arg_parser(FlexibleArgumentParser())
    parsed = parser.parse_args(words[1:])
    assert set(options_of(words)) <= parser._option_string_actions.keys(), "an option is abbreviated"
    parsed.model = parsed.model_tag
    serve.validate_parsed_serve_args(parsed)
    engine = EngineArgs.from_cli_args(parsed)
    # No engine runs, so no tokenizer is needed.
    engine.skip_tokenizer_init = True
    transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
    if transfer["kv_connector"] == "LMCacheMPConnector":
        # vLLM imports LMCache for it, which is not installed beside these tests.
        engine.kv_transfer_config = None
        assert all(
            f'"{key}"' in text_of("tests/fleet/lmcache_node.py") for key in transfer["kv_connector_extra_config"]
        )
    assert engine.create_engine_config().model_config
    check_transfer(transfer)


def check_transfer(transfer: dict[str, Any]) -> None:
    """Hold a connector's configuration, or each of several, against the doctor."""
    extra = transfer.get("kv_connector_extra_config", {})
    if transfer["kv_connector"] == "MultiConnector":
        assert sum(each["kv_connector"] == "KvFerryConnector" for each in extra["connectors"]) == 1
        for each in extra["connectors"]:
            check_transfer(each)
    elif transfer["kv_connector"] == "KvFerryConnector":
        assert judge(json.dumps(transfer), 1).refusal == ""


def check_lmcache(words: list[str]) -> None:
    """Every option is one with which the tests start LMCache's server, and the doctor accepts the parameters."""
    assert words[0] == "server"
    told = text_of("examples/lmcache_server.sh")
    assert missing_words(told, options_of(words)) == []
    adapters = [json.loads(words[at + 1]) for at, word in enumerate(words) if word == "--l2-adapter"]
    [ours] = [adapter for adapter in adapters if adapter["type"] == "native_plugin"]
    assert (ours["module_path"], ours["class_name"]) == ("kvferry.lmcache", "KvFerryClient")
    assert judge(json.dumps(ours["adapter_params"]), 1).refusal == ""


def check_curl(words: list[str]) -> None:
    """vLLM's own model of a request takes the body, and its URL is one of vLLM's."""
    [url] = [word for word in words if word.startswith("http://")]
    assert url.endswith("/v1/completions")
    assert words[words.index("-H") + 1] == "Content-Type: application/json"
    request = CompletionRequest.model_validate_json(words[words.index("-d") + 1])
    assert request.kv_transfer_params


JSON_PARTS = {
    f"{document}:{line}": "".join(lines)
    for document in pages()
    for block in blocks_of(document)
    for line, lines in parts(block)
    if lines[0].startswith('"')
}


@pytest.mark.parametrize("place", JSON_PARTS)
def test_part_of_a_configuration_is_json_that_the_doctor_accepts(place: str) -> None:
    """A block that shows a part of `--kv-transfer-config` or of a request is no command, but a reader copies it."""
    told = json.loads(f"{{{substituted(JSON_PARTS[place])}}}")
    whole = {"kv_connector": "KvFerryConnector", "kv_role": "kv_both", **told}
    if told.keys() != {"kv_transfer_params"}:
        assert judge(json.dumps(whole), 1).refusal == ""


# ---- run elsewhere, or not ----


def printed_by(command: str) -> str:
    """Run a command in the repository, which has to succeed and only reads; returns what it prints."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def recipe_of(text: str) -> str:
    """Return what make would run: every line of its recipe."""
    return printed_by(text.replace("make ", "make --dry-run ", 1))


def scripts_in(text: str) -> list[str]:
    """Return the files of the repository that a command names."""
    return [word for word in re.findall(r"[\w./-]+\.(?:py|sh)\b", text) if word in tracked()]


@pytest.mark.parametrize("text", with_row(Elsewhere), ids=name_of)
def test_command_is_run_by_the_test_that_is_named(text: str) -> None:
    """The files that run it have its scripts and options, or what is written in their place."""
    [row] = rows_of(text)
    assert isinstance(row, Elsewhere)
    assert set(row.by) <= set(tracked())
    there = "".join(map(text_of, row.by))
    if row.has:
        assert [piece for piece in row.has if piece not in there] == []
        return
    if MAKE.match(text):
        needed = [Path(script).name for script in scripts_in(recipe_of(text))]
    else:
        words = shlex.split(text)
        needed = [*options_of(words), *scripts_in(text)] or [word for word in words if not word.startswith("-")]
    assert needed
    assert missing_words(there, needed) == []


@pytest.mark.parametrize("text", with_row(Elsewhere, NotRun), ids=name_of)
def test_script_that_is_not_run_here_knows_its_arguments(text: str) -> None:
    """A Python script of the repository refuses an option, or a choice, that it does not have."""
    for line in recipe_of(text).splitlines() if MAKE.match(text) else [text]:
        found = re.search(r"([\w/]+\.py)\b(.*)$", re.sub(r"\[(--[^\]]+)\]|\.\.\.", r"\1", line))
        if found is None or "pytest" in line or found[1] == "tools/build_docs.py":  # that has an environment of its own
            continue
        [script] = [path for path in tracked() if path == found[1] or path.endswith(f"/{found[1]}")]
        if "argparse" not in text_of(script):
            assert found[2] == ""
            continue
        words = found[2].replace("$OUT", "out")
        # argparse takes an abbreviation, too.
        assert missing_words(text_of(script), options_of(words.split())) == []
        printed_by(f"{sys.executable} {script} {words} --help")


def test_presets_and_variables_of_cmake_are_there() -> None:
    """CMake configures, builds and tests with a preset that it has, and takes any variable in silence."""
    presets = json.loads(text_of("CMakePresets.json"))
    named = {
        kind: {preset["name"] for preset in presets[f"{kind}Presets"] if not preset.get("hidden")}
        for kind in ("configure", "build", "test")
    }
    found = 0
    for command in (each for text in texts() if re.match("cmake|ctest", text) for each in text.split(" && ")):
        words = shlex.split(command)
        kind = {"cmake": "build" if "--build" in words else "configure", "ctest": "test"}.get(words[0])
        if kind and "--preset" in words:
            found += 1
            assert words[words.index("--preset") + 1] in named[kind], command
        variables = re.findall(r" -D(KVFERRY_\w+)=", command)
        assert missing_words(text_of("CMakeLists.txt"), variables) == [], command
    assert found > 3


def test_stages_that_a_command_names_are_stages() -> None:
    """`make test STAGES=` names what test_stages.py has."""
    # `documents` has put the tools on the path.
    from test_stages import TESTS

    named = [shlex.split(text)[-1].removeprefix("STAGES=").split() for text in texts() if " STAGES=" in text]
    assert len(named) > 2
    assert {name for names in named for name in names} <= {stage.name for stage in TESTS}


@pytest.mark.parametrize("text", filter(MAKE.match, texts()), ids=name_of)
def test_command_of_make_has_a_target_and_scripts(text: str) -> None:
    """Make knows the target, and all scripts of its recipe are there."""
    recipe = recipe_of(text.replace("<PyTorch's whl/cpu index>", "INDEX"))
    named = set(re.findall(r"(?<![\w/$\"])(?:tools|examples|bench|tests)/[\w./-]+\.(?:py|sh)\b", recipe))
    assert named <= set(tracked())
    assert named or text in ("make help", "make clean")
