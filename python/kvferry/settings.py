# SPDX-License-Identifier: Apache-2.0
"""How settings that a user wrote are checked: what was wrong, what is allowed and what to do, in one line."""

import difflib
from collections.abc import Callable, Mapping

from kvferry.errors import ConfigError


def bad_value(where: str, key: str, value: object, allowed: str, remedy: str) -> ConfigError:
    """Return the error for a value; `where` names the settings that `key` is one of."""
    return ConfigError(f"{where}: {key} is {value!r}; allowed is {allowed}; {remedy}")


def refuse_unknown_keys(where: str, given: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Raise ConfigError for a key that is not `known`, with the nearest that is."""
    for key in given:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            remedy = f"did you mean {nearest[0]!r}?" if nearest else "remove it"
            raise ConfigError(f"{where}: unknown key {key!r}; valid keys are {', '.join(known)}; {remedy}")


def one_of(where: str, allowed: tuple[str, ...], remedy: str) -> Callable[[str, object], str]:
    """Return a reader of a value that is one of `allowed`, and raises ConfigError for others."""

    def read(key: str, value: object) -> str:
        if value not in allowed:
            raise bad_value(where, key, value, " or ".join(map(repr, allowed)), remedy)
        return str(value)

    return read
