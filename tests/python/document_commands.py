# SPDX-License-Identifier: Apache-2.0
"""The commands that the documents tell a reader to type: in their blocks of code, and in the middle of their sentences.

The documents have indented blocks, which do not say that they are shell. So a part of a block, up to a blank line, is
shell if it begins with a program of `PROGRAMS`. Every other part has to be in `TEXTS`: then a command of a program that
nobody has thought of is not overlooked.
"""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from documents import documents, text_of
from markdown_it.token import Token

# Parsed as the documentation site parses them; `documents` has put the tools on the path.
from docs_pages import commonmark  # isort: skip

# Here commands are records of what gave a figure, of the past or of a rejected alternative, and name things as they
# were; FAILURES.md speaks of other programs' commands.
RECORDS = ("CHANGELOG.md", "bench/RESULTS.md", "docs/decisions/", "tests/FAILURES.md", "tests/gpu/reports/")

PROGRAMS = (
    r"\.", "apt-get", "cmake", "conda", "ctest", "curl", "docker", "export", "git", "kubectl", "kvferry",
    r"kvferry-[\w-]+", "lmcache", "make", "mkdir", "mooncake_master", "pip", "pixi", "pre-commit", "pytest",
    r"python3?", "redis-server", "spin", "ulimit", "vllm", r"[\w-]+\.(?:py|sh)", r"\w+_test",
    # Programs of this repository, by their paths.
    r"(?:\.venv/bin|build|examples|tests|tools)/\S+",
)  # fmt: skip
BEGIN = re.compile(rf"(?:[A-Z_]+=(?:'[^']*'|\"[^\"]*\"|\S*) )*(?:(?:\.venv/bin/)?(?:{'|'.join(PROGRAMS)}))(?=\s|$)")
PROMPT = "$ "

# How the other parts of the documents' blocks begin: pictures, what programs print, pieces of JSON and of Python.
TEXTS = (
    "The same prompts on two vLLM engines", "kvferry 0.1.0 ready: ", "60 s: ", "base < recorder ", "base     ",
    "docs     ", "client ──► proxy", "node       ", '"kv_connector', '"kv_transfer_params"', "llm.sleep(", "FileHead |",
    "scheduler process   ", "SchedulerEngine   ",
)  # fmt: skip
# What sentences call a program, or a way to do something, without an argument with which it could run.
NAMES = ("vllm serve", "docker pause", "lmcache bench l2")


class Command(NamedTuple):
    """A command of a document.

    Attributes
    ----------
    document, line
        Where it is.
    text
        The command: continued lines joined, without prompt and comments.
    output
        What the document shows below it; only after a prompt.

    """

    document: str
    line: int
    text: str
    output: str = ""

    @property
    def place(self) -> str:
        """The document and the line."""
        return f"{self.document}:{self.line}"


def pages() -> list[str]:
    """The documents that tell a reader what to type."""
    return [path for path in documents() if not path.startswith(RECORDS)]


def without_comment(line: str) -> str:
    """Return a line of shell up to its comment; quotes are those of this line alone."""
    quote = ""
    for at, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            # An apostrophe in a comment opens nothing: a quote that is not closed is no end of the comment either.
            quote = character
        elif character == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at].rstrip()
    return line.rstrip()


def is_complete(text: str) -> bool:
    """Whether a shell would not wait for more lines."""
    if text.endswith("\\"):
        return False
    found = re.search(r"<<-?\s*['\"]?(\w+)['\"]?", text)
    if found and found[1] not in text.splitlines()[1:]:
        return False
    try:
        shlex.split(text)
    except ValueError:
        return False
    return True


def joined(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the commands of lines of shell, each with the number of its first line."""
    begin, text = 0, ""
    for number, line in enumerate(lines):
        if not text:
            begin, text = number, without_comment(line)
        elif text.endswith("\\"):
            text = f"{text[:-1].rstrip()} {without_comment(line).lstrip()}"
        else:
            text = f"{text}\n{line.rstrip()}"
        if text and is_complete(text):
            yield begin, text
            text = ""
    if text:
        yield begin, text


def parts(block: Token) -> Iterator[tuple[int, list[str]]]:
    """Yield what blank lines divide a block into, each with the number of its first line."""
    assert block.map is not None
    first = block.map[0] + 1 + (block.type == "fence")
    lines: list[str] = []
    for number, line in enumerate([*block.content.splitlines(), ""]):
        if line.strip():
            lines.append(line)
        elif lines:
            yield first + number - len(lines), lines
            lines = []


def of_part(document: str, first: int, lines: list[str]) -> Iterator[Command]:
    """Yield the commands of a part of a block of code."""
    if lines[0].startswith(PROMPT):
        starts = [at for at, line in enumerate(lines) if line.startswith(PROMPT)]
        for at, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            text = without_comment(lines[at].removeprefix(PROMPT))
            yield Command(document, first + at, text, "\n".join(lines[at + 1 : end]))
    elif BEGIN.match(lines[0]) and not is_text(lines):
        for at, text in joined(lines):
            yield Command(document, first + at, text)


def is_text(lines: list[str]) -> bool:
    """Whether a part of a block is known to have no command."""
    return lines[0].lstrip().startswith(TEXTS)


def blocks_of(document: str) -> Iterator[Token]:
    """Yield the blocks of code."""
    yield from (token for token in commonmark().parse(text_of(document)) if token.type in ("fence", "code_block"))


def in_sentences(document: str) -> Iterator[Command]:
    """Yield what is written as code in sentences and tables and begins like a command: a program and an argument."""
    for token in commonmark().parse(text_of(document)):
        for child in token.children or ():
            text = child.content.strip().removeprefix(PROMPT)
            if child.type == "code_inline" and " " in text and BEGIN.match(text) and text not in NAMES:
                yield Command(document, (token.map or [0])[0] + 1, text)


@cache
def commands() -> tuple[Command, ...]:
    """The commands of all pages; a text that comes again is there once for each place."""
    found: list[Command] = []
    for document in pages():
        for block in blocks_of(document):
            for first, lines in parts(block):
                found += of_part(document, first, lines)
        found += in_sentences(document)
    return tuple(found)


@cache
def texts() -> dict[str, Command]:
    """Each command once, as it is written, and its first place."""
    found: dict[str, Command] = {}
    for command in commands():
        if command.text not in found or (command.output and not found[command.text].output):
            found[command.text] = command
    return found
