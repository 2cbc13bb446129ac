"""The site of docs/: every page has its place, every link its page, figures and tables are those of their source."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from collection import policy_figure, price_figure
from pipelines.pages.drawing import file_of

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "scripts/site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


stage, check = script("stage"), script("check")

# ---------------------------------------------------------------- what stands where


def listed(nav: list[dict[str, object]]) -> list[str]:
    """Pages of the list, in order."""
    found: list[str] = []
    for entry in nav:
        for target in entry.values():
            found += listed(target) if isinstance(target, list) else [str(target)]
    return found


def test_every_page_is_in_the_list_of_the_site() -> None:
    """A page of docs/ stands once in the list; each entry is a page; studies and decisions are found by their own lists."""
    settings = tomllib.loads((ROOT / "scripts/site/zensical.toml").read_text("utf-8"))["project"]
    pages = listed(settings["nav"])
    own = {p.name for p in DOCS.glob("*.md")}
    assert sorted(pages) == sorted({*own, "studies/README.md", "decisions/README.md", "repository/CONTRIBUTING.md"})
    assert settings["theme"]["font"] is False
    assert settings["use_directory_urls"] is False


def test_a_linked_file_becomes_a_page(tmp_path: Path) -> None:
    """A link to a file outside of docs/ leads to a page that has its text, also from a page that was linked to."""
    (tmp_path / "docs/deep").mkdir(parents=True)
    (tmp_path / "x").mkdir()
    (tmp_path / "docs/a.md").write_text(
        "[b](deep/b.md#h) [node](../x/node.toml) `[no](../none)` [r](../x/README.md) [web](https://e.org)\n"
    )
    (tmp_path / "docs/deep/b.md").write_text("# H\n[node](../../x/node.toml) ![p](../p.svg)\n```\n[no](none.md)\n```\n")
    (tmp_path / "docs/p.svg").write_text("<svg/>")
    (tmp_path / "x/node.toml").write_text("a = 1\n````\n")
    (tmp_path / "x/README.md").write_text("# R\n[a](../docs/a.md) [n](node.toml)\n")
    files = stage.tracked(tmp_path)
    out = stage.staged(tmp_path, files)
    assert set(out) == {"a.md", "deep/b.md", "p.svg", "repository/x/node.toml.md", "repository/x/README.md"}
    assert out["a.md"] == (
        "[b](deep/b.md#h) [node](repository/x/node.toml.md) `[no](../none)` [r](repository/x/README.md) [web](https://e.org)\n"
    )
    assert "[node](../repository/x/node.toml.md) ![p](../p.svg)" in out["deep/b.md"]
    assert out["repository/x/README.md"] == "# R\n[a](../../a.md) [n](node.toml.md)\n"
    assert out["repository/x/node.toml.md"] == "# node.toml\n\n`x/node.toml`\n\n`````toml\na = 1\n````\n`````\n"


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    """The page and the link are said, and what to do; a folder is no file, and what was made here is none of the repository."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/made.html").write_text("")
    for link in ("none.md", "../out/made.html", "../docs"):
        (tmp_path / "docs/a.md").write_text(f"[x]({link})\n")
        with pytest.raises(stage.Nowhere, match=r"docs/a\.md: the link .* leads to no file\. Name a file"):
            stage.staged(tmp_path, stage.tracked(tmp_path))


def test_the_whole_source_of_the_site_is_small() -> None:
    """All links of all pages find their files, and few files come with them: a link does not bring the repository."""
    out = stage.staged(ROOT, stage.tracked(ROOT))
    brought = [name for name in out if name.startswith("repository/")]
    assert {"repository/CONTRIBUTING.md", "repository/CITATION.cff.md", "repository/examples/node.toml.md"} <= set(brought)
    assert len(brought) < 60, brought


# ---------------------------------------------------------------- what the check finds


def built(at: Path, body: str, head: str = "") -> list[str]:
    at.mkdir(exist_ok=True)
    (at / "b.html").write_text('<html><body><article><h2 id="there">x</h2></article></body></html>', "utf-8")
    (at / "a.html").write_text(f"<html><head>{head}</head><body><article>{body}</article></body></html>", "utf-8")
    return list(check.faults(at.resolve()))


@pytest.mark.parametrize(
    ("body", "head", "says"),
    [
        ('<a href="c.html">x</a>', "", "a.html: the link c.html leads to no file"),
        ('<a href="b.html#gone">x</a>', "", "a.html: the link b.html#gone leads to no heading"),
        ('<a href="#gone">x</a>', "", "a.html: the link #gone leads to no heading"),
        ('<a href="/b.html">x</a>', "", "a.html: the link /b.html begins at the root of a server"),
        ('<img src="p.svg">', "", "a.html: the link p.svg leads to no file"),
        ("", '<script src="https://cdn.example/x.js"></script>', "a.html: https://cdn.example/x.js is fetched from elsewhere"),
        ("", '<link rel="stylesheet" href="//fonts.example/f.css">', "a.html: //fonts.example/f.css is fetched from elsewhere"),
        ("<p>text:\n- one\n- two</p>", "", "a.html: Markdown was not understood: '- o'"),
        ("<p>| a | b |\n| --- | --- |</p>", "", "a.html: Markdown was not understood: '| a | b |'"),
        ("<p>see [x](y.md)</p>", "", "a.html: Markdown was not understood: ']('"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, body: str, head: str, says: str) -> None:
    """Each kind of fault is said with its page."""
    assert says in built(tmp_path / "s", body, head)


def test_what_is_well_is_passed(tmp_path: Path) -> None:
    """Links to pages, headings and elsewhere, code that looks like Markdown, numbers in bold, and what is not fetched."""
    body = (
        '<a href="b.html#there">x</a><a href="https://example.org">y</a><p><strong>1. One</strong> - and a dash</p>'
        "<pre>- a\n| b | c |\n[x](y)</pre><p>the <code>|</code> of a shell</p>"
    )
    assert built(tmp_path / "s", body, '<link rel="canonical" href="https://example.org/a">') == []


# ---------------------------------------------------------------- the first page, papers, forms


def test_the_first_pages_figure_is_of_its_table() -> None:
    """docs/images/policies.svg is what docs/benchmarks.md comes to, byte for byte (`python -m collection.policy_figure docs`)."""
    found = policy_figure.violations((DOCS / "benchmarks.md").read_text("utf-8"))
    text = file_of(lambda: policy_figure.draw(found), "policies")
    assert (DOCS / "images/policies.svg").read_text("utf-8") == text


def test_the_price_frontier_is_of_its_table() -> None:
    """docs/images/price-frontier.svg is what its study comes to (`python -m collection.price_figure docs`)."""
    found = price_figure.points((DOCS / price_figure.STUDY).read_text("utf-8"))
    text = file_of(lambda: price_figure.draw(found), "price-frontier")
    assert (DOCS / price_figure.FIGURE).read_text("utf-8") == text
    with pytest.raises(price_figure.NoTable, match="no table of prices and rivals"):
        price_figure.points("| `surefoot` 1 | 3.0 | 0.2 |\n")


def test_a_page_without_the_table_is_refused() -> None:
    """Neither a page without the table nor one that lacks a policy gives a figure."""
    with pytest.raises(policy_figure.NoTable, match="no table below the heading Schedulers"):
        policy_figure.violations("# Benchmarks\n")
    with pytest.raises(policy_figure.NoTable, match="no row of osml-plus, surefoot"):
        policy_figure.violations("\n## Schedulers\n\n| | lc3 |\n| --- | --- |\n| parties-be | 1.0 |\n")


def test_the_first_pages_table_is_that_of_the_benchmarks() -> None:
    """Each figure of the first page stands in docs/benchmarks.md, for that set and policy."""
    benchmarks, first = (DOCS / "benchmarks.md").read_text("utf-8"), (DOCS / "index.md").read_text("utf-8")
    found = policy_figure.violations(benchmarks)
    rows = {
        cells[0]: cells[1:] for line in first.splitlines() if (cells := [c.strip() for c in line.strip("| ").split(" | ")])[1:]
    }
    said = {m[1]: rows[name] for name in rows if (m := re.search(r"\((\S+)\): violation, s$", name))}
    assert set(said) == {"lc3-be", "lc6-be", "churn-1"}
    for workloads, figures in said.items():
        assert [float(f) for f in figures] == [found[p][workloads] for p in policy_figure.POLICIES], workloads
    of_lc6 = {
        m[1].strip(): m[2].split(" | ")[-1].strip(" |")
        for m in re.finditer(r"^\| ([^|]+) \|(.*lc6-be|.*)$", benchmarks, re.MULTILINE)
    }
    assert of_lc6["convergence, mean s"] == " / ".join(rows["convergence of lc6-be, mean s"])
    assert of_lc6["EMU over ORACLE's"] == " / ".join(rows["EMU over ORACLE's, lc6-be"])
    assert of_lc6["BE over parties-be"] == " / ".join(rows["BE throughput over parties-be's, lc6-be"][1:])


def test_the_citation_is_of_this_version_and_of_the_five_papers() -> None:
    """CITATION.cff has the version of the project and its licence; each of its five papers is on the page of papers."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    page = (DOCS / "papers.md").read_text("utf-8")
    five = page.partition("\n## The five\n")[2].partition("\n## ")[0]
    assert len(cited["references"]) == five.count("\n| `") == 5
    for paper in cited["references"]:
        where = f"https://doi.org/{paper['doi']}" if "doi" in paper else paper["url"]
        assert where in five, paper["title"]
        assert all(a["family-names"] in five for a in paper["authors"]), paper["title"]
        assert f"| `{paper['notes']}` |" in five


def test_issue_forms_are_forms() -> None:
    """Each form has a name, what it is for, and fields with ids of their own; that of recordings names the command."""
    forms = {p.stem: yaml.safe_load(p.read_text("utf-8")) for p in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")}
    assert set(forms) == {"config", "fault", "figure", "recording"}
    for name in set(forms) - {"config"}:
        form = forms[name]
        ids = [field["id"] for field in form["body"]]
        assert form["name"]
        assert form["description"]
        assert len(ids) == len(set(ids)), name
        assert all(field["attributes"]["label"] for field in form["body"])
        assert any(field.get("validations", {}).get("required") for field in form["body"]), name
        assert f"*{form['name']}*" in (ROOT / "CONTRIBUTING.md").read_text("utf-8") + (DOCS / "give-a-recording.md").read_text(
            "utf-8"
        )
    assert "surefootd check --pack-tree" in str(forms["recording"])
