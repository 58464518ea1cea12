# SPDX-License-Identifier: Apache-2.0
"""keep_architecture() on containers made by nvcc, and on bytes that only look like one."""

import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from carry_vllm import ENTRY, FATBIN, FATBIN_MAGIC, keep_architecture

KERNEL = 'extern "C" __global__ void kernel(int* to) { *to = 42; }'


def container(*entries: tuple[int, int, bytes]) -> bytes:
    """Make a container of entries of a kind, for an architecture."""
    body = b""
    for kind, architecture, code in entries:
        header = ENTRY.pack(kind, 0x101, 64, len(code)).ljust(28, b"\0") + struct.pack("<I", architecture)
        body += header.ljust(64, b"\0") + code
    return FATBIN.pack(FATBIN_MAGIC, 1, FATBIN.size, len(body)) + body


class KeepArchitectureTest(unittest.TestCase):
    def test_other_architectures_and_ptx_are_cut_and_headers_stay(self) -> None:
        whole = container((2, 80, b"A" * 32), (2, 90, b"B" * 48), (1, 90, b"ptx."))
        library = bytearray(b"elf" + whole + b"tail")
        assert keep_architecture(library, 90) == {"kept": 48, "cut": 36}
        assert library == b"elf" + container((2, 80, bytes(32)), (2, 90, b"B" * 48), (1, 90, bytes(4))) + b"tail"

    def test_every_container_of_a_library_is_found(self) -> None:
        library = bytearray(container((2, 80, b"A" * 8)) + b"between" + container((2, 90, b"B" * 8)))
        assert keep_architecture(library, 90) == {"kept": 8, "cut": 8}

    def test_the_magic_alone_is_no_container(self) -> None:
        library = bytearray(struct.pack("<I", FATBIN_MAGIC) + b"\xff" * 40)
        before = bytes(library)
        assert not keep_architecture(library, 90)
        assert library == before

    def test_an_entry_that_does_not_fit_is_an_error(self) -> None:
        library = bytearray(container((2, 90, b"B" * 8)))
        struct.pack_into("<Q", library, FATBIN.size + 8, 4096)
        with self.assertRaisesRegex(ValueError, "does not fit"):  # noqa: PT027 - without pytest, as CTest runs it
            keep_architecture(library, 90)

    def test_what_nvcc_makes_is_read(self) -> None:
        if len(sys.argv) < 2:
            self.skipTest("there is no nvcc")
        with tempfile.TemporaryDirectory() as scratch:
            source, made = Path(scratch) / "kernel.cu", Path(scratch) / "kernel.fatbin"
            source.write_text(KERNEL)
            targets = [f"-gencode=arch=compute_{of},code=sm_{of}" for of in (80, 90)]
            command = [sys.argv[1], "-fatbin", *targets, "-o", str(made), str(source)]
            subprocess.run(command, check=True)
            library = bytearray(made.read_bytes())
            found = keep_architecture(library, 90)
            assert found["kept"] > 0
            assert found["cut"] > 0
            assert keep_architecture(bytearray(made.read_bytes()), 75)["kept"] == 0


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
