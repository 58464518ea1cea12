# SPDX-License-Identifier: Apache-2.0
"""The documents say what the tree says: files, types, links, tables, versions and the picture."""

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from documents import ARCHITECTURE, NAMED, ROOT, documents, resolve, section, text_of, tracked

COMPONENTS = ("base", "recorder", "gpu", "cpu_tier", "transfer", "connector", "lmcache", "python", "bench", "tests")
ROOMS = (
    *(f"cpu_tier/{room}" for room in ("memory", "policy", "slots", "peers")),
    *(f"connector/{room}" for room in ("wire", "scheduler", "worker", "replay")),
)
TWO_SCREENS, ONE_SCREEN = 112, 80  # Lines.
PROSE_WIDTH = 110
# The user manuals of a connector are as long as they need to be.
READMES = [f"{folder}/README.md" for folder in (*COMPONENTS, *ROOMS)]

IN_FILE = re.compile(r"`([A-Z]\w+)(?:::(\w+))?`\s+\(`([^`]+)`\)")
TYPE = re.compile(r"`([A-Z][a-z]+(?:[A-Z]\w*)?)(?:::\w+)?`")
FLOWS = (
    "The life of a block: store",
    "The life of a block: load",
    "An abort while loading",
    "An engine that dies while its peers live",
)
# These speak of rejected alternatives, of the past, or to users of other programs' classes.
SPEAK_OF_OTHERS = ("docs/decisions/", "CHANGELOG.md", "tests/FAILURES.md")
# What the documents name by design though it is not in the tree.
ELSEWHERE = {
    "src/": "of each component",
    "include/": "of each component",
    ".venv/": "made",
    "build/": "made",
    "reports/": "made",
    "bench/results/": "made",
}


@pytest.mark.parametrize("document", documents())
def test_files_that_a_document_names_exist(document: str) -> None:
    missing = []
    for name, test in NAMED.findall(text_of(document)):
        path = resolve(name, document)
        if path is None and name not in ELSEWHERE:
            missing.append(name)
        elif path and test and not re.search(rf"\b{test}\b", text_of(path)):
            missing.append(f"{name}::{test}")
    assert not missing


def test_types_are_declared_in_the_files_that_the_architecture_names_beside_them() -> None:
    pairs = IN_FILE.findall(text_of(ARCHITECTURE))
    wrong = []
    for type_name, method, name in pairs:
        path = resolve(name, ARCHITECTURE)
        text = text_of(path) if path else ""
        declared = re.search(rf"\b(?:class|struct|enum class|using)\s+(?:\[\[nodiscard\]\]\s+)?{type_name}\b", text)
        if not declared or (method and not re.search(rf"\b{method}\(", text)):
            wrong.append(f"{type_name}{'::' * bool(method)}{method} in {name}")
    assert len(pairs) > 40, "the flows name too little to follow them"
    assert not wrong


@pytest.mark.parametrize("heading", FLOWS)
def test_each_type_that_a_flow_names_has_a_file_beside_it(heading: str) -> None:
    text = section(ARCHITECTURE, heading)
    known = {type_name for type_name, _, _ in IN_FILE.findall(text_of(ARCHITECTURE))}
    assert set(TYPE.findall(text)) <= known
    assert len(IN_FILE.findall(text)) >= 5
    assert "Shown by" in text or "Tests to read" in text or "To watch it" in text


@cache
def words_of_sources() -> set[str]:
    sources = [path for path in tracked() if path.endswith((".hpp", ".cpp", ".cu", ".cuh", ".py", ".pml"))]
    return {word for path in sources for word in re.findall(r"\w+", text_of(path))}


@pytest.mark.parametrize("document", [path for path in documents() if not path.startswith(SPEAK_OF_OTHERS)])
def test_types_and_functions_that_a_document_names_exist(document: str) -> None:
    named = re.findall(r"`([A-Z][a-z]+[A-Z]\w*)(?:::(\w+))?(?:\(\))?`", text_of(document))
    named += [(function, "") for function in re.findall(r"`([a-z]\w+)\(\)`", text_of(document))]
    unknown = {word for pair in named for word in pair if word and word not in words_of_sources()}
    assert not unknown


def slug(heading: str) -> str:
    """As GitHub makes the anchor of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def anchors_of(document: Path) -> set[str]:
    return set(map(slug, re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)))


@pytest.mark.parametrize("room", ROOMS)
def test_each_file_of_a_room_is_in_its_readme_or_the_architecture(room: str) -> None:
    named = {
        path
        for document in (f"{room}/README.md", ARCHITECTURE)
        for name, _ in NAMED.findall(text_of(document))
        if (path := resolve(name, document))
    }
    # A source stands with the header of its name.
    stems = {Path(path).stem for path in named if path.startswith(f"{room}/")}
    files = [path for path in tracked() if path.startswith(f"{room}/") and path.endswith((".hpp", ".cpp"))]
    assert files
    assert {path for path in files if Path(path).stem not in stems} == set()


@pytest.mark.parametrize("component", ["cpu_tier", "connector"])
def test_rooms_include_what_their_build_targets_depend_on(component: str) -> None:
    rooms = [room.removeprefix(f"{component}/") for room in ROOMS if room.startswith(f"{component}/")]
    row = re.compile(r"^\| \[(\w+)\]\(\1/README\.md\) \|.*\| ([^|]+) \|$", re.MULTILINE)
    rows = row.findall(text_of(f"{component}/README.md"))
    assert [room for room, _ in rows] == rooms
    for room, listed in rows:
        includes = {f"{component}_{name}" if name in rooms else name for name in re.findall(r"\w+", listed)}
        depends = re.search(r"\bSOURCES \S+ DEPENDS ([\w ]+)", text_of(f"{component}/{room}/CMakeLists.txt"))
        assert depends
        assert includes == set(depends[1].split()), room


@pytest.mark.parametrize("document", documents())
def test_links_and_anchors_lead_somewhere(document: str) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("readme", READMES)
def test_readme_of_a_component_is_short_and_says_what_it_has_to(readme: str) -> None:
    text = text_of(readme)
    is_room = readme.removesuffix("/README.md") in ROOMS
    assert text.count("\n") <= (ONE_SCREEN if is_room else TWO_SCREENS)
    assert "## Decisions" not in text, "decisions are in docs/decisions"
    if readme != "tests/README.md":
        assert "docs/decisions/" in text
        assert "## Invariants" in text
    if is_room:
        assert "## How it flows" in text
        assert "## Threads" in text


def is_prose(line: str) -> bool:
    return not line.startswith(("|", "    ", "![")) and "](" not in line


WRAPPED = [path for path in documents() if path.startswith(("docs/", "python/kvferry/vllm/")) or path in READMES]


@pytest.mark.parametrize("document", WRAPPED)
def test_prose_is_wrapped(document: str) -> None:
    assert not [line for line in text_of(document).splitlines() if is_prose(line) and len(line) > PROSE_WIDTH]


def test_every_decision_has_a_date_and_a_rejected_alternative() -> None:
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text()
    files = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert files
    for path in files:
        assert f"]({path.name})" in index, f"{path.name} is not in the index"
        entries = re.findall(r"^- (.*?)(?=^- |^#|^\n(?=[^ ])|\Z)", path.read_text(), re.MULTILINE | re.DOTALL)
        assert entries, path.name
        for entry in entries:
            assert re.match(r"2\d{3}-\d\d-\d\d( \(version \d+\))?\. \*\*", entry), f"{path.name}: {entry[:60]}"
            assert "Rejected" in entry, f"{path.name}: {entry[:60]}"


def test_guarantees_that_are_cited_are_defined() -> None:
    defined = set(re.findall(r"^\*\*(G\d+)\. ", text_of(ARCHITECTURE), re.MULTILINE))
    assert defined == {f"G{number}" for number in range(1, 13)}
    assert {f"| {name} " in text_of("tests/README.md") for name in defined} == {True}
    sources = [path for path in tracked() if path.endswith((".hpp", ".cpp", ".md", ".pml", ".py"))]
    cited = {
        name for path in sources for name in re.findall(r"(?<![\w.])(G\d{1,2})(?![\w.%])(?=[,;:)\s])", text_of(path))
    }
    assert cited <= defined


def test_nothing_is_cited_that_only_its_authors_have() -> None:
    outside = re.compile(r"\bdesign\.md|house-(?:plan|style)|(?<![\w/.])reference/[\w-]+\.md")
    sources = [path for path in tracked() if not path.startswith(("third_party/", "tests/fuzz/corpus/"))]
    citing = []
    for path in sources:
        if path == "tests/python/test_docs.py":
            continue
        try:
            text = text_of(path)
        except UnicodeDecodeError:
            continue
        if outside.search(text):
            citing.append(path)
    assert not citing


class Version(NamedTuple):
    """A row of the changelog's table."""

    what: str
    value: str
    path: str
    names: list[str]


def versions() -> list[Version]:
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| `([^`]+)` ([^|]+) \|", section("CHANGELOG.md", "Versions"), re.MULTILINE
    )
    return [Version(what, value, path, re.findall(r"`([^`]+)`", names)) for what, value, path, names in rows]


@pytest.mark.parametrize("version", versions(), ids=lambda version: version.what)
def test_version_in_the_changelog_is_that_of_the_code(version: Version) -> None:
    path = resolve(version.path, "CHANGELOG.md")
    assert path, version.path
    found = []
    for name in version.names:
        lines = re.findall(rf"^.*?{re.escape(name)}(.*)$", text_of(path), re.MULTILINE)
        assert lines, f"{path} has no {name}"
        found += re.findall(r"\d+", next(line for line in lines if re.search(r"\d", line)))
    assert found == re.findall(r"\d+", version.value)


def test_changelog_has_every_version_of_a_format() -> None:
    listed = {name for version in versions() for name in version.names}
    assert len(versions()) >= 7
    constants = re.compile(r"constexpr [\w:]+ (k\w*(?:Version|Schema))\b")
    # Those in gpu are the vendors'.
    sources = [
        path for path in tracked() if path.endswith((".hpp", ".cpp")) and not path.startswith(("tests/", "gpu/"))
    ]
    assert {name for path in sources for name in constants.findall(text_of(path))} <= listed


def test_picture_is_what_its_program_draws() -> None:
    program = ROOT / "docs/draw_architecture.py"
    spec = importlib.util.spec_from_file_location("draw_architecture", program)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PICTURE.read_text() == module.draw(), "run: python docs/draw_architecture.py"
    assert f"]({module.PICTURE.name})" in text_of(ARCHITECTURE)
    # Each type that is drawn is told of in the text.
    titles = {
        word for box in module.BOXES for word in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", " ".join((box.title, *box.lines)))
    }
    assert {word for word in titles if f"`{word}" not in text_of(ARCHITECTURE)} <= {"KV"}
