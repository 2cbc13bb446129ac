"""Stage `report`: one page about one training.

    python -m pipelines.report --name NAME --rows FOLDER --labels FOLDER --models FOLDER --evaluate FOLDER --out FOLDER

Writes `report.html` (self-contained: nothing is fetched, no scripts), `report.json` (the same numbers), `headline.json` for `dvc
metrics` (services never seen, then held-out planes of services that were seen) and `versions.json`, the profiles that drift is
told from: of these data and of the version before. That file is read first and outlives the stage's next run (dvc.yaml,
`persist`), so it lies with the page that needs it, under DVC's digest, and needs no tracking server.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pipelines import drift, params, site
from pipelines.io import read_model, write_bytes, write_headline, write_json
from pipelines.pages import page, training_facts, training_page

_HEADLINE = tuple(f"{of}_{n}" for of in ("never_seen", "seen") for n in ("a_cores_mae", "b_error_macro_pct", "b_false_met"))
PAGE, FACTS, VERSIONS = "report.html", "report.json", "versions.json"


def versions(out: Path) -> drift.Versions:
    """Profiles that an earlier run kept; none at the first.

    Raises:
        BadInput: the file is damaged.
    """
    path = out / VERSIONS
    if not path.exists():
        return drift.Versions(versions=[])
    remedy = "restore it (`dvc checkout`), or remove it to begin anew"
    return read_model(path, drift.Versions, "the profiles of earlier versions", remedy)


def run(name: str, rows: Path, labels: Path, models: Path, evaluate: Path, out: Path, p: params.Params) -> dict[str, Any]:
    """Make the page; returns a summary."""
    facts, kept = training_facts.gather(name, rows, labels, models, evaluate, p, versions(out))
    html = page.render(training_page.build(facts)).encode()
    write_bytes(out / PAGE, html)
    write_json(out / FACTS, facts)
    write_headline(out, {name: facts["headline"][name] for name in _HEADLINE})
    write_json(out / VERSIONS, kept.model_dump())
    site.refresh(out / PAGE)
    found = facts["drift"]
    return {"page": str(out / PAGE), "bytes": len(html), "drifted": None if found is None else found["drifted"]}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.report", description="Make the page about one training.")
    parser.add_argument("--name", required=True, help="name of the data set")
    parser.add_argument("--rows", type=Path, required=True, help="output of the stage `rows`")
    parser.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
    parser.add_argument("--models", type=Path, required=True, help="folder of the models, outputs of the stage `train`")
    parser.add_argument(
        "--evaluate", type=Path, required=True, help="output of the stage `evaluate`, and of those that ask about more"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    a = parser.parse_args(argv)
    return params.run_stage(lambda: run(a.name, a.rows, a.labels, a.models, a.evaluate, a.out, params.load(a.params)))


if __name__ == "__main__":
    raise SystemExit(main())
