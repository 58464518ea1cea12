# SPDX-License-Identifier: Apache-2.0
"""The repository's files, and how its documents name them."""

import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
import repository  # noqa: E402

ARCHITECTURE = "docs/ARCHITECTURE.md"

SOURCES = "cpp|hpp|cuh|cu|in|py|pyi|pml|sh|md|svg|cmake|toml"
NAMED = re.compile(rf"`((?:[\w.-]+/)*[\w.-]+\.(?:{SOURCES})|(?:[\w.-]+/)+)(?:::(\w+))?`")


@cache
def tracked() -> tuple[str, ...]:
    """The repository's files, new ones included."""
    return tuple(repository.files())


def short_name(path: str) -> str:
    """As the documents name a file: by its room, without `src/` and `include/…/`."""
    return re.sub(r"(?:/src(?=/)|/include/kvferry(?:/[\w-]+)*(?=/[^/]+$))", "", path)


@cache
def short_names() -> dict[str, str]:
    return {short_name(path): path for path in tracked()}


@cache
def base_names() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for path in tracked():
        names.setdefault(path.rsplit("/", 1)[-1], []).append(path)
    return names


def resolve(name: str, document: str) -> str | None:
    """Return the tracked file (or folder) that a document means."""
    folder = str(Path(document).parent)
    for candidate in (name, name if folder == "." else f"{folder}/{name}", f"{folder}/src/{name}"):
        if candidate.endswith("/"):
            if any(path.startswith(candidate) for path in tracked()):
                return candidate
        elif candidate in tracked():
            return candidate
        elif candidate in short_names():
            return short_names()[candidate]
    if name.startswith("kvferry/"):
        return next((path for path in tracked() if path.endswith(f"/include/{name}")), None)
    if "/" in name:
        return None
    # A bare name: of this component, or of a test, whose names are unique.
    found = sorted(base_names().get(name, []), key=lambda path: not path.startswith("tests/python/"))
    near = [path for path in found if path.startswith(f"{folder}/")] or found
    is_test = any(path.startswith("tests/") for path in near)
    return near[0] if len(near) == 1 or (near and (is_test or near[0].startswith(f"{folder}/"))) else None


def documents() -> list[str]:
    """Those of this repository; reports to other projects name the files of those."""
    return [
        path for path in tracked() if path.endswith(".md") and not path.startswith(("docs/upstream/", "third_party/"))
    ]


def text_of(path: str) -> str:
    return (ROOT / path).read_text()


def section(document: str, heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text_of(document), re.MULTILINE | re.DOTALL)
    assert found, f"{document} has no section {heading!r}"
    return found[1]
