# SPDX-License-Identifier: Apache-2.0
"""Build the documentation site into ``build/site``. Run it with the Python of ``build/docs/venv``.

``build_docs.py [--headers] [--junit FILE]``
    collects the pages, builds them with MkDocs, and checks what was built. ``--headers`` adds the reference of the C++
    headers, which Doxygen makes.
"""

import argparse
import ast
import logging
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docs_checks
import repository
from complaints_report import ComplaintsReport
from docs_pages import Pages
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.config.base import Config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import Abort
from mkdocs.plugins import BasePlugin
from repository import ROOT

PAGES = ROOT / "build/docs/pages"
SITE = ROOT / "build/site"
HEADERS = "api/cpp/files.html"
# Doxygen 1.9 says this of every specialisation of a class of the standard library.
NO_COMPLAINT = "Internal inconsistency: scope for class std::hash<"
PYTHON_API = re.compile(r"api/python/([\w.]+)\.md")


class Warnings(logging.Handler):
    """Keeps what MkDocs and its plugins warn of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        self.texts.append(record.getMessage())


class NoOptions(Config):
    """The options of `Keep`."""


class Keep(BasePlugin[NoOptions]):
    """A plugin of MkDocs that keeps each page, without what surrounds it."""

    def __init__(self) -> None:
        super().__init__()
        self.rendered: dict[str, str] = {}

    def on_page_content(self, html: str, *, page: Any, **_: Any) -> None:
        """Keep a page."""
        self.rendered[page.file.src_uri] = html


def entries_of(nav: Any) -> list[str]:
    """Return the pages of the navigation."""
    if isinstance(nav, str):
        return [nav]
    return [page for each in (nav.values() if isinstance(nav, dict) else nav) for page in entries_of(each)]


def without(nav: Any, left_out: str) -> Any:
    """Return the navigation without a page."""
    if isinstance(nav, list):
        return [without(each, left_out) for each in nav if not (isinstance(each, dict) and left_out in each.values())]
    return {name: without(each, left_out) for name, each in nav.items()} if isinstance(nav, dict) else nav


def exported(module: str) -> str:
    """Return the option by which mkdocstrings shows what a module takes from another one, and names as its own."""
    path = ROOT / "python" / module.replace(".", "/")
    sources = [source for source in (path / "__init__.py", path.with_suffix(".py")) if source.is_file()]
    for node in ast.parse(sources[0].read_text()).body if sources else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return f"    options:\n      members: {ast.unparse(node.value)}\n"
    return ""


class Site:
    """One build of the site; each step returns its complaints."""

    def __init__(self, has_headers: bool) -> None:
        self._has_headers = has_headers
        # MkDocs wants the folder to exist.
        shutil.rmtree(PAGES, ignore_errors=True)
        PAGES.mkdir(parents=True)
        self._config: MkDocsConfig = load_config(str(ROOT / "mkdocs.yml"))
        self._pages = Pages(PAGES)
        self._kept = Keep()

    def collect(self) -> list[str]:
        """Collect the pages; complain of links that lead nowhere."""
        self._pages.collect()
        for entry in entries_of(self._config.nav):
            if found := PYTHON_API.fullmatch(entry):
                page = PAGES / entry
                page.parent.mkdir(parents=True, exist_ok=True)
                page.write_text(f"# {found[1]}\n\n::: {found[1]}\n{exported(found[1])}")
        for sheet in self._config.extra_css:
            shutil.copy(ROOT / sheet, PAGES / sheet)
        return self._pages.complaints

    def read_headers(self) -> list[str]:
        """Make the reference of the C++ headers; complain of what Doxygen does not understand."""
        folder = PAGES / Path(HEADERS).parent
        folder.mkdir(parents=True)
        inputs = sorted(
            {name.partition("/include/")[0] + "/include" for name in repository.files() if "/include/" in name}
        )
        settings = (ROOT / "docs/Doxyfile").read_text()
        settings += f"INPUT = {' '.join(inputs)}\nSTRIP_FROM_PATH = {' '.join(inputs)}\n"
        settings += f"OUTPUT_DIRECTORY = {folder.parent}\nHTML_OUTPUT = {folder.name}\n"
        done = subprocess.run(["doxygen", "-"], cwd=ROOT, input=settings, capture_output=True, text=True, check=False)
        complaints = [line for line in done.stderr.splitlines() if NO_COMPLAINT not in line]
        return complaints + ([] if done.returncode == 0 else [f"doxygen: exit {done.returncode}"])

    def render(self) -> list[str]:
        """Build the pages with MkDocs; every warning is a complaint."""
        if not self._has_headers:
            self._config.nav = without(self._config.nav, HEADERS)
        self._config.plugins["keep"] = self._kept
        warnings = Warnings()
        logger = logging.getLogger("mkdocs")
        logger.addHandler(warnings)
        try:
            build(self._config)
        except Abort as error:
            return [*warnings.texts, str(error)]
        finally:
            logger.removeHandler(warnings)
        return warnings.texts

    def compare(self) -> list[str]:
        """Complain of pages whose lists, tables or code are not those that GitHub shows."""
        rendered = self._kept.rendered
        return [
            complaint
            for name in self._pages.written
            for complaint in docs_checks.compare(name, (ROOT / name).read_text(), rendered.get(name))
        ]

    def follow(self) -> list[str]:
        """Complain of links in the built pages that lead nowhere, or that need a network."""
        return docs_checks.follow(SITE, Path(HEADERS).parent)


def main() -> int:
    """Run the steps, each of which passes or fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--headers", action="store_true")
    parser.add_argument("--junit", type=Path)
    options = parser.parse_args()
    site = Site(options.headers)
    steps: dict[str, Callable[[], list[str]]] = {"collect": site.collect}
    if options.headers:
        steps["headers"] = site.read_headers
    steps |= {"render": site.render, "compare": site.compare, "follow": site.follow}

    report = ComplaintsReport("docs")
    for name, step in steps.items():
        began = time.time()
        complaints = step()
        report.add(name, complaints, time.time() - began)
    if options.junit:
        report.write(options.junit)
    if not report.num_failed:
        print(f"ready: {SITE.relative_to(ROOT)}/index.html")
    return 1 if report.num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
