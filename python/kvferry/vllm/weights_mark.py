# SPDX-License-Identifier: Apache-2.0
"""Identifies a model's weights by the content of its files, of which a part is read.

Reading all of a large model would take minutes. So these parts of each file are read:

- all of a file of 1 MiB or less;
- of a safetensors file the header, tensors of 16 KiB or less, and 1 to 16 spots of 1 KiB of each larger tensor, at
  places that depend on the header and on the tensor's name;
- of any other large file the first and the last MiB (where PyTorch's archives have the checksums of all tensors), and
  256 spots of 4 KiB.

A model has 32,768 spots, or one for each tensor if it has more tensors. They touch 128 MiB at most for models of up to
32,768 tensors, and 4 KiB for each further tensor. If a training changes the fraction `f` of a tensor's two-byte
elements, anywhere, one spot shows it with the probability 1 - (1 - f)^512. That is 99.4 % for f = 1 %, and nearly 100 %
with 16 spots or several changed tensors. A change of only a few rows of a large tensor can be missed. So the
modification time of a file that was not read whole counts too, unless the file is in Hugging Face's cache, which names
files by a hash of their whole content.
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
# Spots are read in parallel, because disks serve that faster.
_NUM_READERS = 16

# Values of `load_format` whose weights are the files of the model's folder, or of the repository of its name.
_FROM_FOLDER = frozenset(
    {"auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "npcache", "pt", "mistral", "sharded_state"}
    | {"runai_streamer", "runai_streamer_sharded", "bitsandbytes", "gguf"}
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BLOB_NAME = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class WeightsMark(NamedTuple):
    """The identity of weights.

    Attributes
    ----------
    facts
        The facts that identify them, in JSON's types.
    why_unknown
        Why their content cannot be identified, for a message; empty if it can.

    """

    facts: list[object]
    why_unknown: str = ""


def mark_of_weights(model: "ModelConfig", load: "LoadConfig") -> WeightsMark:
    """Identify the weights with which an engine of this configuration computes."""
    form = str(load.load_format)
    if form == "dummy":
        return WeightsMark(["made up", int(model.seed)])
    facts: list[object] = []
    if (files := _extra_files(model)) is not None:
        facts.append(files)
    if form == "tensorizer":
        return _of_tensorizer(load, facts)
    if form not in _FROM_FOLDER:
        return WeightsMark([], f"load_format {form!r} does not identify the weights that it loads")
    place = str(getattr(model, "model_weights", "") or model.model)
    if _URL.match(place):
        return WeightsMark([], f"the content of {place} can change under the same name")
    if Path(place).exists():
        return mark_of_path(Path(place), facts)
    commit = _commit_of_repository(model)
    if not commit:
        return WeightsMark([], f"the commit of {place} is not known")
    return WeightsMark([*facts, "commit", commit])


def _commit_of_repository(model: "ModelConfig") -> str | None:
    """Return the commit of the repository with the weights, if vLLM knows it."""
    # From vLLM 0.33 on: a text equal to what the user asked for, with the commit that this was.
    if resolved := getattr(model.revision, "resolved", None):
        return str(resolved)
    if model.hf_config_path not in (None, model.model):
        return None  # The commit that the configuration tells is that of another repository.
    commit = getattr(model.hf_config, "_commit_hash", None)
    return str(commit) if commit else None


def mark_of_path(path: Path, facts: Iterable[object] = ()) -> WeightsMark:
    """Identify a file, or all files below a folder except hidden ones. `facts` come first in the result."""
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
    """Identify the other files on which the model's computation depends."""
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
            return WeightsMark([], f"the content of {place} can change under the same name")
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
                raise ValueError(f"there are more than {_MOST_FILES} files")
            yield str(file.relative_to(path)), file


def _raise(error: OSError) -> None:
    raise error


class _Plan(NamedTuple):
    """The parts of a file that remain to be read; `read` identifies those that have been read."""

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
            # One spot in each part of the tensor, so that the spots are spread over it.
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
    """Return the hash of a file's whole content by which Hugging Face's cache names it; None for other files."""
    real = file.resolve()
    return real.name if real.parent.name == "blobs" and _BLOB_NAME.fullmatch(real.name) else None


def _safetensors_header(file: Path) -> bytes:
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = opened.read(size) if size <= _MOST_HEADER_BYTES else b""
    if not header or len(header) != size:
        raise ValueError(f"{file} is not a safetensors file: its header has {size} bytes")
    return header


def _tensors_of(header: object, base: int) -> Iterator[tuple[str, int, int]]:
    if not isinstance(header, dict):
        raise ValueError("the header of a safetensors file is not an object")
    for name in sorted(header):
        if name == "__metadata__":
            continue
        try:
            begin, end = (int(offset) for offset in header[name]["data_offsets"])
        except (TypeError, KeyError) as error:
            raise ValueError(f"the header of a safetensors file has no offsets for {name!r}") from error
        if end > begin:
            yield name, base + begin, end - begin
