"""Every page: readable by anybody, whole at any width, honest about of how much each figure is, and found from one index."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import pytest
import test_eval_report as evals
import test_harvest_report as harvests
from matplotlib import rc_context
from test_report import evaluated, labels, local, metrics, result, virtual  # noqa: F401
from test_training_report import CAMPAIGN, Training

from collection import card_plots, charts
from collection import report as demo_report
from pipelines import eval_report, harvest_report, report, site
from pipelines.pages import drawing, eval_rows, page, policy_charts, policy_words

ROOT = Path(__file__).resolve().parents[1]
CSS = (ROOT / "pipelines/templates/report.css").read_text("utf-8")

# ---------------------------------------------------------------- what stands on a page


class Outline(HTMLParser):
    """Elements with their attributes and text, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self.open: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        text: list[str] = []
        self.elements.append((tag, {k: v or "" for k, v in attrs}, text))
        if tag not in ("meta", "path", "use", "rect", "image", "br", "circle"):
            self.open.append(text)

    def handle_endtag(self, tag: str) -> None:
        if self.open and tag not in ("meta", "path", "use", "rect", "image", "br", "circle"):
            self.open.pop()

    def handle_data(self, data: str) -> None:
        for text in self.open:
            text.append(data)

    def all(self, tag: str) -> list[tuple[dict[str, str], str]]:
        return [(attrs, " ".join("".join(text).split())) for t, attrs, text in self.elements if t == tag]


def faults(html: str) -> list[str]:
    """What a reader without colours, mouse, wide screen or network would miss on a page."""
    outline = Outline()
    outline.feed(html)
    found = []
    (root, _), *_ = outline.all("html")
    found += [] if root.get("lang") else ["no language"]
    found += [] if len(outline.all("h1")) == 1 and len(outline.all("title")) == 1 else ["not one title"]
    levels = [int(tag[1]) for tag, _, _ in outline.elements if re.fullmatch("h[1-6]", tag)]
    found += [f"a heading of level {b} after {a}" for a, b in itertools.pairwise(levels) if b > a + 1]
    for attrs, _ in outline.all("svg"):
        found += [] if attrs.get("role") == "img" and attrs.get("aria-label") else ["a drawing without a name"]
        found += [] if "viewbox" in attrs and "max-width" in attrs.get("style", "") else ["a drawing that cannot shrink"]
    found += [
        f"a figure that does not say of how many it is: {text[:60]!r}"
        for _, text in outline.all("figcaption")
        if not re.match(r".*?\d", text)
    ]
    found += [] if len(outline.all("figcaption")) == len(outline.all("figure")) else ["a figure without a caption"]
    ids = Counter(attrs["id"] for _, attrs, _ in outline.elements if "id" in attrs)
    found += [f"two of one id: {name}" for name, n in ids.items() if n > 1]
    for attrs, text in outline.all("a"):
        href = attrs.get("href", "")
        found += [] if text else ["a link without a name"]
        found += [] if not href.startswith("#") or href[1:] in ids else [f"a link to nowhere: {href}"]
    regions = [a.get("aria-label", "") for a, _ in outline.all("div") if "scroll" in a.get("class", "").split()]
    found += [f"two regions of one name: {name!r}" for name, n in Counter(regions).items() if n > 1 or not name]
    scrolled = [a for a, _ in outline.all("div") if "scroll" in a.get("class", "").split()]
    found += ["a table that no key can scroll"] * sum(a.get("tabindex") != "0" for a in scrolled)
    found += ["a head of a table without a scope"] * sum("scope" not in a for a, _ in outline.all("th"))
    found += ["a head of a table without words"] * sum(not text for _, text in outline.all("th"))
    wide = re.findall(r"(?<!max-)width: (\d+)px", re.sub(r"<svg.*?</svg>", "", html, flags=re.S).partition("</style>")[2])
    found += ["an element of fixed width"] * len(wide)
    found += ["something is fetched"] * len(re.findall(r"<script|<link|<img|@import|https?://|url\((?!#)", html))
    return found


def made(folder: Path, demo: dict[str, Any]) -> dict[str, Path]:
    """One page of each kind, from toy data, below `folder`/out; the second training is set against the first."""
    out = folder / "out"
    demo_report.write(demo, folder, out / "demo" / "report.html")
    training = Training(folder / "training", CAMPAIGN)
    training.report(out / "pipeline" / "toy" / "report")
    path = training.evaluate / "metrics.json"
    path.write_text(path.read_text().replace('"a_oaa_cores_mae": 0.45', '"a_oaa_cores_mae": 0.95'))
    training.report(out / "pipeline" / "toy" / "report")
    (folder / "evals").mkdir()
    names = {f"lc3-be-{k:02}": {"moses": 0.1 * (k % 6 + 1), "xapian": 0.1 * (k // 6 + 1)} for k in range(1, 7)}
    rows = [
        evals.row(n, p, s, 2.0 + s, lc=2, be_throughput=be, qos_violation_s=1.0 + s)
        for n in names
        for p, be in (("parties", 0.5), ("clite", 0.2), ("osml-plus", 0.4), ("surefoot", 0.3))
        for s in (1, 2)
    ]
    evals.time_lines(evals.write(folder / "evals/be", rows), rows, names)
    script = [evals.row("fig10", p, 1, 2.0, lc=2) for p in ("unmanaged", "parties", "osml-plus", "surefoot")]
    evals.time_lines(evals.write(folder / "evals/churn", script), script, {"fig10": {"moses": 0.5, "xapian": 0.5}})
    made = eval_report.run([folder / "evals/be", folder / "evals/churn"], out / "eval-report")
    lent = harvest_report.run([harvests.write(folder / "harvest", harvests.everything())], out / "harvest-report")
    return {
        "demo": out / "demo" / "report.html",
        "training": out / "pipeline" / "toy" / "report" / report.PAGE,
        "evaluation": Path(made["page"]),
        "harvest": Path(lent["page"]),
        "index": out / site.INDEX,
    }


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    """Where `pages` are made, and those that are: drawing them takes longer than the tests."""
    return tmp_path_factory.mktemp("pages") / "site", {}


@pytest.fixture
def pages(result: dict[str, Any], originals: tuple[Path, dict[str, Path]], tmp_path: Path) -> dict[str, Path]:  # noqa: F811
    """A copy that a test may change."""
    folder, first = originals
    if not first:
        first |= made(folder, result)
    shutil.copytree(folder, tmp_path / "site")
    found = {name: tmp_path / "site" / path.relative_to(folder) for name, path in first.items()}
    if keep := os.environ.get("SUREFOOT_PAGES"):
        # `make test-pages` looks at them with a browser
        for name, path in found.items():
            shutil.copy(path, Path(keep) / f"{name}.html")
    return found


def test_every_page_can_be_read_by_anybody(pages: dict[str, Path]) -> None:
    """Language, headings in order, names of drawings and regions, captions that say of how many, links that lead somewhere."""
    for name, path in pages.items():
        html = path.read_text("utf-8")
        if name == "index":
            assert [f for f in faults(html) if "nowhere" not in f] == []
        else:
            assert (name, faults(html)) == (name, [])


def test_the_checks_of_a_page_can_fail() -> None:
    """Each fault that the check knows is found where it is."""
    page_ = (
        '<html><title>t</title><h1>a</h1><h3>b</h3><svg></svg><figure><figcaption>none</figcaption></figure><a href="#x">y</a>'
        '<div class="scroll"><table><th></th></table></div><p style="width: 900px" id="p"></p><p id="p"></p><img src="x"></html>'
    )
    said = " ".join(faults("<style></style>" + page_))
    for fault in (
        "no language",
        "level 3 after 1",
        "without a name",
        "cannot shrink",
        "of how many",
        "nowhere",
        "two regions",
        "no key",
    ):
        assert fault in said, fault
    for fault in ("without a scope", "without words", "fixed width", "two of one id", "fetched"):
        assert fault in said, fault


def test_a_figure_that_does_not_say_of_how_many_is_refused() -> None:
    """No page can have a figure without a number of things it is of."""
    with pytest.raises(ValueError, match="of how many"):
        page.Drawing("<svg></svg>", "some runs")


# ---------------------------------------------------------------- colours


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


PALETTES = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", CSS, re.S)]
TEXT_ON = [
    *((text, ground) for text in ("ink", "muted", "blue") for ground in ("paper", "wash")),
    *((f"{word}", f"{word}-wash") for word in ("good", "bad", "warn")),
    ("ink", "warn-wash"),
]


def test_contrast_is_that_of_the_standard() -> None:
    """Black on white is 21, and #777777 on white 4.48: just too little for text."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXT_ON)
def test_text_stands_out_from_its_ground(scheme: int, text: str, ground: str) -> None:
    """4.5 to 1 at least in both schemes, as WCAG 2.2 asks of small text (AA)."""
    palette = PALETTES[0] | PALETTES[scheme]
    assert contrast(palette[text], palette[ground]) >= 4.5


def test_text_of_figures_and_heads_stands_out() -> None:
    """Figures keep a white ground, heads a dark one, in both schemes."""
    for colour in (drawing.INK, drawing.MUTED, drawing.TARGET):
        assert contrast(colour, "#ffffff") >= 4.5
    ground = re.search(r"header \{ background: (#\w+); color: (#\w+)", CSS)
    assert ground is not None
    for colour in (ground[2], *re.findall(r"header \.?\w+ \{[^}]*color: (#\w+)", CSS)):
        assert contrast(colour, ground[1]) >= 4.5


def test_policies_and_series_are_seen_on_white() -> None:
    """Marks and lines of figures: 3 to 1 is what WCAG asks of graphics; dashes and marks tell apart what is paler."""
    for colour in (
        look.colour for name, look in policy_charts._LOOKS.items() if name in ("surefoot", "osml-plus", "osml", "unmanaged")
    ):
        assert contrast(colour, "#ffffff") >= 3.0


# ---------------------------------------------------------------- grids


@pytest.mark.parametrize("n", range(1, 24))
def test_rows_of_a_grid_are_full(n: int) -> None:
    """Whatever the width: each row's spans add up to the tracks, and no thing stands alone below rows of three or more."""
    grid = page.Grid(n, 300, 14)
    for columns in range(1, 9):
        rows = grid.rows(columns)
        assert sum(rows) == n
        assert max(rows) - min(rows) <= 1
        assert max(rows) <= columns
    widths = re.findall(r"@container \(min-width: (\d+)px\)(?: and \(max-width: ([\d.]+)px\))?", grid.css())
    # each from where the one before ends: no rule of a narrower width is left over
    assert all(float(end) == pytest.approx(float(begin), abs=0.05) for (_, end), (begin, _) in itertools.pairwise(widths))
    assert not widths or widths[-1][1] == ""
    for rule in re.findall(r"@container .*", grid.css()):
        tracks = int(re.search(r"repeat\((\d+)", rule)[1])  # type: ignore[index]
        common, *first = map(int, re.findall(r"span (\d+)", rule))
        longer = int(re.search(r"-n\+(\d+)", rule)[1]) if first else 0  # type: ignore[index]
        spans = [*[first[0] if first else common] * longer, *[common] * (n - longer)]
        filled = 0
        for span in spans:
            assert filled % tracks + span <= tracks
            filled += span
        assert filled % tracks == 0


def test_the_grid_of_a_page_is_there(pages: dict[str, Path]) -> None:
    """Every grid that an element names has its rules, and asks for the width of what is around it."""
    for path in (pages[name] for name in ("demo", "training", "evaluation")):
        html = path.read_text("utf-8")
        named = set(re.findall(r'class="[^"]*?(grid-\d+-\d+)', html))
        assert named
        assert all(f".{name} {{ display: grid" in html for name in named)
    assert "container-type: inline-size" in CSS


# ---------------------------------------------------------------- figures


def shown(svg: str) -> tuple[float, float]:
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()  # type: ignore[union-attr]
    return float(width), float(height)


def test_a_figure_with_a_layout_is_whole() -> None:
    """What a layout moves is measured where it is drawn: heading, right edge and last row are in the picture."""
    with rc_context(drawing.STYLE):
        fig, axes = plt.subplots(3, 2, figsize=(8, 7.5), layout="constrained")
        for ax in axes.flat:
            ax.set_title("a title")
            ax.set_xlabel("x")
            ax.figure.colorbar(ax.imshow(np.ones((2, 2))), ax=ax)
        fig.suptitle("heading", x=0.01, ha="left")
        svg = drawing.svg_file(fig, "salt")
    width, height = shown(svg)
    # a figure of 8 x 7.5 inches at 72 dots, of which a layout leaves next to nothing empty
    assert (width, height) == (pytest.approx(576, abs=16), pytest.approx(540, abs=16))
    places = [(float(x), float(y)) for x, y in re.findall(r'<text[^>]*transform="translate\(([\d.-]+) ([\d.-]+)\)', svg)]
    places += [(float(x), float(y)) for x, y in re.findall(r'<text[^>]* x="([\d.-]+)" y="([\d.-]+)"', svg)]
    assert places
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)


def cell(cores: float, ways: float, p99_ms: float, verdict: str = "valid", case_id: str = "", **more: Any) -> dict[str, Any]:
    row = {"service": "a", "rps": 10.0, "threads": 8, "mba_pct": 100, "alloc_cores": cores, "alloc_ways": ways}
    return {
        **row,
        "latency_p99_ms": p99_ms,
        "verdict": verdict,
        "case_id": case_id or f"{cores}-{ways}",
        "neighbours": [],
        **more,
    }


def cells_of(folder: Path, rows: list[dict[str, Any]], disturbed: Sequence[str] = ()) -> pl.DataFrame:
    shape = {"neighbours": pl.List(pl.Struct({"service": pl.String, "cores": pl.Float64}))}
    pl.DataFrame(rows, schema_overrides=shape).write_parquet(folder / "x.parquet")
    return card_plots._cells(pl.scan_parquet([folder / "x.parquet"]), {"a": 5.0}, disturbed)


def test_a_disturbed_cell_is_no_healthy_one(tmp_path: Path) -> None:
    """Its latency is not drawn, neither good nor bad; it is counted, and marked."""
    rows = [cell(1, 1, 50.0), cell(2, 1, 1.0), cell(1, 2, 1.0, case_id="gone"), cell(2, 2, 1.0, "not-resolvable")]
    found = cells_of(tmp_path, rows, ["gone"]).select("cores", "ways", "n", "usable", "p99_ms").rows()
    assert found == [(1.0, 1.0, 1, 1, 50.0), (1.0, 2.0, 1, 0, None), (2.0, 1.0, 1, 1, 1.0), (2.0, 2.0, 1, 0, None)]
    grid = np.array([[50.0, np.nan], [1.0, np.nan]])
    marked = np.array([[False, True], [False, True]])
    plain = charts.HeatMap("a", "", 10.0, 8, [1.0, 2.0], [1.0, 2.0], grid, 5.0)
    drawn = charts.heat_map(charts.HeatMap("a", "", 10.0, 8, [1.0, 2.0], [1.0, 2.0], grid, 5.0, unusable=marked))
    assert "not usable" in drawn
    assert "not usable" not in charts.heat_map(plain)


@pytest.mark.filterwarnings("error")
def test_a_plane_without_any_mark_is_drawn_quietly() -> None:
    """Nothing was measured well: no edge, no cliff, no legend, and no warning on the command's stderr."""
    svg = charts.heat_map(charts.HeatMap("a", "", 10.0, 8, [1.0, 2.0], [1.0, 2.0], np.full((2, 2), np.nan), 5.0))
    assert "QoS edge" not in svg


def test_the_cards_load_is_the_one_that_shows_the_cliff(tmp_path: Path) -> None:
    """Not the highest, where every cell misses the target, and not the lowest, where every cell meets it."""
    rows = []
    for rps, met in ((10.0, 4), (20.0, 2), (30.0, 0)):
        rows += [
            cell(c, w, 1.0 if 2 * c + w - 3 < met else 50.0, rps=rps, case_id=f"{rps}-{c}-{w}") for c in (1, 2) for w in (1, 2)
        ]
    assert card_plots._shown_load(cells_of(tmp_path, rows)) == (20.0, 8, 100)


def test_departures_are_told(tmp_path: Path) -> None:
    """A service that is not there at the end has left, and the caption says when."""
    line = {"kind": "lc", "p99_ms": 1.0, "qos_target_ms": 2.0, "load": 0.5, "cores": 1.0, "ways": 1.0}
    rows = [{**line, "t_ms": 1000 * t, "service": s} for s, end in (("moses", 9), ("xapian", 4)) for t in range(end)]
    run = eval_rows.time_line(pl.DataFrame(rows), "w", "parties")
    assert eval_rows.caption(run) == "Vertical lines: 3 s xapian leaves."


def test_a_load_with_a_shape_is_one_mark() -> None:
    """A load that changes all the time is told by its range: a line at every change would hide the curves."""
    line = {"kind": "lc", "p99_ms": 1.0, "qos_target_ms": 2.0, "cores": 1.0, "ways": 1.0, "service": "moses"}
    rows = [{**line, "t_ms": 1000 * t, "load": 0.4 + 0.01 * t} for t in range(30)]
    run = eval_rows.time_line(pl.DataFrame(rows), "w", "parties")
    assert eval_rows.caption(run) == "Vertical lines: 0 s moses at 40 to 69 % load from then on."


# ---------------------------------------------------------------- words


def test_what_our_policies_leave_to_jobs_is_said(pages: dict[str, Path]) -> None:
    """Beside the best of those others that converge as often; a policy that fails more is no measure."""
    of = policy_words.Standing
    said = policy_words.be_words(
        [
            of("unmanaged", False, 0, 0.9),
            of("parties", False, 21, 0.5),
            of("surefoot", True, 21, 0.4),
            of("osml-plus", True, 20, 0.5),
        ]
    )
    assert said == (
        "surefoot leaves BE jobs 20 % less than parties, which converges as often. "
        "osml-plus leaves BE jobs as much as parties, which converges more often."
    )
    assert policy_words.be_words([of("surefoot", True, 3, None)]) == ""
    assert policy_words.be_words([of("surefoot", True, 3, 0.4)]) == "No policy of others converges as often as surefoot."
    for name in ("demo", "evaluation"):
        assert "leaves BE jobs" in pages[name].read_text("utf-8") or "as often as" in pages[name].read_text("utf-8")


def test_a_tile_compares(pages: dict[str, Path]) -> None:
    """A tile about policies has a row for each of them, rivals too."""
    for name, policies in (("demo", ["unmanaged", "osml-plus"]), ("evaluation", ["parties", "clite", "osml-plus", "surefoot"])):
        html = pages[name].read_text("utf-8")
        table = html[html.index('<table class="compared">') :]
        table = table[: table.index("</table>")]
        assert re.findall(r"<th scope=row>([^<]+)", table) == policies


def test_a_page_without_published_figures_does_not_open_with_them(tmp_path: Path) -> None:
    """What was measured comes first; the published figures that nothing stands beside come last, and say why."""
    rows = [evals.row("mine-01", p, 1, 2.0) for p in ("parties", "surefoot")]
    evals.write(tmp_path / "mine", rows)
    html = Path(eval_report.run([tmp_path / "mine"], tmp_path / "report")["page"]).read_text("utf-8")
    order = re.findall(r'<section id="(\w+)"', html)
    assert order[:2] == ["short", "sets"]
    assert order[-2:] == ["published", "reading"]
    assert "none measured" not in html
    assert html.index('class="compared"') < html.index("none to compare")


def test_one_word_for_one_state() -> None:
    """The state is called client-limited wherever people read of it."""
    others = re.compile(
        r"client's limit\)|limited by (the|its) client|client limited|load generator was too slow|limited-by-client"
    )
    files = [*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("collection/*.py"), *ROOT.glob("pipelines/pages/*_page.py")]
    files += [ROOT / "scripts/workloads/workloads_smoke.py", *ROOT.glob("scheduler/surefootd/src/**/*.rs")]
    assert [(f.name, m[0]) for f in files for m in others.finditer(f.read_text("utf-8"))] == []


# ---------------------------------------------------------------- a training and the one before it


def test_what_changed_since_the_training_before(tmp_path: Path) -> None:
    """Errors, parameters and data of both, in words which way; made again it is set against the same one."""
    training = Training(tmp_path / "t", CAMPAIGN)
    out = tmp_path / "report"
    assert training.report(out)["changed"] is None
    assert training.report(out)["changed"] is None  # the same training
    path = training.evaluate / "metrics.json"
    first = path.read_text()
    path.write_text(
        first.replace('"a_oaa_cores_mae": 0.45', '"a_oaa_cores_mae": 0.9').replace('"b_accuracy": 0.971', '"b_accuracy": 0.98')
    )
    found = training.report(out)["changed"]
    assert found["same_data"]
    assert found["params"] == []
    by = {m["metric"]: (m["before"], m["now"]) for m in found["metrics"]}
    assert (by["a_oaa_cores_mae"], by["b_accuracy"]) == ((0.45, 0.9), (0.971, 0.98))
    text = (out / report.PAGE).read_text("utf-8")
    assert "+100.0 %" in text
    assert "No parameter changed." in text
    assert "1 of 2" in text  # accuracy is better, cores are worse
    assert training.report(out)["changed"] == found


def test_a_changed_parameter_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same data trained otherwise are another training; parameters of the page alone are not."""
    training = Training(tmp_path / "t", CAMPAIGN)
    out = tmp_path / "report"
    training.report(out)
    import test_training_report as module

    report_only = module.P.model_copy(update={"report": module.P.report.model_copy(update={"comparator_margin": 0.2})})
    monkeypatch.setattr(module, "P", report_only)
    assert training.report(out)["changed"] is None
    other = module.P.model_copy(update={"label": module.P.label.model_copy(update={"seed": 99})})
    monkeypatch.setattr(module, "P", other)
    assert training.report(out)["changed"]["params"] == [
        {"name": "label.seed", "before": f"{report_only.label.seed}", "now": "99"}
    ]


def test_versions_of_before_say_that_nothing_was_kept(tmp_path: Path) -> None:
    """A versions.json without trainings, as older pages left it, is read, and the training before is not known."""
    training = Training(tmp_path / "t", CAMPAIGN)
    out = tmp_path / "report"
    training.report(out)
    path = out / report.VERSIONS
    path.write_text(json.dumps({"versions": json.loads(path.read_text())["versions"]}))
    assert training.report(out)["changed"] is None


def test_figures_outside_the_papers_are_explained(tmp_path: Path) -> None:
    """By how much, whether a simple method is within on the same rows, and what is not alike."""
    training = Training(tmp_path / "t", CAMPAIGN)
    training.report(tmp_path / "report")
    text = " ".join(
        re.sub(r"<svg.*?</svg>|<[^>]+>", " ", (tmp_path / "report" / report.PAGE).read_text("utf-8"), flags=re.S).split()
    )
    # a_oaa_ways 0.523 against 0.3595 (nearest 0.5: not within either), a_rcliff_ways 0.377 against 0.288 (nearest 0.211: within)
    assert "Why 2 of 4 are outside the papers" in text
    assert "in 1 of these 2: there the figure says how hard these data are. One is in 1 (Model-A (OSML+): RCliff ways)" in text
    assert "whole planes are held out" in text


# ---------------------------------------------------------------- the index


def test_the_index_leads_to_every_page_that_is_there(pages: dict[str, Path]) -> None:
    """Demo, trainings, evaluations and cards by relative links; it is written by whatever writes a page."""
    out = pages["index"].parent
    cards = {"data/mine/data-card.md": "# Data card: mine\n", "bundles/a b/card.md": "# Model card: toy\n"}
    for name, text in cards.items():
        (out.parent / name).parent.mkdir(parents=True)
        (out.parent / name).write_text(text)
    assert site.refresh(out.parent / "data/mine/data-card.md") == out / site.INDEX
    links = re.findall(r'<a href="([^"#]+)">([^<]+)', pages["index"].read_text("utf-8"))
    assert dict(links) == {
        "demo/report.html": "Surefoot: sweep, learn, bundle, hold",
        "pipeline/toy/report/report.html": "Training report: toy",
        "eval-report/eval-report.html": "Surefoot: policies side by side",
        "harvest-report/harvest-report.html": "Surefoot: cores lent for milliseconds",
        "../data/mine/data-card.md": "Data card: mine",
        "../bundles/a%20b/card.md": "Model card: toy",
    }


def test_a_page_that_is_gone_is_not_led_to(pages: dict[str, Path]) -> None:
    """The next page written leaves it out."""
    pages["training"].unlink()
    site.refresh(pages["demo"])
    assert "Training report" not in pages["index"].read_text("utf-8")
    for path in (pages["demo"], pages["evaluation"], pages["harvest"]):
        path.unlink()
    site.refresh(pages["demo"])
    assert "No page is there" in pages["index"].read_text("utf-8")


def test_an_index_of_somebody_else_stays(tmp_path: Path) -> None:
    """Only an index that was made here is made anew; a page in no folder `out` has none."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.html").write_text("<title>my own</title>")
    assert site.refresh(out / "eval" / "eval-report.html") is None
    assert (out / "index.html").read_text() == "<title>my own</title>"
    assert site.refresh(tmp_path / "elsewhere" / "report.html") is None
    assert site.folder_of(tmp_path / "data" / "mine" / "data-card.md") == out
    # a data set holds its own files alone, though its folder be called so
    assert site.folder_of(tmp_path / "new" / "out" / "data-card.md") is None
    (out / "index.html").unlink()
    (out / "index.html").mkdir()
    assert site.refresh(out / "report.html") is None


# ---------------------------------------------------------------- the repository's own pages


def test_every_docs_page_is_in_the_index_of_the_readme() -> None:
    """A stranger finds each page of docs/ from the README, and no link there leads nowhere."""
    readme = (ROOT / "README.md").read_text("utf-8")
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", readme) if not link.startswith("http")}
    assert [f"docs/{p.name}" for p in sorted(ROOT.glob("docs/*.md")) if f"docs/{p.name}" not in links] == []
    assert [link for link in links if link and not (ROOT / link).exists()] == []


STUDIES = ROOT / "docs/studies"


def test_every_study_is_in_the_index_of_studies() -> None:
    """A study has its day in its name and a question as its title, begins with asked and found, and stands in the index."""
    index = (STUDIES / "README.md").read_text("utf-8")
    for path in sorted(STUDIES.glob("*.md")):
        if path.name == "README.md":
            continue
        name = re.fullmatch(r"(\d{4}-\d\d-\d\d)-[a-z0-9-]+\.md", path.name)
        text = path.read_text("utf-8")
        title = re.match(r"# (.+\?)\n\n\*\*Asked\.\*\* .+\n\n\*\*Found\.\*\* ", text)
        assert name, path.name
        assert title, f"{path.name}: the title is no question, or Asked and Found do not follow it"
        assert f"| {name[1]} | [{title[1]}]({path.name}) |" in index, path.name
    assert "](docs/studies/README.md)" in (ROOT / "README.md").read_text("utf-8")


def test_the_benchmarks_are_tables_of_one_size() -> None:
    """Figures stay readable at a glance: at most 12 kB, a table under each heading; how they came about is a study."""
    text = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    assert len(text.encode()) <= 12_000
    under = [part for part in re.split(r"\n##+ ", text)[1:] if "\n|" not in part and "\n### " not in part]
    assert under == []


def _anchors(text: str) -> set[str]:
    """What a heading is linked by (small letters, no marks, a dash for each space), and names given in place."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    heads = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head) for head in re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)]
    slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    return slugs | set(re.findall(r'<a name="([^"]+)">', prose))


def test_no_link_of_a_page_leads_nowhere() -> None:
    """Each link from README and docs/ to a file of the repository finds the file, and the heading that it names."""
    nowhere = []
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
            if re.match(r"https?://", link):
                continue
            file, _, anchor = link.partition("#")
            target = path.parent / file if file else path
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target.read_text("utf-8"))):
                nowhere.append((str(path.relative_to(ROOT)), link))
    assert nowhere == []


# not files of the repository: parts of a bundle, what a script makes
_MADE = ("models/a.safetensors", "models/osml_a.safetensors", "workloads/originals/built")


def test_every_path_that_a_page_spells_out_is_there() -> None:
    """A path of the repository in README or docs/ (not the dated studies and decisions) is one of its files or folders."""
    folders = "collection|docs|examples|models|packaging|pipelines|playbooks|scheduler|scripts|tests|workloads"
    gone = []
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]:
        for name in re.findall(rf"`((?:{folders})/[\w./-]+)`", path.read_text("utf-8")):
            # capitals stand for a name
            if name not in _MADE and not re.search(r"/[A-Z]+(/|$)", name) and not (ROOT / name).exists():
                gone.append((path.name, name))
    assert gone == []


def test_the_readme_explains_its_words() -> None:
    """Each word that a stranger cannot know stands in the glossary, with what it is short for."""
    readme = (ROOT / "README.md").read_text("utf-8")
    words = readme.partition("\n## Words\n")[2].partition("\n## ")[0]
    for said in (
        "LC service",
        "BE job",
        "QoS target",
        "p99",
        "LLC",
        "way",
        "resctrl",
        "RCliff",
        "OAA | optimal allocation area",
        "EMU",
    ):
        assert said in words, said
    assert len(readme.splitlines()) < 240


def test_links_in_place_of_folders_are_ignored_by_git(tmp_path: Path) -> None:
    """What is made here is ignored as a folder and as a link to one elsewhere: `git add` never takes it."""
    shutil.copy(ROOT / ".gitignore", tmp_path / ".gitignore")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "elsewhere").mkdir()
    names = [
        "data",
        "target",
        ".venv",
        ".venv-spark",
        ".venv-pages",
        ".venv-site",
        "out",
        ".surefoot",
        "bundles",
        "mlruns",
        "dist",
        "mlflow.db",
    ]
    for name in names:
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    ask = ["git", "-C", str(tmp_path), "check-ignore", "--no-index"]
    as_links = subprocess.run([*ask, *names], capture_output=True, text=True).stdout.split()
    assert as_links == names
    for name in names:
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    inside = [f"{name}/file" for name in names]
    assert subprocess.run([*ask, *inside], capture_output=True, text=True).stdout.split() == inside
    assert subprocess.run([*ask, "docs", "collection"], capture_output=True, text=True).stdout == ""
