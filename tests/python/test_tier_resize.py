# SPDX-License-Identifier: Apache-2.0
"""``kvferry tier resize`` and the file through which it reaches an engine."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvferry import engines
from kvferry.engines import EngineFile, TierState
from kvferry.errors import ConfigError, ResourceError

GIB = 1 << 30


def state(**changes: object) -> TierState:
    usual = TierState(pid=os.getpid(), model="m", num_bytes=4 * GIB, target_bytes=4 * GIB, limit_bytes=8 * GIB)
    return dataclasses.replace(usual, **changes)


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kvferry.cli import main; main()", "tier", *arguments]
    variables = os.environ | {"COLUMNS": "500"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[EngineFile]:
    made = EngineFile(str(tmp_path))
    yield made
    made.close()


def test_an_engine_is_found_when_it_has_said_how_its_tier_stands(tmp_path: Path, file: EngineFile) -> None:
    assert engines.living(str(tmp_path)) == []
    file.say(state())
    (engine,) = engines.living(str(tmp_path))
    assert engine.state == state()
    assert engine.path.stat().st_mode & 0o777 == 0o600
    file.close()
    assert engines.living(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ResourceError, match="ended"):
        engine.look()


def test_a_request_is_taken_once_and_the_last_one_counts(tmp_path: Path, file: EngineFile) -> None:
    file.say(state())
    (engine,) = engines.living(str(tmp_path))
    assert file.take_request() is None
    engine.ask(1 * GIB)
    second = engine.ask(2 * GIB)
    assert file.take_request() == (2 * GIB, engines.SHRINK_S)
    assert file.last_request == second
    assert file.take_request() is None
    engine.ask(2 * GIB, 1.5)
    assert file.take_request() == (2 * GIB, 1.5)


def test_what_cannot_be_is_refused_with_what_can(tmp_path: Path, file: EngineFile) -> None:
    file.say(state())
    (engine,) = engines.living(str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"9.00 GiB .* allowed is more than zero and 8.00 GiB at most.*cpu_bytes_limit"
    ):
        engine.ask(9 * GIB)
    with pytest.raises(ConfigError, match="more than zero"):
        engine.ask(0)
    file.say(state(why_fixed="engines share it"))
    engine.look()
    with pytest.raises(ConfigError, match="stays as large as it is: engines share it"):
        engine.ask(GIB)
    assert file.take_request() is None


def test_the_file_of_an_engine_that_was_killed_is_nobodys_and_goes(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from kvferry.engines import EngineFile, TierState;"
        "file = EngineFile(sys.argv[1]); file.say(TierState(1, 'm', 1, 1, 1)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    assert engines.living(str(tmp_path)) == []
    made = EngineFile(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [made._path.name]
    made.close()


def test_a_forked_child_does_not_keep_an_engine_alive(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from kvferry.engines import EngineFile, TierState;"
        "file = EngineFile(sys.argv[1]); file.say(TierState(1, 'm', 1, 1, 1));"
        "read, write = os.pipe(); child = os.fork();"
        # The child lets go of the file at its start.
        "child or os.write(write, b'x') and time.sleep(60); os.read(read, 1);"
        "print(child, flush=True); os._exit(0)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.wait(30)
    try:
        assert len(list(tmp_path.iterdir())) == 1
        assert engines.living(str(tmp_path)) == []
    finally:
        os.kill(child, 9)


def test_files_that_are_not_such_files_are_left_alone(tmp_path: Path) -> None:
    for name, mode, content in (("a", 0o600, b"else"), ("b", 0o644, b"kvferry\x01" + bytes(4088)), ("c", 0o600, b"")):
        path = tmp_path / f"kvferry-engine-{name}"
        path.write_bytes(content)
        path.chmod(mode)
    (tmp_path / "kvferry-engine-d").symlink_to(tmp_path / "kvferry-engine-a")
    (tmp_path / "kvferry-engine-e").mkdir()
    engines.sweep(str(tmp_path))
    assert engines.living(str(tmp_path)) == []
    assert len(list(tmp_path.iterdir())) == 5


def test_a_damaged_state_is_none(tmp_path: Path, file: EngineFile) -> None:
    file.say(state())
    for text in (b"{", b"[]", b"3", b'{"pid": 1}', b"\xff"):
        os.pwrite(file._file, text.ljust(4000, b"\0"), 64)
        assert engines.living(str(tmp_path)) == []


def test_waiting_ends_when_the_engine_is_done_or_time_is_up(tmp_path: Path, file: EngineFile) -> None:
    file.say(state())
    (engine,) = engines.living(str(tmp_path))
    request = engine.ask(GIB)
    assert not engine.wait(request, 0.1)

    def serve() -> None:
        while file.take_request() is None:
            time.sleep(0.01)
        file.say(state(request=file.last_request, target_bytes=GIB, is_at_work=True))
        time.sleep(0.2)
        file.say(state(request=file.last_request, num_bytes=GIB, target_bytes=GIB))

    serving = threading.Thread(target=serve)
    serving.start()
    assert engine.wait(request, 30)
    assert engine.state.num_bytes == GIB
    serving.join()


@pytest.fixture
def own() -> Iterator[EngineFile]:
    """Where the command looks."""
    made = EngineFile()
    yield made
    made.close()


def test_the_command_tells_what_was_done_and_what_is_left(own: EngineFile) -> None:
    own.say(state())
    number = str(os.getpid())
    listed = cli("ls")
    assert listed.returncode == 0, listed.stderr
    lines = listed.stdout.splitlines()
    at = lines.index(next(line for line in lines if line.startswith(f"engine {number}: ")))
    assert lines[at + 1] == "    size 4.00 GiB, target 4.00 GiB, limit 8.00 GiB"
    [told] = [each for each in json.loads(cli("ls", "--json").stdout)["engines"] if each["pid"] == os.getpid()]
    assert (told["num_bytes"], told["limit_bytes"]) == (4 * GIB, 8 * GIB)

    unseen = cli("resize", "2GiB", "--engine", number, "--wait", "0", "--over", "0")
    assert unseen.returncode == 1
    assert "has not seen this yet" in unseen.stdout
    assert own.take_request() == (2 * GIB, 0.0)

    def serve(**after: object) -> None:
        while own.take_request() is None:
            time.sleep(0.01)
        own.say(state(request=own.last_request, target_bytes=2 * GIB, **after))

    for after, code, said in (
        ({"num_bytes": 2 * GIB}, 0, "the tier has 2.00 GiB"),
        (
            {"num_bytes": 3 * GIB, "is_blocked": True},
            1,
            "1.00 GiB too much hold blocks that are being stored or loaded",
        ),
        ({"num_bytes": 2 * GIB, "failure": "rank 1: no memory"}, 1, "rank 1: no memory"),
    ):
        serving = threading.Thread(target=serve, kwargs=after)
        serving.start()
        done = cli("resize", "2GiB", "--engine", number, "--wait", "5")
        serving.join()
        assert done.returncode == code, done
        assert said in done.stdout


def test_the_command_refuses_in_one_line(own: EngineFile) -> None:
    own.say(state())
    number = str(os.getpid())
    for arguments, said in (
        (["resize", "2GoB", "--engine", number], "is not a size; allowed is"),
        (["resize", "0", "--engine", number], "is not a size; allowed is"),
        (["resize", "9GiB", "--engine", number], "8.00 GiB at most"),
        (["resize", "1GiB", "--engine", "1"], f"engines of this user with a tier of their own: .*{number}"),
    ):
        refused = cli(*arguments)
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        assert re.search(said, refused.stderr), refused.stderr
