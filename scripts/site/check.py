#!/usr/bin/env python3
"""Faults of a built site: links that lead nowhere, what would be fetched from elsewhere, Markdown that was not understood.

scripts/site/check.py FOLDER    a line for each fault; exit code 1 where there is one
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes by which a browser fetches something without being asked.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "audio": "src", "video": "src", "link": "href"}
# Links of <link> that nothing is fetched for.
ONLY_SAID = {"canonical", "alternate", "prev", "next", "author", "license"}
VERBATIM = {"pre", "code", "script", "style"}
# Signs of Markdown in text that a reader sees.
UNREAD = re.compile(r"^\s*(?:[-*] \S|\d+\. \S|\|.*\|\s*$|#{2,} |```)|\*\*\w|\]\(", re.MULTILINE)


class Page(HTMLParser):
    """Ids, links, fetched things and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []
        self._verbatim = 0
        self._article = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self._verbatim += tag in VERBATIM
        self._article += tag == "article"
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if FETCHED.get(tag) in given and not (tag == "link" and given.get("rel", "") in ONLY_SAID):
            self.fetched.append(given[FETCHED[tag]])
        # What a tag begins with is no mark of a line: "1." in bold is a number.
        self.text.append("\n" if tag in ("p", "li", "td", "th", "br") else "\0")

    def handle_endtag(self, tag: str) -> None:
        self._verbatim -= tag in VERBATIM
        self._article -= tag == "article"

    def handle_data(self, data: str) -> None:
        if self._article and not self._verbatim:
            self.text.append(data)


def faults(site: Path) -> Iterator[str]:
    """A line for each fault of a site."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in (*page.links, *page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            if link.startswith("/"):
                # The page of a lost address cannot know where it stands, and a folder has none.
                if name.name != "404.html":
                    yield f"{name}: the link {link} begins at the root of a server"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{name}: the link {link} leads to no file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{name}: the link {link} leads to no heading"
        yield from (f"{name}: {what} is fetched from elsewhere" for what in page.fetched if urlsplit(what).netloc)
        for found in UNREAD.finditer("".join(page.text)):
            yield f"{name}: Markdown was not understood: {found[0].strip()[:60]!r}"
    for path in sorted(site.rglob("*.css")):
        for url in re.findall(r"url\(['\"]?((?:https?:)?//[^)'\"]+)", path.read_text("utf-8")):
            yield f"{path.relative_to(site)}: {url} is fetched from elsewhere"


def main(site: Path) -> int:
    found = list(faults(site.resolve()))
    for fault in found:
        print(f"surefoot: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
