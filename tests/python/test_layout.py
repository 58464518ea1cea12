# SPDX-License-Identifier: Apache-2.0
"""Fragments hold a block's bytes, all of them and each once, in every layout that vLLM has."""

import ctypes

import pytest
import torch
from kvferry.errors import ConfigError
from kvferry.vllm.layout import Fragment, fragments_of_groups, fragments_of_layer, num_runs
from vllm.v1.kv_cache_layout import KVCacheLayout

NUM_BLOCKS = 5
HEADS, TOKENS, CONTENT = 2, 4, 6


def bytes_by_fragments(fragments: list[Fragment], block: int) -> list[int]:
    """The int32 numbers that a block's fragments hold."""
    raw = b"".join(ctypes.string_at(f.address + block * f.stride_bytes, f.num_bytes) for f in fragments)
    return torch.frombuffer(bytearray(raw), dtype=torch.int32).tolist()


def assert_covers(fragments: list[Fragment], blocks: list[torch.Tensor]) -> None:
    for block, content in enumerate(blocks):
        assert sorted(bytes_by_fragments(fragments, block)) == sorted(content.flatten().tolist())


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape)


def test_blocks_first_is_one_fragment() -> None:
    tensor = numbered(NUM_BLOCKS, HEADS, TOKENS, CONTENT)
    fragments = list(fragments_of_layer("l", tensor, NUM_BLOCKS))
    assert fragments == [Fragment(tensor.data_ptr(), HEADS * TOKENS * CONTENT * 4, HEADS * TOKENS * CONTENT * 4)]
    assert_covers(fragments, list(tensor))


def test_keys_and_values_apart_are_two_fragments() -> None:
    tensor = numbered(2, NUM_BLOCKS, TOKENS, HEADS, CONTENT)
    fragments = list(fragments_of_layer("l", tensor, NUM_BLOCKS))
    assert len(fragments) == 2
    assert_covers(fragments, [tensor[:, block] for block in range(NUM_BLOCKS)])


def test_kernel_blocks_side_by_side_are_one_fragment() -> None:
    tensor = numbered(NUM_BLOCKS * 4, HEADS, TOKENS, CONTENT)
    fragments = list(fragments_of_layer("l", tensor, NUM_BLOCKS))
    assert len(fragments) == 1
    assert_covers(fragments, [tensor[4 * block : 4 * block + 4] for block in range(NUM_BLOCKS)])


@pytest.mark.parametrize("layout", list(KVCacheLayout))
def test_every_layout_of_the_engine_is_covered(layout: KVCacheLayout) -> None:
    logical = (3, NUM_BLOCKS, HEADS, TOKENS, CONTENT)
    order = layout.stride_order
    storage = numbered(*(logical[dim] for dim in order))
    view = storage.permute(*(order.index(dim) for dim in range(5)))
    names = [f"layer{i}" for i in range(3)]
    (fragments,) = fragments_of_groups([names], dict(zip(names, view, strict=True)), NUM_BLOCKS)
    heads_outside = order.index(2) < max(order.index(0), order.index(1))
    assert len(fragments) == 3 * (HEADS if heads_outside else 1)
    expected_runs = {"BLHNC": 1, "BLNHC": 1, "LBHNC": 3, "LBNHC": 3, "LHBNC": 3 * HEADS, "BHLNC": 3 * HEADS}
    assert num_runs(fragments) == expected_runs[layout.name]
    assert_covers(fragments, [view[:, block] for block in range(NUM_BLOCKS)])


def test_padding_behind_a_page_is_left_out() -> None:
    tensor = numbered(NUM_BLOCKS, 64)[:, : TOKENS * CONTENT].unflatten(1, (1, TOKENS, CONTENT))
    fragments = list(fragments_of_layer("l", tensor, NUM_BLOCKS))
    assert fragments == [Fragment(tensor.data_ptr(), 256, TOKENS * CONTENT * 4)]
    assert_covers(fragments, list(tensor))


def test_fragments_come_in_the_order_of_the_group() -> None:
    caches = {name: numbered(NUM_BLOCKS, 8) for name in ("a", "b")}
    (fragments,) = fragments_of_groups([["b", "a"]], caches, NUM_BLOCKS)
    assert [f.address for f in fragments] == [caches["b"].data_ptr(), caches["a"].data_ptr()]


def test_layer_that_shares_the_cache_of_a_registered_one_needs_no_fragment() -> None:
    tensor = numbered(NUM_BLOCKS, 8)
    (fragments,) = fragments_of_groups([["a"]], {"a": tensor, "sharing": tensor}, NUM_BLOCKS)
    assert len(fragments) == 1


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (numbered(NUM_BLOCKS + 1, 8), "no dimension counts the 5 blocks"),
        (numbered(3, NUM_BLOCKS, 8), "no dimension counts the 5 blocks"),
        (numbered(NUM_BLOCKS), "no dimension counts the 5 blocks"),
        (numbered(NUM_BLOCKS, 4, 8)[:, :, ::2], "the last dimension is not dense"),
        (numbered(NUM_BLOCKS, 8, 1).expand(NUM_BLOCKS, 8, 4), "the last dimension is not dense"),
        (numbered(1, 4, 8).expand(NUM_BLOCKS, 4, 8), "blocks overlap"),
        (numbered(64).as_strided((NUM_BLOCKS, 8), (4, 1)), "blocks overlap"),
    ],
)
def test_other_layouts_are_refused_with_layer_shape_and_strides(tensor: torch.Tensor, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        list(fragments_of_layer("layer7", tensor, NUM_BLOCKS))
    text = str(caught.value)
    assert "'layer7'" in text
    assert str(tuple(tensor.shape)) in text
    assert str(tensor.stride()) in text
    assert reason in text
    assert "without KvFerryConnector" in text


def test_missing_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match="layer 'b' was registered as NoneType"):
        fragments_of_groups([["a", "b"]], {"a": numbered(NUM_BLOCKS, 8)}, NUM_BLOCKS)


def test_layer_of_several_tensors_is_refused() -> None:
    with pytest.raises(ConfigError, match="layer 'a' was registered as list"):
        fragments_of_groups([["a"]], {"a": [numbered(NUM_BLOCKS, 8)]}, NUM_BLOCKS)


def test_layer_outside_the_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="layer 'b' is in no KV cache group"):
        fragments_of_groups([["a"]], {"a": numbered(NUM_BLOCKS, 8), "b": numbered(NUM_BLOCKS, 8)}, NUM_BLOCKS)


def test_two_layers_of_the_group_at_one_address_are_refused() -> None:
    tensor = numbered(NUM_BLOCKS, 8)
    with pytest.raises(ConfigError, match="'a' and 'b' have the same address"):
        fragments_of_groups([["a", "b"]], {"a": tensor, "b": tensor}, NUM_BLOCKS)


def test_groups_on_the_same_pages_have_their_fragments_in_the_same_order() -> None:
    pages = [numbered(NUM_BLOCKS, 8) for _ in range(2)]
    caches = {"full0": pages[1], "window0": pages[0], "window1": pages[1], "other0": pages[1], "other1": pages[0]}
    groups = [["full0"], ["window0", "window1"], ["other0", "other1"]]
    narrow, *wide = fragments_of_groups(groups, caches, NUM_BLOCKS)
    assert [f.address for f in narrow] == [pages[1].data_ptr()]
    for fragments in wide:
        assert [f.address for f in fragments] == [page.data_ptr() for page in pages]


def test_state_is_as_long_as_it_is_on_pages_of_others() -> None:
    page = numbered(NUM_BLOCKS, 8)
    # As vLLM registers it: bytes, one head, one state for all tokens of a block.
    state = page.view(torch.int8).as_strided((NUM_BLOCKS, 1, 1, 12), (32, 32, 12, 1))
    full, recurrent = fragments_of_groups([["full"], ["state"]], {"full": page, "state": state}, NUM_BLOCKS)
    assert full == [Fragment(page.data_ptr(), 32, 32)]
    assert recurrent == [Fragment(page.data_ptr(), 32, 12)]
    assert_covers(recurrent, list(page[:, :3]))
