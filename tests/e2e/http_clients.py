# SPDX-License-Identifier: Apache-2.0
"""Clients of a server, some of whom go away before their answer is complete."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import httpx

TIMEOUT_S = 120.0

Heard = Callable[[], object]
"""Called when a client has its first token."""


@dataclasses.dataclass(frozen=True)
class Patience:
    """When a client goes away: so long after it asked, or with so many tokens. Neither: it stays."""

    seconds: float | None = None
    num_tokens: int | None = None


@dataclasses.dataclass
class Answer:
    """What one client has received, as far as it listened."""

    request: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    best: list[list[tuple[int, float]]] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    # What Dynamo says beside the answer, if it is asked to.
    nvext: dict[str, Any] = dataclasses.field(default_factory=dict)

    def life(self) -> dict[str, Any]:
        """As `storm_checks.compare` takes it."""
        aborted = None if self.finish_reason else "disconnected"
        return {"request": self.request, "tokens": self.tokens, "best": self.best, "aborted": aborted}


def ask(
    url: str,
    requests: list[dict[str, Any]],
    asked: list[tuple[int, Patience]],
    engine: int | None = None,
    headers: dict[str, str] | None = None,
    heard: Heard | None = None,
) -> list[Answer]:
    """Let one client for each of `asked` ask for the request of that number, all at once.

    `engine` is the one of data parallel that is to answer; None: the server chooses.
    """
    headers = dict(headers or {})
    if engine is not None:
        headers["X-data-parallel-rank"] = str(engine)
    return asyncio.run(_ask(url, requests, asked, headers, heard))


async def _ask(
    url: str,
    requests: list[dict[str, Any]],
    asked: list[tuple[int, Patience]],
    headers: dict[str, str],
    heard: Heard | None,
) -> list[Answer]:
    # A connection each, as separate programs would have, and none kept for another request.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits, headers=headers) as client:
        return await asyncio.gather(
            *(_visit(client, index, requests[index], patience, heard) for index, patience in asked)
        )


async def _visit(
    client: httpx.AsyncClient, index: int, request: dict[str, Any], patience: Patience, heard: Heard | None
) -> Answer:
    answer = Answer(index)
    listening = _listen(client, request, answer, patience.num_tokens, heard)
    try:
        # Cancelled while it reads, it closes the connection.
        await asyncio.wait_for(listening, patience.seconds)
    except TimeoutError:
        pass
    except httpx.HTTPError as error:
        answer.error = repr(error)
    return answer


async def _listen(
    client: httpx.AsyncClient, request: dict[str, Any], answer: Answer, num_tokens: int | None, heard: Heard | None
) -> None:
    body = {
        "model": "tiny", "temperature": 0, "ignore_eos": True, "logprobs": 2, "return_tokens_as_token_ids": True,
        "stream": True, **request,
    }  # fmt: skip
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            answer.error = f"{response.status_code}: {(await response.aread()).decode()}"
            return
        async for line in _lines(response):
            data = line.removeprefix("data: ")
            if not data or data == "[DONE]":
                continue
            event = json.loads(data)
            if "choices" not in event:
                answer.error = data
                return
            answer.nvext |= event.get("nvext") or {}
            had_tokens = bool(answer.tokens)
            for choice in event["choices"]:
                _note(answer, choice)
            if heard is not None and answer.tokens and not had_tokens:
                heard()
            if num_tokens is not None and len(answer.tokens) >= num_tokens and answer.finish_reason is None:
                return


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Split at line feeds alone: the text of an answer may hold what else Python's `splitlines` takes for an end."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode()


def _note(answer: Answer, choice: dict[str, Any]) -> None:
    # Dynamo leaves out what is null.
    logprobs = choice.get("logprobs")
    if logprobs is not None:
        answer.tokens += [_number(token) for token in logprobs["tokens"]]
        for position in logprobs["top_logprobs"]:
            ranked = sorted(_logprobs(position), key=lambda entry: -entry[1])
            answer.best.append([(_number(token), logprob) for token, logprob in ranked[:2]])
    answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def _logprobs(position: dict[str, float] | list[dict[str, Any]]) -> Iterable[tuple[str, float]]:
    """Those of a position as vLLM has them, or as Dynamo does."""
    if isinstance(position, dict):
        return position.items()
    return [(one["token"], one["logprob"]) for one in position]


def _number(token: str) -> int:
    return int(token.removeprefix("token_id:"))
