# SPDX-License-Identifier: Apache-2.0
"""Check the pages that MkDocs has built: they look as on GitHub, and no link is dead or needs a network."""

import posixpath
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from docs_pages import commonmark

# What a page consists of.
SHAPE = ("h1", "h2", "h3", "h4", "img", "li", "ol", "pre", "table", "td", "ul")
LOADED = {"img": "src", "link": "href", "script": "src", "iframe": "src", "source": "src"}
"""What a browser loads with a page, and by which attribute."""
ELSEWHERE = re.compile(r"(?:[a-z][a-z+.-]*:)?//|data:|mailto:|javascript:")
IMPORTED = re.compile(r"(?:@import\s+|url\()[\"']?((?:https?:)?//[^\"')]+)")


class Elements(HTMLParser):
    """Reads a page's elements.

    Attributes
    ----------
    counts
        How many of each kind the page has.
    links
        Where its links lead.
    loaded
        What a browser loads with it.
    anchors
        To what a link can lead within it.

    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        self.counts[tag] += 1
        known = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := known.get(name))}
        if tag == "a" and (link := known.get("href")):
            self.links.append(link)
        loaded = known.get(LOADED.get(tag, ""))
        # The address of the page itself is not loaded.
        if loaded and known.get("rel") != "canonical":
            self.loaded.append(loaded)


def compare(name: str, text: str, rendered: str | None) -> list[str]:
    """Return the elements by which a page that MkDocs rendered differs from what GitHub makes of its text."""
    if rendered is None:
        return [f"{name}: MkDocs has not built it"]
    theirs = Elements(commonmark().render(text)).counts
    ours = Elements(rendered).counts
    return [f"{name}: {ours[tag]} <{tag}>, and {theirs[tag]} on GitHub" for tag in SHAPE if ours[tag] != theirs[tag]]


def follow(site: Path, left_out: Path) -> list[str]:
    """Return the links in a site that lead nowhere, and what its pages load from elsewhere.

    Pages below `left_out` were made by another program; links to them are followed, and theirs are not.
    """
    paths = [path for path in sorted(site.rglob("*.html")) if left_out not in path.relative_to(site).parents]
    pages = {str(path.relative_to(site)): Elements(path.read_text()) for path in paths}
    found = []
    for name, page in pages.items():
        found += [f"{name}: loads {link}" for link in page.loaded if ELSEWHERE.match(link) and "data:" not in link]
        for link in (*page.links, *page.loaded):
            # 404.html is served for every path, so its links begin at the site's address.
            if ELSEWHERE.match(link) or name == "404.html":
                continue
            path, _, anchor = unquote(link).partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if not (site / target).is_file():
                found.append(f"{name}: {link}: there is no such page")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                found.append(f"{name}: {link}: the page has no such anchor")
    for sheet in site.rglob("*.css"):
        found += [f"{sheet.relative_to(site)}: loads {link}" for link in IMPORTED.findall(sheet.read_text())]
    return found
