"""What messages of the node's programs send their reader to is on a node: a page of the package, or a command that is there."""

import re
import subprocess
from pathlib import Path

import pytest

from collection import tools

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [ROOT / "scheduler", ROOT / "workloads" / "loadgen"]
# programs of the package, and folders that it fills (packaging/install.sh: share/X goes to /usr/share/surefoot/X)
PAGE = re.compile(r"docs/([A-Za-z0-9_-]+\.md)")
NOT_ON_A_NODE = re.compile(
    r"\bscripts/|\bexamples/|\bcargo (?:build|run|test)\b|\bpip install\b|\bmake (?:[a-z]+-[a-z-]+|setup|test|demo|dist)\b"
)


def _without_tests(text: str) -> str:
    """Source before its unit tests, which stand last in a file."""
    return re.split(r"^#\[cfg\(test\)\]\s*\nmod \w+ \{", text, maxsplit=1, flags=re.MULTILINE)[0]


def _literals(text: str) -> list[str]:
    """String literals, and doc comments of the command line (its --help)."""
    plain = re.sub(r"^\s*//[!/]?(?![/!]).*$", "", text, flags=re.MULTILINE)
    return [m.replace("\\\n", "") for m in re.findall(r'"((?:[^"\\]|\\.)*)"', plain, flags=re.DOTALL)]


def _messages() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for root in SOURCES:
        for file in sorted(root.glob("**/src/**/*.rs")):
            name = file.name
            if name.startswith("test") or name.endswith("tests.rs") or name in ("faults.rs", "attack.rs"):
                continue
            text = _without_tests(file.read_text(encoding="utf-8"))
            where = str(file.relative_to(ROOT))
            found += [(where, literal) for literal in _literals(text)]
            if name == "cli.rs":
                found += [(where, line) for line in re.findall(r"^\s*/// (.*)$", text, flags=re.MULTILINE)]
    return found


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the package is made of, laid out by its own script."""
    binaries = tmp_path_factory.mktemp("binaries")
    for program in ("surefootd", "surefoot-loadgen"):
        (binaries / program).write_bytes(b"")
    stage = tmp_path_factory.mktemp("dist") / "stage"
    subprocess.run(["scripts/dist/stage.sh", stage, binaries, tools.find(tools.SUREFOOTD)], cwd=ROOT, check=True)
    return stage


def test_the_search_finds_messages() -> None:
    """The collection itself works: it finds remedies that are known, in literals and in --help."""
    all_of_it = "\n".join(text for _, text in _messages())
    assert "docs/node-config.md lists every field" in all_of_it
    assert "What to measure (docs/campaign-format.md)" in all_of_it
    assert len(PAGE.findall(all_of_it)) > 30


def test_pages_that_messages_name_are_packaged(stage: Path) -> None:
    """Each docs/NAME.md in a message is a page of the package."""
    shipped = {p.name for p in (stage / "doc").iterdir()}
    missing = sorted({(page, where) for where, text in _messages() for page in PAGE.findall(text) if page not in shipped})
    assert not missing


def test_pages_of_the_package_name_pages_of_the_package(stage: Path) -> None:
    """A page that is shipped links to no page beside it that is not."""
    shipped = {p.name for p in (stage / "doc").iterdir()}
    links = {
        (page.name, link)
        for page in (stage / "doc").glob("*.md")
        for link in re.findall(r"\]\(([A-Za-z0-9_-]+\.md)[)#]", page.read_text(encoding="utf-8"))
    }
    assert links
    assert not sorted(pair for pair in links if pair[1] not in shipped)


def test_no_message_sends_to_what_a_node_has_not() -> None:
    """No message names a script, a target of make, or a build: a node has the package and not the sources."""
    found = sorted((where, text) for where, text in _messages() if NOT_ON_A_NODE.search(text))
    assert not found


def test_the_catalogue_is_where_messages_say(stage: Path) -> None:
    """The catalogue's entries are in the package where surefootd looks for them: messages name workloads/NAME/workload.toml."""
    installed = {p.parent.name for p in (stage / "share" / "workloads").glob("*/workload.toml")}
    assert installed == {p.parent.name for p in (ROOT / "workloads").glob("*/workload.toml")}
    source = (ROOT / "scheduler/surefootd/src/base/places.rs").read_text(encoding="utf-8")
    assert 'const INSTALLED: &str = "/usr/share/surefoot/workloads";' in source
    assert "/usr/share/surefoot/" in (ROOT / "packaging/install.sh").read_text(encoding="utf-8")
