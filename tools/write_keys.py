# SPDX-License-Identifier: Apache-2.0
"""Write the table of configuration keys for users from the code that reads them.

``write_keys.py`` writes ``python/kvferry/vllm/keys.md``; ``write_keys.py --check`` prints how the file differs. A key's
type, unit and range are those of its reader, its default is that of the field, and its meaning is in the docstring of
`KvFerryConfig`. Run it with the Python of ``.venv``: it needs the compiled core, which knows the names of policies.
"""

import difflib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import kvferry

ROOT = Path(__file__).resolve().parent.parent
# The Python files are those of the tree; the core is the installed one.
kvferry.__path__.insert(0, str(ROOT / "python/kvferry"))

from kvferry.config import KvFerryConfig  # noqa: E402
from kvferry.errors import ConfigError  # noqa: E402
from kvferry.sizes import ALLOWED, format_size  # noqa: E402

COMMITTED = ROOT / "python/kvferry/vllm/keys.md"
WIDTH = 110
# By the name of the function that reads the value, or that makes its reader: type and unit.
READERS = {
    "absolute_path": ("text", ""),
    "flag": ("Boolean", ""),
    "name": ("text", ""),
    "one_of": ("text", ""),
    "read_host_link": ("object", ""),
    "read_rate": ("size", "bytes per second"),
    "read_retention": ("text or integer", "tokens"),
    "read_seconds": ("number", "seconds"),
    "read_share": ("number", "part of the tier"),
    "read_size": ("size", "bytes"),
    "read_size_or_zero": ("size", "bytes"),
    "read_tier_size": ("size", "bytes"),
    "read_tokens": ("integer", "tokens"),
    "whole_number": ("integer", ""),
}
# Values that a reader refuses. The last refusal says most: the number 1 is a size, but too small for a tier.
REFUSED = (None, 1)
HEADER = """\
# Keys of `kv_connector_extra_config`

<!-- Written by tools/write_keys.py from python/kvferry/config.py. Change that file, then run `make keys`. -->

The [guide](README.md) says how to run kvferry with vLLM. A wrong key or value stops the start with a line
that names the key, the value and what is allowed.

A *size* is a number of bytes, or text such as `"8GiB"` or `"8Gi"` (powers of 1024), `"8GB"` or `"8G"`
(powers of 1000). A rate can end in `/s`: `"4GB/s"`. If a default is not a fixed value, the column has "—",
and the text below the table says what the default is.

| Key | Type | Default | Range | Unit |
|---|---|---|---|---|
"""


def reader_of(key: Field[Any]) -> str:
    """Return the name of the function that reads a key's value, or that makes the reader."""
    name: str = key.metadata["read"].__qualname__
    return name.partition(".")[0]


def refusal(read: Callable[[str, object], object], name: str, value: object) -> str | None:
    """Return what is allowed, as the error for a refused value has it; None if the value is read."""
    try:
        read(name, value)
    except ConfigError as error:
        # What is allowed of a size stands above the table.
        found = re.search(r"; allowed is (.*?); ", str(error).replace(ALLOWED, "a size"))
        if found is None:
            raise ValueError(f"the refusal of {value!r} does not say what is allowed: {error}") from error
        return found[1]
    return None


def range_of(key: Field[Any]) -> str:
    """Return the values that the reader of a key accepts."""
    if reader_of(key) == "read_host_link":
        return "[its keys](reference.md#more-about-some-keys)"
    found = [refusal(key.metadata["read"], key.name, value) for value in REFUSED]
    refusals = [text for text in found if text is not None]
    if not refusals:
        raise ValueError(f"the reader of {key.name} accepts {REFUSED}: add a value that it refuses")
    text = re.sub(r"^a size, |^a finite number of seconds, |^bytes per second, |: a size$", "", refusals[-1])
    if text == "more than zero" and refusal(key.metadata["read"], key.name, 0) is None:
        return "0 or more"
    if reader_of(key) == "one_of":
        text = text.replace(" or ", ", ")
    # Texts in JSON have double quotes.
    return re.sub(r"'(\w+)'", r'`"\1"`', text)


def default_of(key: Field[Any]) -> str:
    """Return the default of a key, as users write it."""
    default: Any = key.default
    if default is None:
        return "—"
    if READERS[reader_of(key)][0] == "size":
        return format_size(default).replace(".00 ", " ")
    is_whole = isinstance(default, float) and default.is_integer()
    return f"`{json.dumps(int(default) if is_whole else default)}`"


def meanings() -> dict[str, str]:
    """Return the meaning of each key, from the section Attributes of the docstring."""
    text = inspect.cleandoc(KvFerryConfig.__doc__ or "").partition("Attributes\n----------\n")[2]
    entries = re.findall(r"^(\w+)\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    return {name: " ".join(body.split()) for name, body in entries}


def as_markdown(text: str) -> str:
    """Return a docstring's text for users, to whom None is a key that they left out, in lines that break no command."""
    text = re.sub(r"(^|\. )None: ", r"\1Default: ", text.replace("``", "`"))
    whole = re.sub(r"`[^`]+`", lambda found: found[0].replace(" ", "\0"), text)
    return textwrap.fill(whole, WIDTH, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def generate() -> str:
    """Return the page."""
    keys = fields(KvFerryConfig)
    meaning = meanings()
    missing = {key.name for key in keys} ^ meaning.keys()
    if missing:
        raise ValueError(f"fields without a docstring, or docstrings without a field: {', '.join(sorted(missing))}")
    rows = []
    texts = []
    for key in keys:
        kind, unit = READERS[reader_of(key)]
        rows.append(f"| `{key.name}` | {kind} | {default_of(key)} | {range_of(key)} | {unit} |\n")
        texts.append(f"\n### `{key.name}`\n\n{as_markdown(meaning[key.name])}\n")
    more = "\n## What each key does\n\n[More about some keys](reference.md#more-about-some-keys) is in the reference.\n"
    return HEADER + "".join(rows) + more + "".join(texts)


def main() -> int:
    """Write the page, or compare it with the committed one."""
    page = generate()
    if "--check" not in sys.argv[1:]:
        COMMITTED.write_text(page)
        return 0
    committed = COMMITTED.read_text().splitlines()
    differences = list(difflib.unified_diff(committed, page.splitlines(), "committed", "generated", lineterm=""))
    print("\n".join(differences))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
