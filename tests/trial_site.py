"""The built site in a headless browser, opened as files: the search answers, and no page is too wide. Run by `make test-pages`.

With SUREFOOT_SHOTS=FOLDER pictures are kept there, to be looked at.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from trial_pages import around, run

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "out" / "site"
# One page of each sort: the first, a glossary, tables, a long reference, figures, a study, a file of the repository.
PAGES = (
    "index.html",
    "ten-minutes.html",
    "words.html",
    "benchmarks.html",
    "node-config.html",
    "virtual-server.html",
    "studies/2026-11-25-schedulers.html",
    "repository/examples/node.toml.html",
)
HERE = Path(__file__).parent / "data" / "pages"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the site, which the tests write into."""
    assert (SITE / "index.html").is_file(), "out/site is not there: run make site"
    at = tmp_path_factory.mktemp("site") / "site"
    shutil.copytree(SITE, at)
    return at


def told(page: Path, script: str, width_px: int, folder: Path) -> str:
    """What a script of ours says of a page, in a browser that reaches no host and reads no other file."""
    whole = page.read_text("utf-8")
    page.write_text(whole.replace("</body>", f"<script>{script}</script></body>", 1), "utf-8")
    data = (f"--user-data-dir={folder / 'browser'}", "--host-resolver-rules=MAP * ~NOTFOUND")
    dom = run("--virtual-time-budget=30000", f"--window-size={width_px},1000", *data, "--dump-dom", page.as_uri())
    page.write_text(whole, "utf-8")
    said = re.search(r'<pre id="said">(.*?)</pre>', dom, re.DOTALL)
    assert said is not None, "the page said nothing"
    return said[1]


@pytest.mark.parametrize(("word", "page"), [("zswap", "cosmos.html"), ("RCliff", "words.html"), ("nosuchword", None)])
def test_the_search_answers_without_a_server(site: Path, word: str, page: str | None, tmp_path: Path) -> None:
    """A word that is typed into the search of a page that was opened as a file finds the pages that have it."""
    said = told(site / "index.html", (HERE / "search.js").read_text("utf-8").replace("@word@", word), 1400, tmp_path)
    found = [line.rsplit("/site/", 1)[1].partition("?")[0] for line in said.splitlines()]
    assert (page in found) if page else found == [], said


@pytest.mark.parametrize("scheme", ["default", "slate"])
@pytest.mark.parametrize("width_px", [400, 1400])
def test_no_page_is_wider_than_the_window(site: Path, width_px: int, scheme: str, tmp_path: Path) -> None:
    """At the width of a phone and of a screen no page scrolls sideways: a wide table or a long line does so by itself."""
    for name in PAGES:
        page = site / name
        whole = page.read_text("utf-8")
        look = (HERE / "wide.js").read_text("utf-8").replace("@scheme@", scheme)
        page.write_text(whole.replace("</body>", f"<script>{look}</script></body>", 1), "utf-8")
        frame = site / "around.html"
        frame.write_text(around(page.relative_to(site).as_posix(), width_px, 1200), "utf-8")
        data = (f"--user-data-dir={tmp_path / 'browser'}", "--host-resolver-rules=MAP * ~NOTFOUND")
        dom = run("--virtual-time-budget=8000", "--window-size=1500,1300", *data, "--dump-dom", frame.as_uri())
        if keep := os.environ.get("SUREFOOT_SHOTS"):
            picture = Path(keep) / f"site-{page.stem}-{width_px}-{scheme}.png"
            run(
                "--virtual-time-budget=8000",
                f"--window-size={max(width_px, 500)},1400",
                *data,
                f"--screenshot={picture}",
                frame.as_uri(),
            )
        page.write_text(whole, "utf-8")
        found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
        assert found is not None, name
        assert (name, found[1]) == (name, "0")
