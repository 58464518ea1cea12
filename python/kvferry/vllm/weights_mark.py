# SPDX-License-Identifier: Apache-2.0
"""What tells a model's weights from other weights: the content of its files, read in part.

Reading all of a large model would take minutes. So of each file are read:

- all of it, if it has 1 MiB or less;
- of safetensors the header whole, tensors of 16 KiB or less whole, and of each larger tensor 1 to 16 spots of 1 KiB at
  places that depend on the header and on the tensor's name;
- of other large files the first and the last MiB (where PyTorch's archives have the checksums of all tensors), and 256
  spots of 4 KiB.

A model has 32,768 spots, or one for each tensor if it has more tensors. They touch 128 MiB at most for models of up to
32,768 tensors, 4 KiB for each tensor beyond. A training that changes the fraction `f` of a tensor's elements, wherever
they are, is seen in a tensor of two-byte elements with the probability 1 - (1 - f)^512 for each spot: 99.4 % for one
spot and f = 1 %, and next to certainly for 16 spots, or once several tensors have changed. What changes a few rows of a
large tensor only may not be seen so. Files that were not read whole are therefore told by their time of modification,
too, unless they lie in Hugging Face's cache, which names files by a hash of all of their content.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig

_WHOLE_BYTES = 1 << 20
_WHOLE_TENSOR_BYTES = 16 << 10
_SPOT_BYTES = 1 << 10
_MOST_SPOTS = 32_768
_MOST_SPOTS_OF_TENSOR = 16
_OTHER_SPOTS = 256
_OTHER_SPOT_BYTES = 4 << 10
# The format's own limit.
_MOST_HEADER_BYTES = 100_000_000
_MOST_FILES = 20_000
# Spots are read as much at a time as a disk likes.
_NUM_READERS = 16

# Formats of `load_format` whose weights are the files of the model's folder, or of the repository under its name.
_FROM_FOLDER = frozenset(
    {"auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "npcache", "pt", "mistral", "sharded_state"}
    | {"runai_streamer", "runai_streamer_sharded", "bitsandbytes", "gguf"}
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BLOB_NAME = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class WeightsMark(NamedTuple):
    """What tells weights from others.

    Attributes
    ----------
    facts
        Of JSON's types.
    why_unknown
        Why their content cannot be established, for a message; empty if it can.

    """

    facts: list[object]
    why_unknown: str = ""


def mark_of_weights(model: "ModelConfig", load: "LoadConfig") -> WeightsMark:
    """Mark the weights that an engine of this configuration computes with."""
    form = str(load.load_format)
    if form == "dummy":
        return WeightsMark(["made up", int(model.seed)])
    facts: list[object] = []
    if (files := _extra_files(model)) is not None:
        facts.append(files)
    if form == "tensorizer":
        return _of_tensorizer(load, facts)
    if form not in _FROM_FOLDER:
        return WeightsMark([], f"load_format {form!r} says nothing of the weights that it brings")
    place = str(getattr(model, "model_weights", "") or model.model)
    if _URL.match(place):
        return WeightsMark([], f"what lies at {place} may be replaced without another name")
    if Path(place).exists():
        return mark_of_path(Path(place), facts)
    commit = getattr(model.hf_config, "_commit_hash", None)
    if not commit:
        return WeightsMark([], f"no commit is known of {place}")
    return WeightsMark([*facts, "commit", str(commit)])


def mark_of_path(path: Path, facts: Iterable[object] = ()) -> WeightsMark:
    """Mark a file, or all files below a folder but hidden ones; `facts` come first."""
    try:
        files = dict(_files_below(path))
        plans = {name: _plan_of(file) for name, file in files.items()}
        num_tensors = sum(len(plan.tensors) for plan in plans.values())
        spots = max(1, min(_MOST_SPOTS_OF_TENSOR, _MOST_SPOTS // max(1, num_tensors)))
        with ThreadPoolExecutor(_NUM_READERS) as readers:
            marks = [[name, *plan.mark(spots, readers)] for name, plan in plans.items()]
    except (OSError, ValueError) as error:
        return WeightsMark([], f"the files of {path} cannot be read: {error}")
    if not marks:
        return WeightsMark([], f"there is no file in {path}")
    return WeightsMark([*facts, marks])


def _extra_files(model: "ModelConfig") -> list[object] | None:
    """Files beside the model's that say how it computes."""
    multimodal = model.multimodal_config
    paths = [model.hf_config_path, getattr(multimodal, "mm_encoder_fp8_scale_path", None)]
    marks = [list(mark_of_path(Path(path))) for path in paths if path and Path(path).exists()]
    return list(marks) or None


def _of_tensorizer(load: "LoadConfig", facts: list[object]) -> WeightsMark:
    extra = load.model_loader_extra_config
    given = extra if isinstance(extra, Mapping) else vars(extra)
    places = [str(given[key]) for key in ("tensorizer_uri", "tensorizer_dir") if given.get(key)]
    for place in places:
        if not Path(place).exists():
            return WeightsMark([], f"what lies at {place} may be replaced without another name")
    if not places:
        return WeightsMark([], "load_format 'tensorizer' has no tensorizer_uri that is a file")
    for place in places:
        mark = mark_of_path(Path(place), facts)
        if mark.why_unknown:
            return mark
        facts = mark.facts
    return WeightsMark(facts)


def _files_below(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield path.name, path
        return
    seen: set[tuple[int, int]] = set()
    num_files = 0
    for folder, folders, files in os.walk(path, followlinks=True, onerror=_raise):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(folder, name)
            if name.startswith(".") or not file.is_file():
                continue
            num_files += 1
            if num_files > _MOST_FILES:
                raise ValueError(f"there are more than {_MOST_FILES}")
            yield str(file.relative_to(path)), file


def _raise(error: OSError) -> None:
    raise error


class _Plan(NamedTuple):
    """What is read of a file beside `read`, which has been."""

    file: Path
    read: list[object]
    seed: bytes = b""
    tensors: tuple[tuple[str, int, int], ...] = ()
    """Name, first byte, bytes."""
    other_bytes: int = 0

    def mark(self, spots_of_tensor: int, readers: ThreadPoolExecutor) -> list[object]:
        if not self.tensors and not self.other_bytes:
            return self.read
        spots = list(self._spots(spots_of_tensor))
        descriptor = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            size = -(-len(spots) // _NUM_READERS)
            parts = [spots[at : at + size] for at in range(0, len(spots), size)]
            found = b"".join(readers.map(lambda part: _digest_of(descriptor, part), parts))
        finally:
            os.close(descriptor)
        return [*self.read, hashlib.sha256(found).hexdigest()]

    def _spots(self, spots_of_tensor: int) -> Iterator[tuple[int, int]]:
        if self.other_bytes:
            for i in range(_OTHER_SPOTS):
                yield self._place(f"{i}", 0, self.other_bytes, _OTHER_SPOT_BYTES), _OTHER_SPOT_BYTES
        for name, first, size in self.tensors:
            if size <= _WHOLE_TENSOR_BYTES:
                yield first, size
                continue
            # One in each part, so that they do not gather.
            part = size // spots_of_tensor
            for i in range(spots_of_tensor):
                yield self._place(f"{i} {name}", first + i * part, part, _SPOT_BYTES), _SPOT_BYTES

    def _place(self, what: str, first: int, size: int, length: int) -> int:
        drawn = hashlib.blake2b(what.encode("utf-8", "surrogateescape"), key=self.seed, digest_size=8).digest()
        return first + int.from_bytes(drawn, "little") % max(1, size - length + 1)


def _digest_of(descriptor: int, spots: list[tuple[int, int]]) -> bytes:
    digest = hashlib.sha256()
    for first, size in spots:
        digest.update(os.pread(descriptor, size, first))
    return digest.digest()


def _plan_of(file: Path) -> _Plan:
    status = file.stat()
    if status.st_size <= _WHOLE_BYTES:
        return _Plan(file, [hashlib.sha256(file.read_bytes()).hexdigest()])
    content = _content_name(file)
    known: list[object] = [status.st_size, content if content is not None else status.st_mtime_ns]
    if file.suffix == ".safetensors":
        header = _safetensors_header(file)
        tensors = tuple(_tensors_of(json.loads(header), 8 + len(header)))
        return _Plan(file, [*known, hashlib.sha256(header).hexdigest()], hashlib.sha256(header).digest(), tensors)
    with file.open("rb") as opened:
        head = opened.read(_WHOLE_BYTES)
        opened.seek(-_WHOLE_BYTES, os.SEEK_END)
        ends = hashlib.sha256(head + opened.read())
    return _Plan(file, [*known, ends.hexdigest()], ends.digest(), other_bytes=status.st_size)


def _content_name(file: Path) -> str | None:
    """Return the hash of all of a file's content that Hugging Face's cache names it by."""
    real = file.resolve()
    return real.name if real.parent.name == "blobs" and _BLOB_NAME.fullmatch(real.name) else None


def _safetensors_header(file: Path) -> bytes:
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = opened.read(size) if size <= _MOST_HEADER_BYTES else b""
    if not header or len(header) != size:
        raise ValueError(f"{file} is no safetensors file: its header has {size} bytes")
    return header


def _tensors_of(header: object, base: int) -> Iterator[tuple[str, int, int]]:
    if not isinstance(header, dict):
        raise ValueError("the header of a safetensors file is no object")
    for name in sorted(header):
        if name == "__metadata__":
            continue
        try:
            begin, end = (int(offset) for offset in header[name]["data_offsets"])
        except (TypeError, KeyError) as error:
            raise ValueError(f"the header of a safetensors file has no offsets of {name!r}") from error
        if end > begin:
            yield name, base + begin, end - begin
