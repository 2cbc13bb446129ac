"""docs/architecture.md says what each crate and package may import, and the code keeps to it; docs/words.md says words once."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
WORDS = (ROOT / "docs/words.md").read_text("utf-8")

sys.path.insert(0, str(ROOT / "scripts" / "lint"))
import imports as lint_imports  # noqa: E402


def test_the_page_has_the_imports_of_every_crate_and_package() -> None:
    """The tables name each crate of the workspace and each package, with exactly what it imports of the others."""
    said = {path: imports for path, (_, imports) in lint_imports.floors_of_page().items()}
    assert said == lint_imports.crates() | lint_imports.rooms(lint_imports.python(), lambda name: name.split(".")[0])


def test_every_arrow_runs_downwards() -> None:
    """A crate or package stands on a floor above all that it imports."""
    floors = lint_imports.floors_of_page()
    floor_of = {path.rpartition("/")[2]: floor for path, (floor, _) in floors.items()}
    up = [(path, name) for path, (floor, imports) in floors.items() for name in imports if floor_of[name] >= floor]
    assert up == []


def test_every_file_that_a_page_names_is_there() -> None:
    """A program's file that a page names with its path exists, wherever files were moved: a reader can open it."""
    folders = "scheduler|workloads|collection|pipelines|models|tests|scripts|playbooks|examples|packaging"
    file = re.compile(rf"`((?:{folders})/[\w/.-]+\.(?:rs|py|sh|toml|yml|csv|jsonl?))`")
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/decisions/*.md"))]
    named = [(page.name, name) for page in pages for name in file.findall(page.read_text("utf-8"))]
    assert len(named) > 100
    assert [(page, name) for page, name in named if not (ROOT / name).is_file()] == []


def test_a_word_has_one_meaning() -> None:
    """A word stands once on the page of words, with a meaning; the README's table has no word that the page lacks."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", WORDS, flags=re.MULTILINE)
    words = [part.partition(" (")[0] for word, _ in rows if word not in ("word", "---") for part in word.split(", ")]
    qualified = {word for word, _ in rows if " (" in word}
    assert len(words) > 100
    assert [w for w in sorted(set(words)) if words.count(w) > 1 and not any(q.startswith(f"{w} (") for q in qualified)] == []
    table = (ROOT / "README.md").read_text("utf-8").partition("\n## Words\n")[2].partition("\n## ")[0]
    said = [part for word in re.findall(r"^\| ([^|]+) \|", table, flags=re.MULTILINE)[2:] for part in word.split(", ")]
    assert len(said) > 10
    assert [word for word in said if word not in words] == []


PERSONS = re.compile(r"\b(who|whom|somebody|nobody|whoever|everybody|anybody)\b", re.IGNORECASE)
# a user's name, a field's name, the word of a message that is shown as it is printed
NO_PERSONS = ("user `nobody`", "`anybody`", "anybody = false", "who is under-provisioned never idles")
NOT_YET = ("policy-parameters.md", "bounds.rs", "bounding.rs")  # the first goes with the sources of the policies


def test_a_service_is_no_person() -> None:
    """Pages and comments name what they speak of by a noun: a service, a user; never "who", "nobody". Studies stay as written."""
    found = []
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/decisions/*.md"))]:
        text = path.read_text("utf-8")
        for said in NO_PERSONS:
            text = text.replace(said, "")
        if path.name not in NOT_YET:
            found += [(path.name, line) for line in text.splitlines() if PERSONS.search(line)]
    for crate in ("server", "vserver"):
        for path in sorted((ROOT / "scheduler" / crate).glob("**/*.rs")):
            comments = [line.partition("//")[2] for line in path.read_text("utf-8").splitlines() if path.name not in NOT_YET]
            found += [(path.name, comment) for comment in comments if PERSONS.search(comment)]
    assert found == []
