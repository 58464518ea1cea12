# SPDX-License-Identifier: Apache-2.0
"""What the drivers report about their GPUs. A driver can hang, so each one is asked in a separate process.

That process runs ``python -m kvferry.doctor.drivers BACKEND``, which prints one line of JSON.
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
# If no other process uses a driver, it wakes up every GPU, which takes some seconds for each.
PATIENCE_S = 60.0
_COMMAND = (sys.executable, "-P", "-m", "kvferry.doctor.drivers")


@dataclass(frozen=True)
class Device:
    """A device as its driver describes it.

    `kernels` names the kernels of this build that fit it, as ``_core.find_devices`` does.
    """

    name: str
    architecture: str
    driver: str
    pci_address: str
    kernels: str


@dataclass(frozen=True)
class Answer:
    """The answer of one driver.

    Attributes
    ----------
    why_not
        Why it cannot be used; empty if it can.
    devices
        Its devices.
    is_sane
        False: the process that asked hung or crashed.

    """

    why_not: str
    devices: list[Device]
    is_sane: bool = True


@functools.cache
def answers() -> dict[str, Answer]:
    """Return the drivers' answers by back end. The drivers are asked at the first call only."""
    return ask()


def backends() -> dict[str, str]:
    """Return the same as ``_core.backends``: why each back end cannot be used; empty if it can."""
    return {name: answer.why_not for name, answer in answers().items()} | {"host": ""}


def ask(patience_s: float = PATIENCE_S, command: Sequence[str] = _COMMAND) -> dict[str, Answer]:
    """Ask all drivers at once.

    Parameters
    ----------
    patience_s
        Seconds until a driver counts as hung.
    command
        Command line of the process that asks; the back end's name is added to it.

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
        # It can hang in the kernel. Then it ends when the driver releases it; do not wait for that.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        return Answer(f"the driver did not answer within {patience_s:g} s: check dmesg, restart the machine", [], False)
    try:
        told = json.loads(said.splitlines()[-1])
        return Answer(told["why_not"], [Device(**device) for device in told["devices"]])
    except (ValueError, LookupError, TypeError):
        return Answer(f"the process that asked the driver ended with {process.returncode}: check dmesg", [], False)


def _ask_one(backend: str) -> Answer:
    try:
        return Answer("", [Device(**device) for device in _core.find_devices(backend)])
    except Error as error:
        return Answer(str(error), [])


if __name__ == "__main__":
    print(json.dumps(asdict(_ask_one(sys.argv[1]))))
