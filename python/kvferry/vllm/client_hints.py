# SPDX-License-Identifier: Apache-2.0
"""A client's hints about its blocks: the actions of vLLM's ``KvHintsEnvelope`` that kvferry understands.

vLLM defines the envelope, but not its content. kvferry reads four actions of version 1, and ignores all others. A
client's mistake only loses the hint: the request is served without it, and the engine's log says why.
"""

import reprlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from vllm.logger import init_logger

from kvferry.vllm.named_things import NamedThings

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = init_logger("vllm.kvferry")

# Keys of `kv_transfer_params`, because vLLM's servers do not take an envelope; the names are vLLM's.
KV_HINTS = "kv_hints"
SESSION_ID = "session_id"

VERSION = "1"
RETAIN, RELEASE, DEMOTE, PREFETCH = "retain", "release", "demote", "prefetch"
ACTIONS = (RETAIN, RELEASE, DEMOTE, PREFETCH)
TTL_S = "ttl_s"

DEFAULT_TTL_S = 300.0
MAX_TTL_S = 86400.0
_MAX_SESSION_CHARS = 256
# Of one request: more than any client needs.
_MAX_ACTIONS = 16

Hint = tuple[str, float, str]
"""Action, seconds for which a promise lives, and the session whose blocks are meant (empty: the request's own)."""


class ClientHints(NamedTuple):
    """The hints of one request.

    Attributes
    ----------
    session
        The session of the request; empty: none.
    hints
        The hints, in the client's order.

    """

    session: str = ""
    hints: tuple[Hint, ...] = ()


NO_HINTS = ClientHints()


class _RefusedError(Exception):
    """Says what is wrong with a hint."""


class HintReader:
    """Reads the hints of requests, and logs what it cannot read.

    Wrong values are logged for each request that has some, in one line. An action or a version that kvferry does not
    know is logged once.
    """

    def __init__(self) -> None:
        self._named = NamedThings()

    def read(self, request: "Request") -> ClientHints:
        """Return the hints of a request; never raises."""
        params = request.kv_transfer_params
        params = params if isinstance(params, Mapping) else {}
        # vLLM 0.30 has neither attribute.
        envelope = _first(getattr(request, "kv_hints", None), params.get(KV_HINTS))
        if envelope is None:
            return NO_HINTS
        faults: list[str] = []
        session = ""
        try:
            session = _session_of(_first(getattr(request, "session_id", None), params.get(SESSION_ID)))
        except _RefusedError as fault:
            faults.append(str(fault))
        hints: list[Hint] = []
        try:
            for action in self._actions_of(envelope):
                try:
                    hints.extend(self._read_action(action))
                except _RefusedError as fault:
                    faults.append(str(fault))
        except _RefusedError as fault:
            faults.append(str(fault))
        if faults:
            logger.warning(
                "kvferry: kv_hints of request %s: %s. The request is served without that hint",
                request.request_id,
                "; ".join(faults),
            )
        return ClientHints(session, tuple(hints))

    def _actions_of(self, envelope: object) -> Iterator[object]:
        envelope = _plain(envelope)
        if not isinstance(envelope, Mapping):
            raise _RefusedError(f"it is {_shown(envelope)}; allowed is vLLM's KvHintsEnvelope, an object")
        version = envelope.get("protocol_version", VERSION)
        if not _is_known_version(version):
            self._name_once(f"protocol_version {_shown(version)}", f"it reads {VERSION}")
            return
        actions = envelope.get("actions")
        if not isinstance(actions, list | tuple):
            raise _RefusedError(f"actions is {_shown(actions)}; allowed is a list of actions")
        if len(actions) > _MAX_ACTIONS:
            raise _RefusedError(f"it has {len(actions)} actions; allowed are {_MAX_ACTIONS} at most")
        yield from actions

    def _read_action(self, action: object) -> Iterator[Hint]:
        action = _plain(action)
        if not isinstance(action, Mapping):
            raise _RefusedError(f"an action is {_shown(action)}; allowed is an object")
        kind, version = action.get("action_type"), action.get("action_version", VERSION)
        if kind not in ACTIONS or not isinstance(kind, str):
            self._name_once(f"the action {_shown(kind)}", f"it reads {', '.join(ACTIONS)}")
            return
        if not _is_known_version(version):
            self._name_once(f"version {_shown(version)} of the action {kind}", f"it reads {VERSION}")
            return
        payload = action.get("payload")
        payload = {} if payload is None else payload
        if not isinstance(payload, Mapping):
            raise _RefusedError(f"the payload of {kind} is {_shown(payload)}; allowed is an object")
        for key in payload:
            if key not in (TTL_S, SESSION_ID):
                self._name_once(f"{_shown(key)} in the payload of {kind}", f"it reads {TTL_S} and {SESSION_ID}")
        yield kind, _ttl_of(payload.get(TTL_S)), _session_of(payload.get(SESSION_ID))

    def _name_once(self, what: str, known: str) -> None:
        if not self._named.add(what):
            return
        logger.warning(
            "kvferry: kv_hints has %s, which kvferry ignores; %s. It may be meant for another component. Logged once%s",
            what,
            known,
            "; this is the last one that is logged" if self._named.is_full else "",
        )


def _first(value: object, otherwise: object) -> object:
    return otherwise if value is None else value


def _plain(value: Any) -> object:
    """Convert vLLM's structures to the types of JSON."""
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value


def _shown(value: object) -> str:
    return reprlib.repr(value)


def _is_known_version(version: object) -> bool:
    """Whether it is 1 or a minor version of it. Minor versions may only add what can be ignored."""
    return isinstance(version, str) and version.partition(".")[0] == VERSION


def _ttl_of(value: object) -> float:
    if value is None:
        return DEFAULT_TTL_S
    # NaN is not above 0, and True is not a number of seconds.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TTL_S:
        raise _RefusedError(
            f"{TTL_S} is {_shown(value)}; allowed is a number of seconds above 0, {MAX_TTL_S:.0f} at most"
        )
    return float(value)


def _session_of(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_SESSION_CHARS or not value.isprintable():
        raise _RefusedError(
            f"{SESSION_ID} is {_shown(value)}; allowed is a printable name of 1 to {_MAX_SESSION_CHARS} characters"
        )
    return value
