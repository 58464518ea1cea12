# SPDX-License-Identifier: Apache-2.0
"""The limits of a request for the tier: keys of its ``kv_transfer_params``, which a client sends.

A client's mistake only loses the limit: the request is served without it, and the engine's log says why.
"""

import reprlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from vllm.logger import init_logger

from kvferry.vllm.client_hints import KV_HINTS, SESSION_ID
from kvferry.vllm.named_things import NamedThings

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = init_logger("vllm.kvferry")

# OffloadingConnector's names: the first since vLLM 0.31, the second since 0.30 or earlier. vLLM has no name for the
# third.
MAX_LOAD_TOKENS = "max_load_tokens"
MAX_OFFLOAD_TOKENS = "max_offload_tokens"
DO_NOT_STORE = "do_not_store"


def _is_count(value: object) -> bool:
    """Whether it is a whole number that is not negative. True and False are not numbers here."""
    return type(value) is int and value >= 0


class _Key(NamedTuple):
    """The values that a key allows, as a check and in words."""

    allows: Callable[[object], bool]
    allowed: str


_TOKENS = _Key(_is_count, "a number of tokens, 0 or more")
KEYS = {
    MAX_LOAD_TOKENS: _TOKENS,
    MAX_OFFLOAD_TOKENS: _TOKENS,
    DO_NOT_STORE: _Key(lambda value: isinstance(value, bool), "true or false"),
}

# The core counts tokens in 32 bits; for it the largest number means "no limit".
_MOST_TOKENS = 2**32 - 2


class Wishes(NamedTuple):
    """The limits of one request.

    Attributes
    ----------
    max_load_tokens
        Most tokens that one load brings. None: no limit.
    max_store_tokens
        A block is stored only if its last token is among this many first tokens. None: no limit.

    """

    max_load_tokens: int | None = None
    max_store_tokens: int | None = None


NO_WISHES = Wishes()


class WishReader:
    """Reads the limits of requests, and logs what it cannot read.

    A wrong value is logged for each request that has one. Unknown keys are logged once, in one line: they may belong to
    another child of ``MultiConnector``, which reads the same ``kv_transfer_params``, and then come with every request.
    """

    def __init__(self) -> None:
        self._named = NamedThings()

    def read(self, request: "Request") -> Wishes:
        """Return the limits of a request; never raises."""
        params = request.kv_transfer_params
        if not params:
            return NO_WISHES
        if not isinstance(params, Mapping):
            self._refuse(request, [f"it is {reprlib.repr(params)}; allowed is an object"])
            return NO_WISHES
        found = {key: params[key] for key in KEYS if params.get(key) is not None}
        if faults := [key for key, value in found.items() if not KEYS[key].allows(value)]:
            self._refuse(
                request, [f"{key} is {reprlib.repr(found[key])}; allowed is {KEYS[key].allowed}" for key in faults]
            )
        wishes = {key: value for key, value in found.items() if key not in faults}
        max_store = 0 if wishes.get(DO_NOT_STORE) else wishes.get(MAX_OFFLOAD_TOKENS)
        self._name_unknown(params)
        return Wishes(_clamped(wishes.get(MAX_LOAD_TOKENS)), _clamped(max_store))

    def _refuse(self, request: "Request", faults: list[str]) -> None:
        logger.warning(
            "kvferry: kv_transfer_params of request %s: %s. The request is served without that limit",
            request.request_id,
            "; ".join(faults),
        )

    def _name_unknown(self, params: Mapping[object, object]) -> None:
        if self._named.is_full:
            return
        unknown = [reprlib.repr(key) for key in params if key not in KEYS and key not in (KV_HINTS, SESSION_ID)]
        if not (names := [name for name in unknown if self._named.add(name)]):
            return
        logger.warning(
            "kvferry: kv_transfer_params has %s, which kvferry ignores; it reads %s. What it ignores may belong to "
            "another connector. Each key is logged once%s",
            ", ".join(names),
            ", ".join([*KEYS, KV_HINTS, SESSION_ID]),
            "; this is the last line about them" if self._named.is_full else "",
        )


def _clamped(num_tokens: int | None) -> int | None:
    return None if num_tokens is None else min(num_tokens, _MOST_TOKENS)
