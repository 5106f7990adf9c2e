"""Checks a folder of HTML pages: links, anchors and pictures lead somewhere, pictures have a text, and nothing is
loaded from another host."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "object": "data"}
"""Elements that load a file, and the attribute that names it. Also links to style sheets and icons."""


class Page(HTMLParser):
    """What a page links to and loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.without_text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes anchors, links and loaded files."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "modulepreload"):
            self.loaded.append(values["href"])
        if tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])
        if tag == "img" and not values.get("alt", "").strip():
            self.without_text.append(values.get("src", ""))


def check(site: Path) -> list[str]:
    """A line for each problem of the pages under `site`; empty if all is well."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    problems = []
    for path, page in pages.items():
        where = path.relative_to(site)
        problems += [f"{where}: picture {source} has no text" for source in page.without_text]
        for address in page.loaded:
            if urlsplit(address).scheme in ("http", "https") or address.startswith("//"):
                problems.append(f"{where}: loads {address} from another host")
        for address in {*page.links, *page.loaded}:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if to.is_dir():
                to = to / "index.html"
            if not to.is_file():
                problems.append(f"{where}: {address} leads to no file")
            elif parts.fragment and to in pages and unquote(parts.fragment) not in pages[to].anchors:
                problems.append(f"{where}: {address}: the page has no such anchor")
    return problems
