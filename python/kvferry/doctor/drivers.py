# SPDX-License-Identifier: Apache-2.0
"""What the drivers say of their GPUs. A driver can hang, so each is asked in a process of its own.

``python -m kvferry.doctor.drivers BACKEND`` is that process: it prints one line of JSON.
"""

import contextlib
import functools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kvferry import _core
from kvferry.errors import Error

BACKENDS = tuple(name for name in _core.backend_names() if name != "host")
# A driver that nobody else uses wakes every GPU up, some seconds each.
PATIENCE_S = 60.0
_COMMAND = (sys.executable, "-P", "-m", "kvferry.doctor.drivers")


@dataclass(frozen=True)
class Device:
    """A device as its driver describes it; `kernels` is what this build has for it: see ``_core.find_devices``."""

    name: str
    architecture: str
    driver: str
    pci_address: str
    kernels: str


@dataclass(frozen=True)
class Answer:
    """Of one driver: `why_not` it cannot be used, empty if it can; its devices; whether the question was survived."""

    why_not: str
    devices: list[Device]
    is_sane: bool = True


@functools.cache
def answers() -> dict[str, Answer]:
    """Return what the drivers said when this process first wanted to know, by back end."""
    return ask()


def backends() -> dict[str, str]:
    """Return what ``_core.backends`` would."""
    return {name: answer.why_not for name, answer in answers().items()} | {"host": ""}


def ask(patience_s: float = PATIENCE_S, command: Sequence[str] = _COMMAND) -> dict[str, Answer]:
    """Ask all drivers at once.

    Parameters
    ----------
    patience_s
        Seconds until a driver counts as hung.
    command
        Of the process that asks; the back end's name follows it.

    """
    deadline = time.monotonic() + patience_s
    asked = {
        name: subprocess.Popen(
            [*command, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for name in BACKENDS
    }
    return {name: _answer(process, deadline, patience_s) for name, process in asked.items()}


def _answer(process: "subprocess.Popen[str]", deadline: float, patience_s: float) -> Answer:
    try:
        said, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        # The kernel may hold it; then it ends when the driver lets it go, and nobody waits for that.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        return Answer(
            f"the driver has not answered for {patience_s:g} s: look into dmesg, restart the machine", [], False
        )
    try:
        told = json.loads(said.splitlines()[-1])
        return Answer(told["why_not"], [Device(**device) for device in told["devices"]])
    except (ValueError, LookupError, TypeError):
        return Answer(f"the process that asked the driver ended with {process.returncode}: look into dmesg", [], False)


def _ask_one(backend: str) -> Answer:
    try:
        return Answer("", [Device(**device) for device in _core.find_devices(backend)])
    except Error as error:
        return Answer(str(error), [])


if __name__ == "__main__":
    print(json.dumps(asdict(_ask_one(sys.argv[1]))))
