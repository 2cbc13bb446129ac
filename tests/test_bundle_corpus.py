"""The lab's half of tests/vectors/bundles.jsonl; the node's half is scheduler/learn/src/bundle_corpus_tests.rs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import bundle_corpus as corpus

from pipelines.artefact import bundle_rules


def test_the_corpus_is_what_the_code_makes() -> None:
    """Whoever changes a rule, a mutation or the builder writes the corpus anew, and the node is held to it."""
    assert corpus.CORPUS.read_text("utf-8") == corpus.text(), "run: python -m tests.bundle_corpus --write"


def test_the_lab_says_what_is_wanted(tmp_path: Path) -> None:
    """Every variant is taken, or refused for the reason that its mutation is: as folder and as tar, in one line."""
    wrong, said = [], Counter[str]()
    variants = [*corpus.read(), *corpus.declared()]  # those of megabytes are not stored
    seen: set[str] = set()
    for n, variant in enumerate(v for v in variants if not (v.name in seen or seen.add(v.name))):
        for form in variant.forms():
            at = tmp_path / f"{n}-{form}"
            at.mkdir()
            kind, message = corpus.lab_says(variant.write(at, form))
            said[kind] += 1
            assert message.isprintable(), variant.name
            if kind != variant.wanted(form):
                wrong.append(f"{variant.name} as {form}: want {variant.wanted(form)}, {kind}: {message}")
    assert wrong == []
    assert said.total() > 4000
    # host and key are not in a bundle; nothing is unreadable to who runs this as root
    assert set(bundle_rules.rules()["kinds"]) - set(said) == {"host", "key", "unreadable"}
