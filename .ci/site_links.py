"""Check a built site: every link leads to a file and an anchor that exist, and no page loads anything from a network.

python .ci/site_links.py build/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that a browser loads without being asked.
_LOADED = {"img": "src", "script": "src", "iframe": "src", "link": "href", "source": "src"}
_NOT_LOADED = {"canonical", "search", "index", "next", "prev", "author"}


class Page(HTMLParser):
    """The anchors, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        elif (link := given.get(_LOADED.get(tag, ""))) and given.get("rel") not in _NOT_LOADED:
            self.loaded.append(link)


def problems(site: Path) -> list[str]:
    """One line for each dead link, and for each file that a page loads from elsewhere."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site}: no pages"]
    found = []
    for path, page in pages.items():
        here = path.relative_to(site.resolve())
        for link in dict.fromkeys(page.links + page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    found.append(f"{here}: {link} is loaded from a network")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{here}: {link} leads to no file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{here}: {link} leads to no anchor")
    return found


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]))
    print("\n".join(lines) or f"{sys.argv[1]}: all links lead somewhere, and nothing is loaded from a network")
    sys.exit(bool(lines))
