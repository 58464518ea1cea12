# SPDX-License-Identifier: Apache-2.0
"""What adding something touches, as the architecture says it, is what the tree says."""

import re

import pytest
from documents import ARCHITECTURE, NAMED, resolve, section, short_name, text_of, tracked


def adding(what: str) -> tuple[str, list[str]]:
    """The sentence that says what adding something touches, and the files and folders that it names."""
    items = re.findall(r"^- (.*?)(?=^- |\Z)", section(ARCHITECTURE, "How to add something"), re.MULTILINE | re.DOTALL)
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
    item, (folder, table, interface, *files) = adding("an eviction policy")
    assert "one new file" in item
    assert "one table" in item
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
    _, (core, skin, costs) = adding("a KV cache kind")
    assert core.startswith("connector/scheduler/")
    assert skin.startswith("python/kvferry/vllm/")
    kinds = {kind for path in with_sources([core]) for kind in re.findall(r'kind == "(\w+)"', text_of(path))}
    assert kinds >= {"all", "window", "chunk", "state"}
    assert kinds <= strings_in(skin)
    assert kinds <= strings_in(costs)
    found = {path for path in product_files() if lists(path, "window", "chunk", "state")}
    assert found <= with_sources([core, skin, costs])


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


# Of the worker, by the user's name.
WORKER_KEYS = (
    "numa_node",
    "pages",
    "pinned_piece_bytes",
    "pinning_bandwidth_limit",
    "staging_bytes",
    "load_staging_bytes",
    "max_in_flight_bytes",
    "store_bandwidth_limit",
    "copy_path",
    "transfer_timeout_s",
)


@pytest.mark.parametrize("key", WORKER_KEYS)
def test_key_of_a_worker_has_one_name_in_four_files(key: str) -> None:
    item, (validates, reads, *holds, explains) = adding("a worker's configuration key")
    assert "four files" in item
    assert re.search(rf"^    {key}: ", text_of(validates), re.MULTILINE), "no field of the configuration"
    assert f'"{key}"' in text_of(reads), "no row of the table"
    assert re.search(rf"^\| `{key}` \|", text_of(explains), re.MULTILINE), "no row for users"
    # The core's durations have a unit in their type.
    assert any(re.search(rf"\b{key.removesuffix('_s')}\b", text_of(path)) for path in holds), holds
