# SPDX-License-Identifier: Apache-2.0
"""The words of a block are right or not there, whatever lies in the file."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvferry.vllm.block_words import BlockWords, WordsFile

HASHES = [bytes([number]) * 32 for number in range(1, 100)]
WORDS = BlockWords(HASHES[0], list(range(16)), (("lora", "of the day"), ("mm", "a picture", 3), None, b"\xff"))
FIRST = BlockWords(None, [2**32 - 1] * 16, None)


@pytest.fixture
def tier(tmp_path: Path) -> str:
    return str(tmp_path / "tier")


def files_of(tier: str) -> list[Path]:
    return list(Path(tier).parent.glob("tier.events-*"))


@pytest.fixture
def words(tier: str) -> Iterator[WordsFile]:
    words = WordsFile(tier, 16)
    yield words
    words.close(keep=False)


@pytest.mark.parametrize("written", [WORDS, FIRST])
def test_what_one_engine_wrote_another_one_reads(tier: str, words: WordsFile, written: BlockWords) -> None:
    words.write(1000, 2, HASHES[5], written)
    other = WordsFile(tier, 16)
    assert other.read(1000, 2, HASHES[5]) == written
    assert other.read(1000, 1, HASHES[5]) is None, "of another group"
    assert other.read(1000, 2, HASHES[6]) is None, "of another block"
    for slot in (0, 999, 1001, 10**6):
        assert other.read(slot, 2, HASHES[5]) is None
    words.write(1000, 2, HASHES[6], FIRST)
    assert other.read(1000, 2, HASHES[5]) is None
    assert other.read(1000, 2, HASHES[6]) == FIRST
    other.close(keep=False)


def test_what_does_not_fit_is_left_out(words: WordsFile) -> None:
    words.write(3, 0, HASHES[1], FIRST)
    words.write(3, 0, HASHES[2], WORDS._replace(extra_keys=("x" * 10_000,)))
    assert words.read(3, 0, HASHES[2]) is None
    assert words.read(3, 0, HASHES[1]) == FIRST


def test_blocks_of_another_size_have_a_file_of_their_own(tier: str, words: WordsFile) -> None:
    larger = WordsFile(tier, 512)
    words.write(1, 0, HASHES[1], FIRST)
    assert larger.read(1, 0, HASHES[1]) is None
    larger.write(1, 0, HASHES[2], BlockWords(None, [7] * 512, None))
    assert words.read(1, 0, HASHES[1]) == FIRST
    assert len(files_of(tier)) == 2
    larger.close(keep=False)
    assert len(files_of(tier)) == 1


def test_any_bytes_are_no_words_or_the_ones_that_were_written(tier: str, words: WordsFile) -> None:
    rng = random.Random(3)
    words.write(0, 0, HASHES[1], WORDS)
    [path] = files_of(tier)
    whole = path.read_bytes()
    num_read = 0
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.randrange(len(damaged) + 1)] if rng.random() < 0.3 else damaged)
        found = words.read(0, 0, HASHES[1])
        assert found in (None, WORDS)
        num_read += found is not None
    assert 0 < num_read < 3000


def test_the_last_one_removes_it_and_those_before_do_not(tier: str) -> None:
    first, second = WordsFile(tier, 16), WordsFile(tier, 16)
    first.close(keep=False)
    first.close(keep=False)
    assert len(files_of(tier)) == 1
    third = WordsFile(tier, 16)
    second.close(keep=True)
    third.write(0, 0, HASHES[1], FIRST)
    third.close(keep=True)
    [path] = files_of(tier)
    assert path.stat().st_mode & 0o777 == 0o600
    fourth = WordsFile(tier, 16)
    assert fourth.read(0, 0, HASHES[1]) == FIRST
    fourth.close(keep=False)
    assert files_of(tier) == []


def test_a_file_that_was_removed_is_made_anew(tier: str, words: WordsFile) -> None:
    [path] = files_of(tier)
    path.unlink()
    later = WordsFile(tier, 16)
    later.write(0, 0, HASHES[1], FIRST)
    words.close(keep=False)
    assert path.exists(), "it is the later one's"
    later.close(keep=False)


def test_a_full_disk_costs_a_line_and_no_engine(
    words: WordsFile, log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", no_room)
    for slot in range(3):
        words.write(slot, 0, HASHES[1], FIRST)
    assert words.read(0, 0, HASHES[1]) is None
    [line] = log_lines
    assert "No space left on device" in line
