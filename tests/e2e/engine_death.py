# SPDX-License-Identifier: Apache-2.0
"""The operation `die_later` of an engine process: kill -9 of the whole engine at a moment that nobody chose."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .shared_memory import SHARED_MEMORY

if TYPE_CHECKING:
    from .engine_process import Engine


def die_later(engine: Engine, seconds: float, keep: str) -> dict[str, Any]:
    """Kill this process so many seconds after the engine has got its first request.

    Parameters
    ----------
    engine
        With its scheduler and its rank in this process.
    seconds
        How long it lives.
    keep
        A second name for the file of its recording: the next engine of this user would collect the first one. With
        ``-rank`` behind it, that of its rank's.
    """
    os.link(engine.scheduler.connector.scheduler_side._recorder.path, keep)
    [rank] = Path(SHARED_MEMORY).glob(f"kvferry-rank-{os.getpid()}-*")
    os.link(rank, f"{keep}-rank")

    def die() -> None:
        while not engine.has_work():
            time.sleep(0.001)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()
    return {}
