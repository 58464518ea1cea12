# SPDX-License-Identifier: Apache-2.0
"""What clients of a prefill engine and a decode engine talk to.

    python examples/prefill_decode/proxy.py --prefill http://HOST:8001 --decode http://HOST:8002 [--port 8000]

The prefill engine computes a prompt and one token. Its answer says where the prompt's KV cache is. The decode engine is
given that and the client's request, fetches the KV cache, and answers. If the prefill engine does not answer, the
decode engine computes the prompt. vLLM's connector for NIXL defines the messages.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

logger = logging.getLogger("uvicorn.error")
# A request may wait in an engine for as long as its client does; only the connection has a limit.
TIMEOUT = httpx.Timeout(None, connect=30.0)


class RefusedError(Exception):
    """The prefill engine calls the request wrong; the client gets its answer."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(answer.text)
        self.answer = answer


class Proxy:
    """Forwards each request to both engines.

    Parameters
    ----------
    prefill, decode
        URLs of the engines.
    """

    def __init__(self, prefill: str, decode: str) -> None:
        # A connection for each request: one that an engine left open when it was killed is not used again.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._prefill = httpx.AsyncClient(base_url=prefill, timeout=TIMEOUT, limits=limits)
        self._decode = httpx.AsyncClient(base_url=decode, timeout=TIMEOUT, limits=limits)

    async def complete(self, request: Request) -> Response:
        """Answer a request for a completion."""
        path, body = request.url.path, await request.json()
        try:
            answer = await _while_connected(request, self._begin(path, body))
        except RefusedError as refused:
            return Response(refused.answer.content, refused.answer.status_code, media_type="application/json")
        except httpx.HTTPError as error:
            return JSONResponse({"error": {"message": f"the decode engine does not answer: {error!r}"}}, 502)
        if answer is None:
            return Response(status_code=499)
        return StreamingResponse(_forward(answer), answer.status_code, media_type=answer.headers.get("content-type"))

    async def _begin(self, path: str, body: dict[str, Any]) -> httpx.Response:
        wishes = body.get("kv_transfer_params") or {}
        where = await self._compute_prompt(path, body, wishes)
        told = body | ({"kv_transfer_params": wishes | where} if wishes or where else {})
        return await self._decode.send(self._decode.build_request("POST", path, json=told), stream=True)

    async def _compute_prompt(self, path: str, body: dict[str, Any], wishes: dict[str, Any]) -> dict[str, Any]:
        """Where the prompt's KV cache is; empty if the prefill engine does not answer."""
        told = {key: value for key, value in body.items() if key not in ("max_completion_tokens", "stream_options")}
        told |= {"max_tokens": 1, "stream": False, "kv_transfer_params": wishes | {"do_remote_decode": True}}
        try:
            answer = await self._prefill.post(path, json=told)
        except httpx.HTTPError as error:
            logger.warning("the prefill engine does not answer: %r", error)
            return {}
        if answer.is_client_error:
            raise RefusedError(answer)
        return (answer.json().get("kv_transfer_params") or {}) if answer.is_success else {}


async def _forward(answer: httpx.Response) -> AsyncIterator[bytes]:
    # When the client goes away, this is cancelled, the connection is closed, and the engine stops.
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()


async def _while_connected(request: Request, work: Coroutine[Any, Any, httpx.Response]) -> httpx.Response | None:
    """Wait for the work, which is cancelled if the client goes away first; then the result is None."""
    tasks = [asyncio.create_task(work), asyncio.create_task(_await_disconnect(request))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()


async def _await_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def main() -> None:
    """Serve until it is told to end."""
    parser = argparse.ArgumentParser(description="A proxy before a prefill engine and a decode engine.")
    parser.add_argument("--prefill", required=True, help="URL of the prefill engine")
    parser.add_argument("--decode", required=True, help="URL of the decode engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    told = parser.parse_args()
    proxy = Proxy(told.prefill, told.decode)
    routes = [Route(f"/v1/{path}", proxy.complete, methods=["POST"]) for path in ("completions", "chat/completions")]
    routes.append(Route("/health", lambda request: Response()))
    uvicorn.run(Starlette(routes=routes), host=told.host, port=told.port, access_log=False)


if __name__ == "__main__":
    main()
