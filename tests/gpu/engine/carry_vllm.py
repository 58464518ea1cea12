# SPDX-License-Identifier: Apache-2.0
"""Collect what a GPU machine without a network lacks to run vLLM with kvferry, if it has PyTorch for CUDA.

    python3 tests/gpu/engine/carry_vllm.py build/carried-engine --python 3.12 --architecture 90

The folder gets vLLM's Python files and the compiled kernels of one GPU architecture, wheels of the packages that vLLM
imports, pybind11's headers, and the libraries that kvferry is built with: about 50 MiB, in files that may travel one
after the other. vLLM's own CUDA wheel is 330 MB, with code for six architectures.

This runs in the repository's virtual environment, whose versions it takes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import lzma
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

VLLM = "0.32.0"
#: Compiled parts of vLLM that an engine with a dense model needs on a GPU.
LIBRARIES = ("vllm/_C_stable_libtorch.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so")
#: What `import vllm; vllm.LLM(...)` loads beside PyTorch and what usually comes with it (transformers, numpy).
PACKAGES = (
    "annotated-doc", "annotated-types", "anyio", "apache-tvm-ffi", "cachetools", "cbor2", "cloudpickle",
    "compressed-tensors", "dill", "dnspython", "email-validator", "fastapi", "googleapis-common-protos", "h11",
    "httpcore2", "httpx2", "idna", "jiter", "lark", "llguidance", "loguru", "msgspec", "openai", "opentelemetry-api",
    "opentelemetry-exporter-http-transport", "opentelemetry-exporter-otlp", "opentelemetry-exporter-otlp-common",
    "opentelemetry-exporter-otlp-proto-common", "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-exporter-otlp-proto-http", "opentelemetry-proto", "opentelemetry-sdk",
    "opentelemetry-semantic-conventions", "opentelemetry-semantic-conventions-ai", "oss-harmony",
    "partial-json-parser", "prometheus_client", "psutil", "py-cpuinfo", "pybase64", "pydantic", "pydantic-core",
    "pydantic-extra-types", "python-multipart", "pyzmq", "rich", "sniffio", "starlette", "tiktoken", "truststore",
    "typer", "typing-extensions", "typing-inspection", "xgrammar",
)  # fmt: skip
PLATFORMS = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
TEXTS = (".py", ".json", ".jinja", "METADATA", "entry_points.txt")
#: A container of device code in a library: magic, version, size of this header, size of the entries behind it. An entry
#: has its kind, version, size of its header, size, and at byte 28 the architecture (seen in nvcc 12.8 and 13.0).
FATBIN, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
FATBIN_MAGIC, MACHINE_CODE, ARCHITECTURE_AT = 0xBA55ED50, 2, 28


def keep_architecture(library: bytearray, architecture: int) -> Counter[str]:
    """Fill the device code of all other architectures with zeros.

    The driver looks an architecture up by the entries' headers, which stay. PTX goes too.

    Returns
    -------
    Counter
        Bytes that were ``kept`` and ``cut``.

    Raises
    ------
    ValueError
        A container is not built as expected.

    """
    bytes_of: Counter[str] = Counter()
    magic = struct.pack("<I", FATBIN_MAGIC)
    at = library.find(magic)
    while at >= 0:
        _, version, header_bytes, size = FATBIN.unpack_from(library, at)
        entry, end = at + FATBIN.size, at + FATBIN.size + size
        if version != 1 or header_bytes != FATBIN.size or end > len(library):
            at = library.find(magic, at + 1)  # The same four bytes by chance.
            continue
        while entry < end:
            kind, _, entry_header, entry_bytes = ENTRY.unpack_from(library, entry)
            (of,) = struct.unpack_from("<I", library, entry + ARCHITECTURE_AT)
            code, after = entry + entry_header, entry + entry_header + entry_bytes
            if entry_header < ARCHITECTURE_AT + 4 or after > end:
                raise ValueError(
                    f"an entry of a container at {at:#x} does not fit into it: {entry_header}, {entry_bytes}"
                )
            is_kept = kind == MACHINE_CODE and of == architecture
            bytes_of["kept" if is_kept else "cut"] += entry_bytes
            if not is_kept:
                library[code:after] = bytes(entry_bytes)
            entry = after
        at = library.find(magic, end)
    return bytes_of


def download(python: str, folder: Path) -> None:
    """Download wheels of PACKAGES for another Python, in the versions of this one."""
    folder.mkdir(parents=True)
    base = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    base += ["--python-version", python, "--implementation", "cp", "--dest", str(folder)]
    for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
        base += ["--abi", abi]
    for version in PLATFORMS:
        base += ["--platform", f"manylinux_{version}_x86_64"]
    base += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64", "--platform", "any"]
    for name in PACKAGES:
        subprocess.run([*base, f"{name}=={importlib.metadata.version(name)}"], check=True)


def carry_vllm(target: Path, architecture: int) -> None:
    """Put vLLM's Python files and the kernels of one architecture into `target`."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, f"vllm=={VLLM}"]
        subprocess.run(command, check=True)
        (file,) = Path(scratch).glob("vllm-*.whl")
        with zipfile.ZipFile(file) as wheel, tarfile.open(target / "vllm.tar.xz", "w:xz") as texts:
            for name in wheel.namelist():
                if name.endswith(TEXTS):
                    path = Path(wheel.extract(name, scratch))
                    texts.add(path, name)
            for name in LIBRARIES:
                library = bytearray(wheel.read(name))
                found = keep_architecture(library, architecture)
                if found["kept"] == 0:
                    raise SystemExit(f"{name} has no machine code for sm_{architecture}")
                (target / f"{Path(name).name}.xz").write_bytes(lzma.compress(bytes(library)))
                print(
                    f"{name}: {found['kept'] >> 20} MiB of device code kept, {found['cut'] >> 20} MiB cut", flush=True
                )


def main() -> None:
    """Collect everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the folder, which is replaced")
    parser.add_argument("--python", default="3.12", help="of the GPU machine (%(default)s)")
    parser.add_argument("--architecture", type=int, default=90, help="of the GPU (%(default)s)")
    options = parser.parse_args()
    # Here, so that the unit test of `keep_architecture` needs nothing else.
    import pybind11
    from carry import LIBRARIES as BUILD_LIBRARIES
    from carry import collect

    target = options.target.resolve()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for library in BUILD_LIBRARIES:
        if library.config_name in ("TBB", "hwloc"):
            collect(library, target)
    for part in ("include", "share"):
        shutil.copytree(Path(pybind11.__path__[0]) / part, target / "pybind11" / part)
    download(options.python, target / "wheels")
    carry_vllm(target, options.architecture)
    total = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {total / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
