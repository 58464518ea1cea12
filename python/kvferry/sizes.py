# SPDX-License-Identifier: Apache-2.0
"""Byte sizes in the forms that people write."""

import re
from fractions import Fraction

_UNITS = {
    unit + suffix: base**power
    for power, unit in enumerate(("", "K", "M", "G", "T"))
    for suffix, base in (("B", 1000), ("iB", 1024), ("", 1000), ("i", 1024))
    if unit or suffix == "B"
}
_BY_LOWER_CASE = {unit.lower(): factor for unit, factor in _UNITS.items()}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
# Python does not read numbers with thousands of digits.
_MOST_CHARACTERS = 100

ALLOWED = (
    "a whole number of bytes, or a number with a unit: '8GiB' or '8Gi' (powers of 1024), '8GB' or '8G' (powers of "
    "1000); likewise with K, M and T"
)


def parse_size(value: object) -> int | None:
    """Read a size.

    Parameters
    ----------
    value
        A whole number (JSON's ``8e9`` arrives as a float), or a string of a number and a unit. Without a unit it is
        bytes. The case of the unit does not matter.

    Returns
    -------
    int | None
        Bytes, rounded down; None if `value` is not a size.

    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
    if isinstance(value, float):
        return int(value) if value >= 0 and value.is_integer() else None
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        return None
    match = _SIZE.fullmatch(value)
    if match is None:
        return None
    factor = _BY_LOWER_CASE.get(match[2].lower() or "b")
    if factor is None:
        return None
    num_bytes = Fraction(match[1]) * factor
    return int(num_bytes) if match[2] or num_bytes.denominator == 1 else None


def format_size(num_bytes: int) -> str:
    """Write a size in the largest binary unit that it fills, e.g. ``'1.50 GiB'``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if num_bytes >= _UNITS[unit]:
            return f"{num_bytes / _UNITS[unit]:.2f} {unit}"
    return f"{num_bytes} B"
