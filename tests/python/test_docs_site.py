# SPDX-License-Identifier: Apache-2.0
"""What the build of the documentation site complains of, and how it writes pages for MkDocs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, section
from kvferry.block_history import Reason

sys.path.append(str(ROOT / "tools"))
import docs_checks
from docs_pages import Pages, as_python_markdown, commonmark

MAIN = "int main() {}\n"


def collected(folder: Path, files: dict[str, str]) -> Pages:
    """Collect the pages of a repository that has these files."""
    root = folder / "repository"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    pages = Pages(folder / "pages", root)
    pages.collect()
    return pages


@pytest.mark.parametrize("link", ["b.md", "docs/none.md", "src/none.cpp", "src/main.cpp#L3", "../outside.md", "none/"])
def test_link_that_leads_nowhere_is_a_complaint(tmp_path: Path, link: str) -> None:
    pages = collected(tmp_path, {"a.md": f"see [it]({link})\n", "src/main.cpp": MAIN})
    (complaint,) = pages.complaints
    assert complaint.startswith(f"a.md: {link}: ")


def test_links_to_files_lead_to_pages_that_show_them(tmp_path: Path) -> None:
    text = (
        "[source](../src/main.cpp) [folder](../src) [page](b.md#it) [site](https://example.com)\n\n    [a](none.md)\n"
    )
    pages = collected(tmp_path, {"docs/a.md": text, "docs/b.md": "# It\n", "src/main.cpp": MAIN, "src/README.md": ""})
    assert pages.complaints == []
    written = (tmp_path / "pages/docs/a.md").read_text()
    assert "[source](../source/src/main.cpp.md)" in written
    assert "[folder](../src/README.md) [page](b.md#it) [site](https://example.com)" in written
    assert MAIN in (tmp_path / "pages/source/src/main.cpp.md").read_text()


def test_items_of_lists_are_indented_as_python_markdown_wants_them() -> None:
    text = "text\n- a\n  b\n\n      code\n- c\n  1. d\n     e\n"
    expected = "text\n\n- a\n    b\n\n        code\n\n- c\n\n    1. d\n        e\n"
    assert as_python_markdown(text.splitlines(), commonmark().parse(text)) == expected


def test_page_that_looks_different_on_github_is_a_complaint() -> None:
    assert docs_checks.compare("a.md", "- a\n- b\n", "<ul><li>a</li><li>b</li></ul>") == []
    assert docs_checks.compare("a.md", "- a\n- b\n", "<ul><li>a - b</li></ul>") == ["a.md: 1 <li>, and 2 on GitHub"]
    assert docs_checks.compare("a.md", "a", None) == ["a.md: MkDocs has not built it"]


@pytest.mark.parametrize(
    ("element", "complaint"),
    [
        ('<a href="none.html">', "none.html: there is no such page"),
        ('<a href="b.html#none">', "b.html#none: the page has no such anchor"),
        ('<a href="#none">', "#none: the page has no such anchor"),
        ('<img src="none.svg">', "none.svg: there is no such page"),
        ('<script src="https://example.com/a.js"></script>', "loads https://example.com/a.js"),
        ('<link rel="stylesheet" href="//example.com/a.css">', "loads //example.com/a.css"),
    ],
)
def test_built_page_with_a_dead_link_or_a_part_from_elsewhere_is_a_complaint(
    tmp_path: Path, element: str, complaint: str
) -> None:
    (tmp_path / "b.html").write_text('<h1 id="it">')
    (tmp_path / "a.html").write_text('<a href="b.html#it"><a href="https://example.com">')
    assert docs_checks.follow(tmp_path, Path("api")) == []
    (tmp_path / "a.html").write_text(element)
    assert [line.removeprefix("a.html: ") for line in docs_checks.follow(tmp_path, Path("api"))] == [complaint]


def test_style_sheet_that_loads_a_font_from_elsewhere_is_a_complaint(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a { src: url(https://example.com/font.woff2) }")
    assert docs_checks.follow(tmp_path, Path("api")) == ["a.css: loads https://example.com/font.woff2"]


def test_reasons_of_the_troubleshooting_page_are_those_of_kvferry_why() -> None:
    text = section("docs/troubleshooting.md", "Nothing, or little, is loaded")
    named = re.findall(r"^\| ((?:was|is|waited) [^|]+) \|", text, re.MULTILINE)
    assert len(named) > 5
    assert [words for words in named if not any(reason.value.startswith(words) for reason in Reason)] == []
