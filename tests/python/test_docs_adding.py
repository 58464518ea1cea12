# SPDX-License-Identifier: Apache-2.0
"""What adding something touches, as the architecture says it, is what the tree says."""

import ast
import re
from functools import cache

import pytest
from documents import ARCHITECTURE, NAMED, resolve, section, short_name, text_of, tracked


def adding(what: str) -> tuple[str, list[str]]:
    """The sentence that says what adding something touches, and the files and folders that it names."""
    items = re.findall(
        r"^- (.*?)(?=^- |^\n|\Z)", section(ARCHITECTURE, "How to add something"), re.MULTILINE | re.DOTALL
    )
    item = next(item for item in items if item.startswith(f"Adding {what} touches"))
    paths = [resolve(name, ARCHITECTURE) for name, _ in NAMED.findall(item)]
    assert None not in paths, item
    return item, [path for path in paths if path]


def strings_in(path: str) -> set[str]:
    return set(re.findall(r"[\"']([\w-]+)[\"']", text_of(path)))


def product_files(*excluded: str) -> list[str]:
    """Sources of the product, without measurements, the doctor, generated stubs and what is excluded."""
    apart = ("tests/", "tools/", "bench/", "examples/", "docs/", "python/kvferry/doctor/", "third_party/", *excluded)
    return [path for path in tracked() if path.endswith((".hpp", ".cpp", ".py")) and not path.startswith(apart)]


def lists(path: str, *entries: str) -> bool:
    """Whether a source has each of the entries: as a text, or as an enumerator or constant."""
    # In C++ single quotes are part of a text for people.
    quote = "[\"']" if path.endswith(".py") else '"'
    text = text_of(path)
    return all(re.search(rf"{quote}{entry}{quote}|\bk{camel(entry)}(?:Rule)?\b", text) for entry in entries)


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def with_sources(paths: list[str]) -> set[str]:
    """Return headers with the sources that belong to them."""
    stems = {short_name(path).rsplit(".", 1)[0] for path in paths}
    return {path for path in tracked() if short_name(path).rsplit(".", 1)[0] in stems}


def test_eviction_policies_have_one_table_and_a_file_each_for_what_they_remember() -> None:
    item, (folder, table, interface, *files) = adding("an eviction policy with memory")
    assert "one new file" in item
    assert "one table" in item
    assert adding("an eviction policy without memory")[1] == [table]
    rules = re.findall(r"PolicyRule\{\s*\"(\w+)\"", text_of(table))
    names = re.findall(r"EvictionRow\{[\w:]+, \"(\w+)\"", text_of(table))
    assert len(rules) >= 4
    assert {"adaptive", "lru", "arc"} <= set(names)
    found = [path for path in product_files() if lists(path, *names) or lists(path, *rules)]
    assert found == [table]
    makers = set(re.findall(r"&(make_\w+)", text_of(table)))
    sources = [path for path in product_files() if path.endswith(".cpp")]
    made = {path for path in sources if any(f" {make}(std::uint32_t max_slots) {{" in text_of(path) for make in makers)}
    assert made == set(files)
    assert all(path.startswith(folder) for path in (table, interface, *files))


def test_files_of_kv_cache_kinds_have_all_of_them() -> None:
    _, (core, skin, costs) = adding("a KV cache kind that is described by its reach")
    assert core.startswith("connector/scheduler/")
    assert skin.startswith("python/kvferry/vllm/")
    kinds = {kind for path in with_sources([core]) for kind in re.findall(r'kind == "(\w+)"', text_of(path))}
    assert kinds >= {"all", "window", "chunk", "state", "states"}
    assert kinds <= strings_in(skin)
    assert kinds <= strings_in(costs)
    found = {path for path in product_files() if lists(path, "window", "chunk", "state")}
    assert found <= with_sources([core, skin, costs])


# What those places ask that treat groups with states apart.
ASKS_FOR_STATES = re.compile(
    r"\b(?:has_states|is_state|is_told|settles_in_step|may_leave_out|on_state|takes_states|MambaSpec)\b|\"state\"(?!\))"
)


def test_files_that_know_of_states_are_those_that_the_architecture_names() -> None:
    _, named = adding("a KV cache kind that needs information from the engine")
    assert with_sources(adding("a KV cache kind that is described by its reach")[1]) <= with_sources(named)
    found = [path for path in product_files() if ASKS_FOR_STATES.search(text_of(path))]
    assert {path for path in named if not with_sources([path]) & set(found)} == set()
    assert set(found) <= with_sources(named)


def test_places_of_back_ends_are_those_that_the_architecture_names() -> None:
    item, (folder, table, *places) = adding("a back end")
    numbers = ("no", "one", "two", "three", "four", "five", "six")
    assert f"{numbers[1 + len(places)]} places" in item
    source = next(path for path in with_sources([table]) if path.endswith(".cpp"))
    names = re.findall(r"BackendRow\{[\w:]+, \"(\w+)\"", text_of(source))
    assert {"host", "cuda", "hip"} <= set(names)
    assert all(any(path.startswith(f"{folder}{name}/") for path in tracked()) for name in names)
    assert lists(table, *names)
    for place in places:
        # The host is no driver: it has an entry of its own there.
        assert lists(place, *(set(names) - ({"host"} if place.startswith("tests/") else set()))), place
    own = tuple(f"{folder}{part}/" for part in (*names, "driver"))
    found = {path for path in product_files(*own) if lists(path, *names)}
    assert found <= with_sources([table, *places])


@cache
def sides_of_keys() -> dict[str, set[str]]:
    """Return the user's keys, each with the sides that are told its value as it is."""
    tree = ast.parse(text_of("python/kvferry/config.py"))
    (config,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "KvFerryConfig"]
    return {
        field.target.id: {arg.id for arg in field.value.args if isinstance(arg, ast.Name)} & {"WORKER", "SCHEDULER"}
        for field in config.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(field.value, ast.Call)
    }


def keys_told_to(side: str) -> list[str]:
    return [key for key, sides in sides_of_keys().items() if side in sides]


def row_of(key: str, table: str) -> str | None:
    """The row of a binding's table that reads a key."""
    found = re.search(rf"^    \{{\"{key}\", (.*?)\}},$", text_of(table), re.MULTILINE | re.DOTALL)
    return found[1] if found else None


KEYS_WORKED_OUT = [
    key
    for key, sides in sides_of_keys().items()
    if not sides and row_of(key, "python/src/py_worker_options.cpp") is not None
]
KEYS_OF_PYTHON = [key for key, sides in sides_of_keys().items() if not sides and key not in KEYS_WORKED_OUT]


def check_key(key: str, files: list[str]) -> None:
    """Hold a key of the core against the files of its kind."""
    validates, reads, *holds, explains = files
    assert re.search(rf"^    {key}: ", text_of(validates), re.MULTILINE), "no field of the configuration"
    row = row_of(key, reads)
    assert row, "no row of the table"
    structure, field = re.findall(r"&(\w+)::(\w+)", row)[-1] if "&" in row else ("", key)
    declared = [path for path in holds if re.search(rf"\bstruct {structure} ", text_of(path))]
    assert any(re.search(rf"\b{field}\b", text_of(path)) for path in declared), holds
    assert re.search(rf"^\| `{key}` \|", text_of(explains), re.MULTILINE), "no row for users"


@pytest.mark.parametrize("key", keys_told_to("WORKER"))
def test_key_of_a_worker_is_in_four_files(key: str) -> None:
    item, files = adding("a worker's configuration key")
    assert "four files" in item
    check_key(key, files)


@pytest.mark.parametrize("key", keys_told_to("SCHEDULER"))
def test_key_of_a_scheduler_is_in_four_files(key: str) -> None:
    item, files = adding("a scheduler's configuration key")
    assert "four files" in item
    check_key(key, files)


@pytest.mark.parametrize("key", KEYS_WORKED_OUT)
def test_key_of_a_worker_that_python_works_out_is_passed_by_the_worker_side(key: str) -> None:
    item, (passes,) = adding("a worker's key that Python works out")
    assert "five files" in item
    check_key(key, adding("a worker's configuration key")[1])
    assert re.search(rf"^                {key}=", text_of(passes), re.MULTILINE)


@pytest.mark.parametrize("key", KEYS_OF_PYTHON)
def test_key_that_python_alone_reads_is_in_two_files_and_where_it_acts(key: str) -> None:
    item, (validates, explains, folder) = adding("a key that Python alone reads")
    assert "two files" in item
    assert not any(row_of(key, f"python/src/py_{side}_options.cpp") for side in ("worker", "scheduler"))
    assert re.search(rf"^\| `{key}` \|", text_of(explains), re.MULTILINE), "no row for users"
    acting = [path for path in product_files() if path.startswith(folder)]
    assert any(re.search(rf"\b{key}\b", text_of(path)) for path in acting) or f"self.{key}" in text_of(validates)


def test_every_kind_of_key_has_some() -> None:
    assert {"copy_path", "pages"} <= set(keys_told_to("WORKER"))
    assert {"eviction", "retention"} <= set(keys_told_to("SCHEDULER"))
    assert {"staging_bytes", "load_staging_bytes"} <= set(KEYS_WORKED_OUT)
    assert {"cpu_bytes_to_use", "share_loads"} <= set(KEYS_OF_PYTHON)
