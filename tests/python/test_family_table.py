# SPDX-License-Identifier: Apache-2.0
"""The reference's table of model families says what vLLM plans for them."""

import re
from itertools import groupby
from types import FunctionType
from typing import Any

import pytest
from documents import section
from kvferry.vllm import preflight
from model_families import NEEDS_FAMILIES, families, plan
from test_model_families import ACCEPTED

REFERENCE = "python/kvferry/vllm/reference.md"
pytestmark = NEEDS_FAMILIES


def rows() -> dict[str, list[str]]:
    lines = section(REFERENCE, "Model families").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {name.strip("`"): others for name, *others in cells}


def seen(group: Any) -> str:
    """Layers, reach and tokens per block of a group, as the table has them."""
    reach, tokens = preflight.reach_of_group(group, num_drafts=0)
    kind = {"none": "left out", "window": f"window {tokens}", "chunk": f"chunk {tokens}"}.get(reach, reach)
    return f"{len(group.layer_names)} x {kind} of {group.kv_cache_spec.block_size}"


def shown(groups: list[Any]) -> str:
    each = [(text, sum(1 for _ in same)) for text, same in groupby(map(seen, groups))]
    return ", ".join(text if number == 1 else f"{number} groups of {text}" for text, number in each)


@pytest.mark.parametrize("name", rows())
def test_row_has_the_groups_that_vllm_plans(name: str) -> None:
    _, scheduler = plan(name)
    assert rows()[name][0] == shown(scheduler.kv_cache_groups)


def test_every_family_has_a_row() -> None:
    # The tests have some more, of kinds that these do not show.
    assert set(rows()) >= {name for name, make in families().FAMILIES.items() if isinstance(make, FunctionType)}


@pytest.mark.parametrize("name", rows())
def test_row_says_whether_the_family_is_accepted(name: str) -> None:
    _, since, tests = rows()[name]
    assert (name in ACCEPTED) == bool(re.fullmatch(r"0\.1\.0 \(\d{4}-\d\d-\d\d\)", since))
    assert name in ACCEPTED or since.startswith("not yet")
    assert tests
