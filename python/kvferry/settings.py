# SPDX-License-Identifier: Apache-2.0
"""Checks of the settings that a user wrote. Each error is one line: what was wrong, what is allowed, what to do."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from typing import Any, TypeVar

from kvferry.errors import ConfigError

T = TypeVar("T")

# Of the largest kernels: 2^CONFIG_NODES_SHIFT.
_MAX_NODES = 1024
_MOST_SHOWN = 300
# Of Linux.
_MOST_NAME_CHARS = 256
_MOST_PATH_BYTES = 4095
# With this limit every part of a tier is at least one chunk, for any combination of weights.
_MAX_WEIGHT = 1000


def shown(value: object) -> str:
    """Write a value in one line for a message: the beginning of a long one, the type of a deeply nested one."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # ValueError: Python does not write numbers with thousands of digits
        return f"a {type(value).__name__}"
    text = text if text.isprintable() else ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def bad_value(where: str, key: str, value: object, allowed: str, remedy: str) -> ConfigError:
    """Return the error for a value; `where` names the settings to which `key` belongs."""
    return ConfigError(f"{where}: {key} is {shown(value)}; allowed is {allowed}; {remedy}")


def refuse_unknown_keys(where: str, given: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Raise ConfigError for a key that is not `known`. Suggest one with that prefix, or the nearest."""
    for key in given:
        if key not in known:
            nearest = [name for name in known if key and isinstance(key, str) and name.startswith(key)]
            nearest = nearest or difflib.get_close_matches(shown(key), known, n=1, cutoff=0.5)
            remedy = f"did you mean {nearest[0]!r}?" if nearest else "remove it;"
            # The list is long, so it comes last.
            raise ConfigError(f"{where}: unknown key {shown(key)}; {remedy} valid keys are {', '.join(known)}")


def key(read: Callable[[str, object], T], *sides: object, default: T = MISSING) -> T:  # type: ignore[assignment]
    """Return the field of a key in a dataclass of settings.

    Parameters
    ----------
    read
        Takes the key and the user's value, and raises ConfigError for a value that is not allowed.
    sides
        The sides of the core that get the value unchanged under the key's name. Without sides, Python computes other
        values from it.
    default
        The value if the user leaves the key out. Without a default the key is required.

    """
    found: Any = field(default=default, metadata={"read": read, "sides": sides})
    return found  # type: ignore[no-any-return]


def known_keys(settings: type) -> tuple[str, ...]:
    """Return the names of the `key` fields of a dataclass."""
    return tuple(each.name for each in fields(settings))


def read_values(settings: type, given: Mapping[str, object]) -> dict[str, Any]:
    """Read a user's values for a dataclass of `key` fields. All keys in `given` are known.

    Raises
    ------
    ConfigError
        A value that is not allowed.

    """
    readers = {each.name: each.metadata["read"] for each in fields(settings)}
    return {name: readers[name](name, value) for name, value in given.items()}


def one_of(where: str, allowed: tuple[str, ...], remedy: str) -> Callable[[str, object], str]:
    """Return a reader that accepts a value in `allowed`, and raises ConfigError for others."""

    def read(key: str, value: object) -> str:
        if value not in allowed:
            raise bad_value(where, key, value, " or ".join(map(repr, allowed)), remedy)
        return str(value)

    return read


def whole_number(where: str, allowed: str, least: int, most: int, remedy: str) -> Callable[[str, object], int]:
    """Return a reader that accepts a whole number from `least` to `most`, and raises ConfigError for others."""

    def read(key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise bad_value(where, key, value, allowed, remedy)
        return value

    return read


def numa_node(where: str, remedy: str) -> Callable[[str, object], int]:
    """Return a reader of the number of a NUMA node."""
    return whole_number(where, "the number of a NUMA node", 0, _MAX_NODES - 1, remedy)


def weight(where: str) -> Callable[[str, object], int]:
    """Return a reader of a part's weight in a shared tier."""
    return whole_number(where, f"a whole number from 1 to {_MAX_WEIGHT}", 1, _MAX_WEIGHT, "leave it out for 1")


def flag(where: str, remedy: str) -> Callable[[str, object], bool]:
    """Return a reader that accepts true or false, and raises ConfigError for others."""

    def read(key: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise bad_value(where, key, value, "true or false", remedy)
        return value

    return read


def refuse_shared_contradictions(where: str, given: Mapping[str, object], pages_key: str) -> None:
    """Raise ConfigError for keys of a shared tier without its path, and for pages that the file system decides."""
    if given.get("shared_path") is None:
        orphans = [key for key in given if key.startswith("shared_") and key != "shared_path"]
        if orphans:
            raise ConfigError(f"{where}: {orphans[0]} is set and shared_path is not; set both, or neither")
    elif given.get(pages_key, "auto") != "auto":
        raise ConfigError(
            f"{where}: {pages_key} is set to {shown(given[pages_key])} and shared_path, too; the pages are those of "
            f"the file system of shared_path: name a path on a hugetlbfs for huge ones, and leave {pages_key} out"
        )


def name(where: str, remedy: str) -> Callable[[str, object], str]:
    """Return a reader that accepts a name which fits into a line of a log, and raises ConfigError for others."""

    def read(key: str, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > _MOST_NAME_CHARS:
            raise bad_value(where, key, value, f"text of 1 to {_MOST_NAME_CHARS} printable characters", remedy)
        return value

    return read


def absolute_path(where: str, allowed: str, example: str) -> Callable[[str, object], str]:
    """Return a reader that accepts a file's absolute path, and raises ConfigError for others; `example` is one."""

    def read(key: str, value: object) -> str:
        if not isinstance(value, str) or not _is_path_of_file(value):
            raise bad_value(where, key, value, allowed, f"write for example {key!r}: {example}")
        return value

    return read


def _is_path_of_file(text: str) -> bool:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:  # JSON can contain half of a character
        return False
    # Messages, logs and `kvferry tier` show the path in one line: a control character would break it.
    return text.startswith("/") and not text.endswith("/") and text.isprintable() and size <= _MOST_PATH_BYTES
