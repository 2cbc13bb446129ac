"""Every page in a headless browser: nothing stands outside of it, and axe-core finds no fault. Run by `make test-pages`.

With SUREFOOT_SHOTS=FOLDER pictures of each page are kept there, to be looked at; SUREFOOT_PAGE=FILE names one more page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from test_pages import pages  # noqa: F401
from test_report import evaluated, labels, local, metrics, result, virtual  # noqa: F401

BROWSER = os.environ.get("SUREFOOT_BROWSER", "chromium")
AXE = Path(os.environ.get("SUREFOOT_AXE", ""))
WIDTHS_PX = (400, 900, 1400)
SCHEMES = ("light", "dark")
TIMEOUT_S = 600

HERE = Path(__file__).parent / "data" / "pages"


def around(page: str, width_px: int, height_px: int) -> str:
    """A page that has another one in it, as wide and as high."""
    html = (HERE / "around.html").read_text("utf-8")
    return html.replace("@page@", page).replace("@width@", str(width_px)).replace("@height@", str(height_px))


def in_scheme(html: str, scheme: str) -> str:
    """The page as a reader with that preference sees it."""
    wanted = "all" if scheme == "dark" else "not all"
    assert "@media (prefers-color-scheme: dark)" in html
    return html.replace("@media (prefers-color-scheme: dark)", f"@media {wanted}")


def run(*args: str) -> str:
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def looked_at(page: Path, width_px: int, scheme: str, folder: Path) -> dict[str, Any]:
    """What the browser says of a page at a width and in a scheme."""
    html = in_scheme(page.read_text("utf-8"), scheme)
    look = (HERE / "look.js").read_text("utf-8")
    script = f"<script>{AXE.read_text('utf-8')}</script><script>{look}</script></head>"
    (folder / "page.html").write_text(html.replace("</head>", script, 1), "utf-8")
    (folder / "around.html").write_text(around("page.html", width_px, 1200), "utf-8")
    data = f"--user-data-dir={folder / 'browser'}"
    # virtual time runs on while nothing is to be done: it is no waiting, and ends when the page has said what it found
    dom = run("--virtual-time-budget=120000", "--window-size=1500,1300", data, "--dump-dom", (folder / "around.html").as_uri())
    said = re.search(r'<pre id="found">(.+?)</pre>', dom, re.S)
    assert said is not None, "the page said nothing: is there a browser that runs scripts?"
    found: dict[str, Any] = json.loads(unescape(said[1]))
    if keep := os.environ.get("SUREFOOT_SHOTS"):
        (folder / "page.html").write_text(html, "utf-8")
        height = min(int(found["height"]) + 20, 12_000)
        (folder / "around.html").write_text(around("page.html", width_px, height), "utf-8")
        picture = Path(keep) / f"{page.stem if page.parent.name == 'given' else page.parent.name}-{width_px}-{scheme}.png"
        run(f"--window-size={max(width_px, 500)},{height}", data, f"--screenshot={picture}", (folder / "around.html").as_uri())
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width_px", WIDTHS_PX)
def test_nothing_is_outside_and_nothing_is_amiss(pages: dict[str, Path], width_px: int, scheme: str, tmp_path: Path) -> None:  # noqa: F811
    """At the width of a phone, a tablet and a screen, light and dark: every element inside the page, no fault that axe knows."""
    more = os.environ.get("SUREFOOT_PAGE")
    for name, path in {**pages, **({"given": Path(more)} if more else {})}.items():
        folder = tmp_path / name
        folder.mkdir()
        found = looked_at(path, width_px, scheme, folder)
        assert (name, found["outside"], found["axe"]) == (name, [], [])


def test_the_look_can_fail(tmp_path: Path) -> None:
    """A page with something outside, pale text and a picture without a name is not passed."""
    found = looked_at(HERE / "bad.html", 400, "light", tmp_path)
    assert any("the page is 2008 wide" in said for said in found["outside"])
    assert {"color-contrast", "image-alt", "html-has-lang"} <= {said.split(" ")[0] for said in found["axe"]}
