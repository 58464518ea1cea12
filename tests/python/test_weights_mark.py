# SPDX-License-Identifier: Apache-2.0
"""Other weights are seen by what they hold, in whatever form they lie; equal ones are equal wherever they lie."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvferry.vllm import weights_mark
from kvferry.vllm.weights_mark import WeightsMark, mark_of_path, mark_of_weights

KIB, MIB = 1 << 10, 1 << 20
# Two bytes each: as of a training in bfloat16.
LARGE, SMALL = 3 * MIB, 512


def write_safetensors(file: Path, tensors: dict[str, bytes], **metadata: str) -> None:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, content in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [len(content) // 2], "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors.values()))


def content_of(seed: int, num_bytes: int) -> bytes:
    return random.Random(seed).randbytes(num_bytes)


TENSORS = {"embed": content_of(1, LARGE), "norm": content_of(2, SMALL), "q_proj": content_of(3, LARGE)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    write_safetensors(folder / "model-00001-of-00002.safetensors", TENSORS)
    write_safetensors(folder / "model-00002-of-00002.safetensors", {"lm_head": content_of(4, LARGE)})
    return folder


def mark(path: Path) -> WeightsMark:
    found = mark_of_path(path)
    assert found.why_unknown == ""
    return found


def with_equal_times(model: Path, change: Callable[[Path], None]) -> None:
    """Change files without another time or size, as in an image whose times are normalised."""
    before = {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in model.rglob("*") if file.is_file()}
    change(model)
    for file, (size, time) in before.items():
        os.utime(file, ns=(time, time))
        assert file.stat().st_size == size


def trained(content: bytes, fraction: float) -> bytes:
    """The tensor with some of its elements changed, wherever they are."""
    rng = random.Random(99)
    out = bytearray(content)
    num_elements = len(content) // 2
    for element in rng.sample(range(num_elements), max(1, int(fraction * num_elements))):
        out[2 * element] ^= 1
    return bytes(out)


def change_tensor(name: str, fraction: float) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        tensors = TENSORS | {name: trained(TENSORS[name], fraction)}
        write_safetensors(model / "model-00001-of-00002.safetensors", tensors)

    return change


def swap_large_tensors(model: Path) -> None:
    tensors = TENSORS | {"embed": TENSORS["q_proj"], "q_proj": TENSORS["embed"]}
    write_safetensors(model / "model-00001-of-00002.safetensors", tensors)


def change_configuration(model: Path) -> None:
    (model / "config.json").write_text("[]")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change_tensor("embed", 1.0), id="a large tensor"),
        pytest.param(change_tensor("norm", 0.001), id="one element of a small tensor"),
        pytest.param(change_tensor("q_proj", 0.01), id="one element in a hundred"),
        pytest.param(swap_large_tensors, id="two tensors swapped"),
        pytest.param(change_configuration, id="configuration"),
    ],
)
def test_other_weights_of_the_same_size_and_time_are_others(model: Path, change: Callable[[Path], None]) -> None:
    before = mark(model)
    assert mark(model) == before
    with_equal_times(model, change)
    assert mark(model) != before


def test_a_copy_of_the_same_time_is_the_same_wherever_it_lies(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(model, copy)  # with times
    assert mark(copy) == mark(model)


def test_what_is_not_read_whole_is_told_by_its_time_too(model: Path) -> None:
    # An edit of a few rows of a large tensor may lie between the spots.
    before = mark(model)
    os.utime(model / "config.json", ns=(1, 1))
    assert mark(model) == before, "it was read whole"
    os.utime(model / "model-00001-of-00002.safetensors", ns=(1, 1))
    assert mark(model) != before


@pytest.mark.parametrize("name", ["consolidated.safetensors", "sub/folder/model.safetensors"])
def test_mistrals_form_and_sub_folders_are_seen(tmp_path: Path, name: str) -> None:
    file = tmp_path / "model" / name
    file.parent.mkdir(parents=True)
    (tmp_path / "model" / "params.json").write_text('{"dim": 1}')
    write_safetensors(file, TENSORS)
    before = mark(tmp_path / "model")
    with_equal_times(tmp_path / "model", lambda _: write_safetensors(file, TENSORS | {"embed": content_of(7, LARGE)}))
    changed = mark(tmp_path / "model")
    assert changed != before
    (tmp_path / "model" / "params.json").write_text('{"dim": 2}')
    assert mark(tmp_path / "model") != changed


def test_files_of_other_forms_are_seen_by_spots(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    content = bytearray(content_of(1, 8 * MIB))
    file.write_bytes(content)
    before = mark(file)
    for first in (0, 3 * MIB, 8 * MIB - 1):
        other = bytearray(content)
        other[first : first + MIB] = content_of(2, len(other[first : first + MIB]))
        with_equal_times(tmp_path, lambda _, other=other: file.write_bytes(other))
        assert mark(file) != before, first


def test_hidden_folders_are_none_of_the_model(model: Path) -> None:
    before = mark(model)
    (model / ".cache").mkdir()
    (model / ".cache" / "download.metadata").write_text("of today")
    assert mark(model) == before


def test_links_into_the_cache_are_told_by_the_hash_in_their_name_and_not_by_their_time(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    blob = blobs / ("a" * 64)
    write_safetensors(blob, TENSORS)
    link = snapshot / "model.safetensors"
    link.symlink_to(blob)
    before = mark(snapshot)
    os.utime(blob, ns=(1, 1))
    assert mark(snapshot) == before
    other = blobs / ("b" * 64)
    shutil.copy2(blob, other)
    link.unlink()
    link.symlink_to(other)
    assert mark(snapshot) != before


def test_links_in_a_circle_end(model: Path) -> None:
    before = mark(model)
    (model / "again").symlink_to(model)
    assert mark(model) == before


def test_little_is_read_of_however_large_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Holes, so that it takes no room: 50,000 tensors of 1 MiB, as of a mixture of experts.
    num_tensors = 50_000
    offsets = {f"expert.{i}": {"data_offsets": [i * MIB, (i + 1) * MIB]} for i in range(num_tensors)}
    text = json.dumps(offsets).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(file, 8 + len(text) + num_tensors * MIB)
    read: list[tuple[int, int]] = []
    pread = os.pread

    def counting(descriptor: int, size: int, first: int) -> bytes:
        read.append((first, size))
        return pread(descriptor, size, first)

    monkeypatch.setattr(weights_mark.os, "pread", counting)
    mark(file)
    assert {(first - 8 - len(text)) // MIB for first, _ in read} == set(range(num_tensors)), "each tensor is looked at"
    assert sum(size for _, size in read) == num_tensors * KIB


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ((1 << 40).to_bytes(8, "little"), "is not a safetensors file"),
        ((4).to_bytes(8, "little") + b"[12]", "is not an object"),
        ((16).to_bytes(8, "little") + b'{"t": {"x": 12}}', "no offsets for 't'"),
        ((4).to_bytes(8, "little") + b"\xff\xff\xff\xff", "cannot be read"),
    ],
)
def test_what_is_damaged_is_unknown(tmp_path: Path, header: bytes, said: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(header)
    os.truncate(file, 2 * MIB)
    assert said in mark_of_path(file).why_unknown


def test_nothing_is_unknown(tmp_path: Path) -> None:
    assert "there is no file" in mark_of_path(tmp_path).why_unknown
    assert mark_of_path(tmp_path / "none").why_unknown


def configuration(**values: Any) -> Any:
    known = {
        "model": "some/model",
        "model_weights": "",
        "seed": 0,
        "hf_config": SimpleNamespace(_commit_hash=None),
        "hf_config_path": None,
        "revision": None,
        "multimodal_config": None,
    }
    return SimpleNamespace(**(known | values))


def load(form: str, **extra: Any) -> Any:
    return SimpleNamespace(load_format=form, model_loader_extra_config=extra)


def test_a_commit_tells_the_weights_of_a_repository() -> None:
    marks = [
        mark_of_weights(configuration(hf_config=SimpleNamespace(_commit_hash=commit)), load("auto"))
        for commit in ("a1", "a1", "b2")
    ]
    assert marks[0] == marks[1] != marks[2]
    assert not any(mark.why_unknown for mark in marks)


class Revision(str):
    """As huggingface_hub's ``ResolvedRevision``: what was asked for, and the commit that it was."""

    def __new__(cls, asked: str, resolved: str) -> "Revision":
        revision = super().__new__(cls, asked)
        revision.resolved = resolved  # type: ignore[attr-defined]
        return revision


def test_a_configuration_of_another_repository_does_not_tell_the_commit_of_the_weights() -> None:
    config = {"hf_config_path": "some/config", "hf_config": SimpleNamespace(_commit_hash="c1")}
    unknown = mark_of_weights(configuration(**config), load("auto"))
    assert "the commit of some/model is not known" in unknown.why_unknown
    marks = [
        mark_of_weights(configuration(**config, revision=Revision("main", commit)), load("auto"))
        for commit in ("a1", "a1", "b2")
    ]
    assert marks[0] == marks[1] != marks[2]
    assert not any(mark.why_unknown for mark in marks)


@pytest.mark.parametrize(
    ("values", "form", "extra", "said"),
    [
        ({}, "auto", {}, "the commit of some/model is not known"),
        ({"model_weights": "s3://bucket/model"}, "runai_streamer", {}, "the content of s3://bucket/model can change"),
        ({"model": "gs://bucket/model"}, "auto", {}, "the content of gs://bucket/model can change"),
        ({}, "tensorizer", {"tensorizer_uri": "s3://bucket/model.tensors"}, "model.tensors can change"),
        ({}, "tensorizer", {}, "no tensorizer_uri"),
        ({}, "ipc_cache", {}, "'ipc_cache' does not identify"),
        ({}, "somebodys_own", {}, "'somebodys_own' does not identify"),
    ],
)
def test_what_may_change_without_a_sign_is_unknown(
    values: dict[str, Any], form: str, extra: dict[str, Any], said: str
) -> None:
    assert said in mark_of_weights(configuration(**values), load(form, **extra)).why_unknown


def test_files_of_a_tensorizer_are_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "model.tensors"
    file.write_bytes(content_of(1, 100))
    first = mark_of_weights(configuration(), load("tensorizer", tensorizer_uri=str(file)))
    file.write_bytes(content_of(2, 100))
    second = mark_of_weights(configuration(), load("tensorizer", tensorizer_uri=str(file)))
    assert first.why_unknown == second.why_unknown == ""
    assert first != second


def test_weights_that_are_made_up_are_of_their_seed() -> None:
    assert mark_of_weights(configuration(seed=1), load("dummy")) == mark_of_weights(
        configuration(seed=1), load("dummy")
    )
    assert mark_of_weights(configuration(seed=1), load("dummy")) != mark_of_weights(
        configuration(seed=2), load("dummy")
    )


def test_a_file_of_scales_beside_the_model_counts(model: Path, tmp_path: Path) -> None:
    scales = tmp_path / "scales.json"
    marks = []
    for text in ("{}", "[]"):
        scales.write_text(text)
        multimodal = SimpleNamespace(mm_encoder_fp8_scale_path=str(scales))
        marks.append(mark_of_weights(configuration(model=str(model), multimodal_config=multimodal), load("auto")))
    assert marks[0] != marks[1]
