# SPDX-License-Identifier: Apache-2.0
"""Collect the pages of the documentation site from the Markdown files of the repository.

The pages keep their paths, so links between them stay. A link to another file leads to a page that shows the file, or
to the README of a folder. A link that leads nowhere is a complaint.
"""

import posixpath
import re
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from repository import ROOT, files

SOURCES = "source"
"""The folder of the pages that show files, within the site."""
PICTURES = (".png", ".svg")
LANGUAGES = {
    ".cpp": "cpp", ".cu": "cpp", ".hpp": "cpp", ".json": "json", ".py": "python", ".pyi": "python", ".sh": "bash",
    ".toml": "toml", ".yaml": "yaml",
}  # fmt: skip
LINK = re.compile(r"\]\(([^)\s]+)\)")
MARKER = re.compile(r"(?:[-*+]|\d+[.)]) +")
# How far Python-Markdown wants what belongs to an item of a list.
INDENT = 4


def commonmark() -> MarkdownIt:
    """Return the parser that reads Markdown as GitHub does."""
    return MarkdownIt("commonmark").enable("table")


class Pages:
    """The pages of the site, as they are collected.

    Attributes
    ----------
    complaints
        Links that lead nowhere, a line each.
    written
        Paths of the pages that were Markdown files of the repository.

    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._folder = folder
        self._root = root
        self._files = files(root)
        self._folders = {parent for name in self._files for parent in parents(name)}
        self.written = [name for name in self._files if name.endswith(".md")]
        self.complaints: list[str] = []
        self._shown: set[str] = set()

    def collect(self) -> None:
        """Write every page, and the files to which the pages link."""
        for name in self.written:
            self._write(name, self._page(name, (self._root / name).read_text()))
        for name in sorted(self._shown):
            self._show(name)

    def _write(self, name: str, text: str | bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def _page(self, name: str, text: str) -> str:
        tokens = commonmark().parse(text)
        lines = text.splitlines()
        code = {line for token in tokens if token.type in ("fence", "code_block") for line in spanned(token)}
        for number, line in enumerate(lines):
            if number not in code:
                lines[number] = LINK.sub(lambda found: f"]({self._target(name, found[1])})", line)
        return as_python_markdown(lines, tokens)

    def _target(self, page: str, link: str) -> str:
        """Return where a link of a page leads in the site; note the file that it names."""
        path, _, anchor = link.partition("#")
        if "://" in link or not path:
            return link
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if name in self._folders and f"{name}/README.md" in self._files:
            name = f"{name}/README.md"
        if name not in self._files:
            self.complaints.append(f"{page}: {link}: there is no such file")
            return link
        if anchor and not name.endswith(".md"):
            self.complaints.append(f"{page}: {link}: only pages have anchors")
        if name.endswith(".md"):
            target = name
        else:
            self._shown.add(name)
            target = name if name.endswith(PICTURES) else f"{SOURCES}/{name}.md"
        return posixpath.relpath(target, posixpath.dirname(page) or ".") + (f"#{anchor}" if anchor else "")

    def _show(self, name: str) -> None:
        """Copy a picture, or write the page that shows a file."""
        if name.endswith(PICTURES):
            self._write(name, (self._root / name).read_bytes())
            return
        text = (self._root / name).read_text()
        fence = "`" * 5
        language = LANGUAGES.get(Path(name).suffix, "text")
        title = Path(name).name
        page = f"---\nsearch:\n  exclude: true\n---\n\n# {title}\n\n`{name}`\n\n{fence}{language}\n{text}{fence}\n"
        self._write(f"{SOURCES}/{name}.md", page)


def parents(name: str) -> list[str]:
    """Return the folders of a file, without the repository's own."""
    return [str(folder) for folder in Path(name).parents][:-1]


def spanned(token: Token) -> range:
    """Return the lines of a block."""
    return range(*token.map) if token.map else range(0)


def as_python_markdown(lines: list[str], tokens: list[Token]) -> str:
    """Write CommonMark for Python-Markdown, which MkDocs uses.

    That wants an indent of four in every list, and a blank line before a list, before a table, and after an item of
    several paragraphs.
    """
    indents = [0] * len(lines)
    blank_before = set()
    after_paragraphs = set()
    for token in tokens:
        span = spanned(token)
        if token.type == "list_item_open":
            if any(not lines[number].strip() for number in span[:-1]):
                after_paragraphs.add(span.stop)
            if span.start in after_paragraphs:
                blank_before.add(span.start)
            first = lines[span.start]
            marker = MARKER.search(first, len(first) - len(first.lstrip()))
            if marker is None:
                continue
            for number in span[1:]:
                line = lines[number]
                # A line further left continues a paragraph; Python-Markdown accepts that.
                if len(line) - len(line.lstrip()) >= marker.end():
                    indents[number] += INDENT - (marker.end() - marker.start())
        elif token.type in ("bullet_list_open", "ordered_list_open", "table_open"):
            blank_before.add(span.start)
    written: list[str] = []
    for number, line in enumerate(lines):
        if number in blank_before and written and written[-1].strip():
            written.append("")
        written.append(" " * max(indents[number], 0) + line if line.strip() else "")
    return "\n".join(written) + "\n"
