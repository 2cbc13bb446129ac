"""The training report as a page: the facts of pipelines/pages/training_facts.py in tables, figures and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.measures import RATIOS
from pipelines.pages import training_charts as charts
from pipelines.pages.metric_words import METHODS, MODELS, describe, other
from pipelines.pages.page import (
    Callout,
    Column,
    Drawing,
    Figures,
    Heading,
    Page,
    Section,
    Table,
    Text,
    Tile,
    badge,
    counted,
    number,
    per_cent,
)
from pipelines.pages.published import HIGHER
from pipelines.pages.training_facts import HEADLINE, flat
from pipelines.samples import VERDICTS

Facts = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]

_SEEDS = {"split": "label", "training": "train", "evaluation": "evaluate", "comparators": "compare"}
_VERSIONS = {"_as_is": ", as they are", "_rescaled": ", rescaled", "_constant": ", of a constant", "_nearest": ", of the nearest"}
"""Ends of a metric that is not of the models as they were trained and measured (pipelines/generalise.py)."""
_LOSSES = {"critic_loss": "critic", "actor_loss": "actor (a return, larger in size is better)"}


def build(facts: Facts) -> Page:
    """The page of one training."""
    trained = facts["trained_on"]
    commit = trained["git_commit"]
    platform = trained["platform"]
    page = Page(
        title=f"Training report: {facts['dataset']}",
        lede=(
            f"{' '.join(_headline(facts))} Below: what the models of one data set were trained on, how far off they are where "
            "they never looked, what the papers and simpler methods reach, and what changed since the training before."
        ),
        facts=[
            ("data", f"{trained['campaign']}, SHA-256 {trained['data_sha256']}"),
            ("platform", f"{platform['name']}: {number(platform['cores'])} cores, {platform['ways']} ways"),
            ("feature set", trained["feature_set"]),
            ("rows / planes", f"{trained['rows']:,} / {sum(trained['planes'].values()):,}"),
            ("services", f"{len(trained['services'])}"),
            ("source, as this page was made", _commit(commit, trained["git_dirty"])),
        ],
        footer="Made by the stage `report` (pipelines/report.py) from what the others left; report.json has the same numbers.",
    )
    page.tiles = _tiles(facts)
    # in the order of a reader's questions: how good where it never was, and where it was, better than before, where not, how made
    page.sections = [
        _unseen(facts),
        _errors(facts),
        _changed(facts),
        _drift(facts),
        _where(facts),
        _calibration(facts),
        _transfer(facts),
        _importance(facts),
        _training(facts),
        _data(facts),
    ]
    return page


def _headline(facts: Facts) -> list[str]:
    """How far off, for whom, is it safe: first of services never seen, then of those that were."""
    told, alone = facts["headline"], facts["unseen"]["leave_one_out"]
    if alone is None:
        lines = [
            f"Services never seen: not measured (name {facts['dataset']} in leave_one_out in params.yaml), so nothing below says "
            "what the models are worth for them."
        ]
    else:
        rows = alone["by_service"] or []
        lines = [f"Services never seen ({len(rows)}, each left out once): {_off(told, 'never_seen')}"]
        if worst := _worst(rows):
            lines.append(f"Worst: {worst}.")
        lines.append(_scatter(alone["metrics"]))
    lines.append(f"Held-out loads of the {counted(len(facts['trained_on']['services']), 'service')} seen: {_off(told, 'seen')}")
    return lines


def _off(told: Mapping[str, float | None], of: str) -> str:
    """The figures of one kind of question, each with the constant's."""

    def figure(name: str, scale: float = 1.0, unit: str = "") -> str:
        ours, constant = told[f"{of}_{name}"], told[f"{of}_{name}_constant"]
        if ours is None:
            return "not measured"
        beside = "" if constant is None else f" (a constant {number(scale * constant)}{unit})"
        return f"{number(scale * ours)}{unit}{beside}"

    safe = told[f"{of}_b_false_met"]
    harm = told[f"{of}_b_harm_pct"]
    said = "whether it is safe was not measured." if safe is None else f"it calls {per_cent(safe)} of what misses QoS met"
    if safe is not None:
        said += f", which then falls short by {number(harm)} %." if safe > 0 else "."
    return (
        f"Model-A is off by {figure('a_cores_mae')} cores and {figure('a_ways_mae')} ways; Model-B by "
        f"{figure('b_error_pct', unit=' %')} of QoS, and {figure('b_error_macro_pct', unit=' %')} where cells that meet and that "
        f"miss weigh the same; {said}"
    )


def _worst(rows: Rows) -> str:
    """The services that the models are furthest off for."""
    found = []
    for name, letter in (("a_cores_mae", "A"), ("b_error_macro_pct", "B")):
        known = [r for r in rows if r.get(name) is not None]
        if known:
            row = max(known, key=lambda r: float(r[name]))
            found.append(f"{row['service']} for Model-{letter} ({number(row[name])}{' %' if letter == 'B' else ' cores'})")
    return ", ".join(found)


def _scatter(metrics: Mapping[str, float]) -> str:
    """What is known of how far trainings scatter."""
    count = int(metrics.get("trainings") or 1)
    if count == 1:
        return "One training: scatter between trainings is not in these figures."
    spans = [
        f"{describe(n)[0].split(': ', 1)[-1]} {number(metrics[f'{n}_least'])} to {number(metrics[f'{n}_most'])}"
        for n in ("a_cores_mae", "a_ways_mae", "b_error_pct")
        if f"{n}_least" in metrics
    ]
    return f"Of {count} trainings, least to most: {'; '.join(spans)}."


def _commit(commit: str | None, dirty: bool | None) -> str:
    if commit is None:
        return "not a git checkout"
    return f"commit {commit[:12]}" + (", with changes that are not committed" if dirty else "")


# ---------------------------------------------------------------- errors


def _tiles(facts: Facts) -> list[Tile]:
    errors = facts["errors"]
    known = [e for e in errors if e["within_paper"] is not None]
    good = sum(e["within_paper"] for e in known)
    compared = [e for e in errors if e["no_worse"] is not None]
    fair = sum(e["no_worse"] for e in compared)
    margin = facts["params"]["report"]["comparator_margin"]
    outside = [e for e in known if not e["within_paper"]]
    far = [times for e in outside if (times := _times(e)) is not None]
    why = f"{'The others' if good else 'All'} are {_span(far)} the papers'. " if far else ""
    why += "“Errors” says what differs and what simple methods reach on the same rows." if outside else ""
    tiles = [
        Tile(
            "errors within the papers'",
            f"{good} of {len(known)}" if known else "none to compare",
            why.strip()
            or ("Each is at least as good as its paper's." if known else "No paper has a figure of what was measured."),
            "" if known and good == len(known) else "missing",
        ),
        Tile(
            f"errors within {100 * margin:g} % of the best comparator's",
            f"{fair} of {len(compared)}" if compared else "no comparators",
            "constant, nearest neighbour, linear fit, LightGBM: the best of them for each error"
            if compared
            else "stage compare was not run",
            "" if compared and fair == len(compared) else "missing",
        ),
        _changed_tile(facts),
    ]
    drift = facts["drift"]
    if drift is None:
        tiles.append(Tile("drift", "no previous version", "the first version of these data that a report was made of", "missing"))
    else:
        n = len(drift["drifted"])
        tiles.append(
            Tile(
                "drift",
                f"{n} drifted" if n else "none",
                ", ".join(drift["drifted"]) or "against the previous version",
                "missing" if n else "",
            )
        )
    return tiles


def _higher(metric: str) -> bool:
    """Whether more is better."""
    return metric.endswith((*HIGHER, "_reduction_pct"))


def _lacks(metric: str, value: float) -> float:
    """An error: of an accuracy, what it lacks of 1."""
    return 1 - value if metric.endswith(HIGHER) else value


def _times(e: Mapping[str, Any]) -> float | None:
    """How many times the paper's error ours is."""
    its = _lacks(e["metric"], e["paper"]["value"])
    return None if _higher(e["metric"]) and not e["metric"].endswith(HIGHER) else _lacks(e["metric"], e["ours"]) / its


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.1f} ×" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f} ×"


def _short_name(metric: str) -> str:
    return describe(metric)[0].split(",")[0]


def _changed_tile(facts: Facts) -> Tile:
    found = facts["changed"]
    if found is None:
        return Tile(
            "against the training before", "none before", "the first training of these data that a report was made of", "missing"
        )
    rows = [m for m in _compared(facts) if m["better"] is not None]
    better = sum(m["better"] for m in rows)
    worse = [_short_name(m["metric"]) for m in rows if not m["better"]]
    what = [f"{'the same' if found['same_data'] else 'other'} data", f"{len(found['params'])} parameters changed"]
    more = "; ".join(what) + (f"; worse: {', '.join(worse[:4])}" + (" and more" if len(worse) > 4 else "") if worse else "")
    return Tile(
        "errors better than in the training before",
        f"{better} of {len(rows)}" if rows else "as before",
        more,
        "missing" if worse else "",
    )


def _compared(facts: Facts) -> list[dict[str, Any]]:
    """Errors of both trainings. better: None where they are equal, as shown, or one is missing."""
    names = {e["metric"] for e in facts["errors"]}
    rows = []
    for m in facts["changed"]["metrics"]:
        if m["metric"] not in names:
            continue
        before, now = m["before"], m["now"]
        better = None
        if before is not None and now is not None and number(before) != number(now):
            better = (now > before) == _higher(m["metric"])
        rows.append({**m, "better": better})
    return rows


def _changed(facts: Facts) -> Section:
    section = Section("changed", "What changed since the training before", "Changes")
    found = facts["changed"]
    if found is None:
        section.blocks.append(Callout("There is no training before: this is the first report. The next one is set against it."))
        return section
    before, now = found["previous"], facts["trained_on"]
    data = "The same data" if found["same_data"] else f"Other data, SHA-256 {before['data_sha256']} before"
    commit = (before["git_commit"] or "unknown")[:12]
    section.blocks.append(
        Text(
            f"{data}: {before['rows']:,} rows and {before['planes']:,} planes before, {now['rows']:,} and "
            f"{sum(now['planes'].values()):,} now. Source before: commit {commit}. How the data differ says “Drift”."
        )
    )
    rows = []
    for m in _compared(facts):
        text, unit = describe(m["metric"])
        word: Any = "as before" if m["better"] is None else badge(m["better"], "better" if m["better"] else "worse")
        if m["before"] is None or m["now"] is None:
            word = "new" if m["before"] is None else "not measured now"
        rows.append([text, unit, number(m["before"]), number(m["now"]), _change(m["before"], m["now"]), word])
    columns = [
        Column("error"),
        Column("unit"),
        Column("before", True),
        Column("now", True),
        Column("change", True),
        Column("verdict"),
    ]
    section.blocks += [Heading("Errors on planes that were held out"), Table(columns, rows)]
    if not found["same_data"]:
        section.blocks.append(Text("Held-out planes are of each training's own data: errors differ for that alone, too.", "note"))
    section.blocks.append(Heading("Parameters"))
    if found["params"]:
        changes = [[c["name"], *("not there" if c[k] is None else c[k] for k in ("before", "now"))] for c in found["params"]]
        section.blocks.append(Table([Column("parameter"), Column("before"), Column("now")], changes))
    else:
        section.blocks.append(Text("No parameter changed."))
    return section


def _change(before: float | None, now: float | None) -> str:
    if before is None or now is None or before == 0:
        return "–"
    return f"{100 * (now / before - 1):+.1f} %"


def _outside(facts: Facts) -> list[Any]:
    """Why figures are outside the papers': what simple methods reach on the same rows, and what is not alike."""
    known = [e for e in facts["errors"] if e["within_paper"] is not None]
    outside = [e for e in known if not e["within_paper"]]
    if not outside:
        return []
    told = [f"{_short_name(e['metric'])} {number(e['ours'])} against {e['paper']['value']:g}" for e in outside]
    blocks: list[Any] = [
        Heading(f"Why {len(outside)} of {len(known)} are outside the papers'"),
        Text(f"{'; '.join(told)}."),
    ]
    compared = [e for e in outside if e["best"] is not None]
    if compared:
        reached = [e for e in compared if _reaches(e)]
        names = ", ".join(_short_name(e["metric"]) for e in reached)
        blocks.append(
            Text(
                f"On the same rows no simple method (constant, nearest neighbour, linear fit, LightGBM) is within the paper's in "
                f"{len(compared) - len(reached)} of these {len(compared)}: there the figure says how hard these data are. "
                + (f"One is in {len(reached)} ({names}): there the network has room." if reached else "")
            )
        )
    t = facts["trained_on"]
    planes = t["planes"]
    blocks.append(
        Text(
            "What is not alike. Data: the papers sampled real servers for months, some 2 billion samples of 62.7 million cases "
            f"(OSML+, Sec. 5); here are {t['rows']:,} rows of {sum(planes.values()):,} planes, on {t['platform']['name']}. "
            "Split: OSML+ holds out 30 % of the whole data set (Sec. 4.5), not saying by what; here whole planes are held out, "
            f"{planes['test']:,} of them, so every figure is of a load that training never saw."
        )
    )
    return blocks


def _reaches(e: Mapping[str, Any]) -> bool:
    """Whether the best comparator is within the paper's."""
    its, paper = e["comparators"][e["best"]], e["paper"]["value"]
    return bool(its >= paper if _higher(e["metric"]) else its <= paper)


def _against_paper(e: Mapping[str, Any]) -> Any:
    if e["paper"] is None:
        return "no figure"
    if e["within_paper"] is None:
        return "not measured here"
    far = "" if e["within_paper"] else f"{number(e['ours'])} against {e['paper']['value']:g}"
    return badge(e["within_paper"], "within the paper's" if e["within_paper"] else "outside the paper's", far)


def _against_best(e: Mapping[str, Any], margin: float) -> Any:
    if e["no_worse"] is None:
        return "not judged: one side" if e["comparators"] else "no comparator"
    ratio = e["over_best"]
    text = "" if ratio is None else f"{number(ratio)} × its error"
    if e["no_worse"]:
        word = "better" if ratio is not None and ratio < 1 else f"no worse (within {100 * margin:g} %)"
    else:
        word = f"worse by more than {100 * margin:g} %"
    return badge(e["no_worse"], word, text)


def _error_table(errors: Rows, margin: float) -> Table:
    rows = []
    for e in errors:
        text, unit = describe(e["metric"])
        version = e.get("version")
        best = "–" if e["best"] is None else f"{number(e['comparators'][e['best']])} ({METHODS.get(e['best'], e['best'])})"
        paper = "–" if e["paper"] is None else f"{e['paper']['value']:g} ({e['paper']['paper']}, {e['paper']['place']})"
        rows.append(
            [
                text + (f" ({version.replace('_', ' ')})" if version else ""),
                unit,
                number(e["ours"]),
                number(e["constant"]),
                number(e["nearest"]),
                best,
                paper,
                _against_best(e, margin),
                _against_paper(e),
            ]
        )
    columns = [Column("figure"), Column("unit"), Column("ours", True), Column("constant", True)]
    columns += [Column("nearest neighbour", True), Column("best comparator", True), Column("paper", True)]
    return Table([*columns, Column("against the comparator"), Column("against the paper")], rows)


def _errors(facts: Facts) -> Section:
    section = Section("errors", "Errors on planes that were held out", "Errors")
    metrics, errors = facts["metrics"], facts["errors"]
    platform = facts["trained_on"]["platform"]["name"]
    margin = facts["params"]["report"]["comparator_margin"]
    section.blocks.append(
        Text(
            f"{number(metrics.get('test_rows'))} samples of {number(metrics.get('test_planes'))} planes (a service at one load) "
            "that training never saw. The constant is fitted on training planes: of Model-A the median label, of Model-B “always "
            "met” or the median of QoS, whichever is better. Shares of what is right are better the higher, every other "
            "figure the lower; they are compared by what they lack of 1. For Model-A the paper is OSML's, by output: OSML+ only "
            "shows bars."
        )
    )
    section.blocks.append(_error_table(errors, margin))
    section.blocks += _outside(facts)
    where = sorted({e["paper"]["platform"] for e in errors if e["paper"]} - {""})
    if where and platform not in where:
        section.blocks.append(
            Callout(
                f"The papers' figures are of {', '.join(where)}, these data of {platform}: other cores, ways and services, so "
                "they are there for orientation only."
            )
        )
    elif where:
        section.blocks.append(
            Text("The papers measured on their own machines and services; the data here are those of this page.", "note")
        )
    if not [n for n in facts["models"] if n.startswith("osml-")]:
        section.blocks.append(Text("OSML's models were not trained on these data (osml_datasets in params.yaml).", "note"))
    methods = list(dict.fromkeys(m for e in errors for m in e["comparators"]))
    section.blocks.append(Heading("All comparators"))
    if methods:
        table = [
            [*describe(e["metric"]), number(e["ours"]), *[number(e["comparators"].get(m)) for m in methods]]
            for e in errors
            if e["comparators"]
        ]
        heads = [Column("figure"), Column("unit"), Column("ours", True), *[Column(METHODS.get(m, m), True) for m in methods]]
        section.blocks.append(Table(heads, table))
    else:
        section.blocks.append(
            Callout("No comparators: stage compare was not run, or its figures were not given to stage evaluate.")
        )
    shown = {e["metric"] for e in errors} | {f"{e['metric']}_{m}" for e in errors for m in e["comparators"]}
    split = [e["metric"] for e in errors if f"{e['metric']}_carried" in metrics or f"{e['metric']}_overloaded" in metrics]
    if split:
        section.blocks.append(Heading("By whether the sample's own allocation carries the load"))
        table = [[*describe(m), *[number(metrics.get(m + suffix)) for suffix in ("", "_carried", "_overloaded")]] for m in split]
        heads = [Column("figure"), Column("unit"), Column("all", True), Column("carried", True), Column("overloaded", True)]
        section.blocks.append(Table(heads, table))
        shown |= {f"{m}{suffix}" for m in split for suffix in ("_carried", "_overloaded")}
    rest = [m for m in sorted(metrics) if m not in shown and not m.endswith(tuple(RATIOS))]
    section.blocks.append(Heading("Other figures"))
    section.blocks.append(
        Table(
            [Column("figure"), Column("value", True)],
            [[other(m), number(metrics[m])] for m in rest],
        )
    )
    return section


# ---------------------------------------------------------------- where


def _column(rows: Rows, name: str) -> list[Any]:
    return [row.get(name) for row in rows]


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else number(value)


def _plain(rows: Rows, heads: Mapping[str, str]) -> Table:
    """A table of a stage as it is; `heads` names the columns that need it."""
    names = list(rows[0]) if rows else list(heads)
    text = {n for n in names if any(isinstance(row[n], str) for row in rows)}
    return Table(
        [Column(heads.get(n, n.replace("_", " ")), n not in text) for n in names], [[_cell(r[n]) for n in names] for r in rows]
    )


def _heads(rows: Rows) -> dict[str, str]:
    """Names of the error columns, with units; what of them is no network's own says so."""
    heads = {"b_error_pct": "Model-B: QoS error (%)", "samples": "samples (A)", "questions": "questions (B)"}
    for name in rows[0] if rows else ():
        if name.startswith(("a_", "b_")) and name not in heads:
            version = next((v for v in _VERSIONS if name.endswith(v)), "")
            text, unit = describe(name.removesuffix(version))
            what = text.split(": ", 1)[-1].removesuffix(", mean absolute error").replace("QoS capped at 1", "QoS error")
            heads[name] = f"Model-{name[0].upper()}: {what}{_VERSIONS.get(version, '')}{f' ({unit})' if unit else ''}"
    return heads


def errors_by_service(rows: Rows) -> list[Any]:
    """The errors of each service as the stage `evaluate` wrote them (by_service.csv), and what they are a mean of."""
    told = (
        "Means over the service's held-out samples (Model-A) and over the questions about them (Model-B), not over its planes: "
        "a plane of more samples counts for more."
    )
    return [_plain(rows, _heads(rows)), Text(told, "note")]


def _n(rows: Rows, counted_in: str, what: str, unit: str, prefix: str) -> str:
    """Of how many things a figure is, and how many of its groups have a value."""
    total = sum(int(r.get(counted_in) or 0) for r in rows)
    known = sum(any(r[c] is not None for c in r if c.startswith(prefix)) for r in rows)
    return f"{counted(total, what)}; {known} of {counted(len(rows), unit)} with a value"


def _missing(section: Section, facts: Facts, table: str, made_by: str = "evaluate") -> bool:
    """Says that a table is missing, if it is."""
    if facts["tables"][table]:
        return False
    section.blocks.append(
        Callout(f"Not shown: {table}.csv of stage {made_by} is missing or empty. Make it with `dvc repro --force {made_by}`.")
    )
    return True


def _errors_of(rows: Rows, *ends: str) -> dict[str, list[Any]]:
    """Model-A's error columns of these units, by what they are of."""
    heads = _heads(rows)
    names = [n for n in rows[0] if n.startswith("a_") and n.removesuffix("_mae").endswith(ends)]
    return {heads[n].removeprefix("Model-A: "): _column(rows, n) for n in names}


def _where(facts: Facts) -> Section:
    section = Section("where", "Where the errors are", "Where")
    section.blocks.append(Heading("By service"))
    if not _missing(section, facts, "by_service"):
        rows = facts["tables"]["by_service"]
        names = _column(rows, "service")
        drawn = [
            Drawing(
                charts.bars(
                    names, _errors_of(rows, "_cores", "_ways"), "mean absolute error, cores or ways", "Model-A by service"
                ),
                _n(rows, "samples", "held-out sample", "service", "a_"),
                "× = no label to measure on.",
            ),
            Drawing(
                charts.bars(
                    names,
                    {"QoS": _column(rows, "b_error_pct")},
                    "mean absolute error of QoS capped at 1, %",
                    "Model-B by service",
                ),
                _n(rows, "questions", "question", "service", "b_"),
                "Questions about allocations spread evenly over the plane, as in the paper.",
            ),
        ]
        section.blocks += [Figures(drawn), *errors_by_service(rows)]
    section.blocks.append(Heading("By distance from the cliff"))
    if not _missing(section, facts, "by_cliff"):
        rows = facts["tables"]["by_cliff"]
        x = _column(rows, "steps")
        label = "steps from the cliff (0 and up: QoS is met; below 0: missed)"
        section.blocks.append(
            Text(
                "Distance in single steps of the sweep along the nearer axis, cores or ways: 0 is the last allocation that meets "
                "QoS, -1 the first that does not; the ends count everything beyond. For Model-A the distance of the allocation "
                "that the sample was taken at, for Model-B of the one that it was asked about."
            )
        )
        drawn = [
            Drawing(
                charts.lines(
                    x,
                    _errors_of(rows, "_cores", "_ways"),
                    label,
                    "mean absolute error, cores or ways",
                    "Model-A around the cliff",
                    whole=True,
                ),
                _n(rows, "samples", "held-out sample", "distance", "a_"),
                "Model-A's error by where the sample was taken.",
            ),
            Drawing(
                charts.lines(
                    x,
                    {"QoS": _column(rows, "b_error_pct")},
                    label,
                    "mean absolute error of QoS, %",
                    "Model-B around the cliff",
                    whole=True,
                ),
                _n(rows, "questions", "question", "distance", "b_"),
                "Model-B's error by the allocation that it was asked about.",
            ),
        ]
        section.blocks += [Figures(drawn), _plain(rows, {**_heads(rows), "steps": "steps"})]
    return section


def _calibration(facts: Facts) -> Section:
    section = Section("calibration", "Calibration of Model-B", "Calibration")
    if _missing(section, facts, "calibration"):
        return section
    rows = facts["tables"]["calibration"]
    section.blocks.append(
        Text(
            "Where Model-B predicts so much QoS, how much is there, and how often is the target met? A calibrated model lies on "
            "the diagonal at the left, and at the right rises from 0 to 1 at a predicted QoS of 1."
        )
    )
    left, right = charts.calibration(*[_column(rows, n) for n in ("predicted_qos", "qos", "met_share")])
    filled = [r for r in rows if r.get("predicted_qos") is not None]
    n = f"{counted(sum(r['questions'] or 0 for r in rows), 'question')}, {len(filled)} of {counted(len(rows), 'bin')} with one"
    caption = "Bins of the predicted QoS; bins without a question are left out."
    heads = {
        "from_qos": "from QoS",
        "to_qos": "to QoS",
        "predicted_qos": "predicted, mean",
        "qos": "measured, mean",
        "met_share": "QoS met, share",
    }
    section.blocks += [Figures([Drawing(left, n, caption), Drawing(right, n, caption)]), _plain(rows, heads)]
    return section


def _importance(facts: Facts) -> Section:
    section = Section("importance", "What the models look at", "Importance")
    if _missing(section, facts, "importance"):
        return section
    section.blocks.append(
        Text(
            "Permutation importance: how much an error grows when one input is taken from another sample. Inputs that say the "
            "same (allocated ways and MB of cache) share their importance; below 0 is chance."
        )
    )
    for model in dict.fromkeys(_column(facts["tables"]["importance"], "model")):
        rows = [r for r in facts["tables"]["importance"] if r["model"] == model]
        kinds = list(dict.fromkeys(_column(rows, "error")))
        grown = {(r["input"], r["error"]): r["increase"] for r in rows}
        whole = {r["error"]: r["whole"] for r in rows}
        texts = {kind: describe(f"{model}_{kind}") for kind in kinds}
        first = kinds[0]
        inputs = sorted(dict.fromkeys(_column(rows, "input")), key=lambda i: -(grown.get((i, first)) or 0.0))
        name = MODELS.get(model, model)
        text, unit = texts[first]
        section.blocks.append(Heading(name))
        label = f"growth of the error of {text.split(': ', 1)[-1].split(',')[0]}, {unit}"
        section.blocks.append(
            Figures(
                [
                    Drawing(
                        charts.bars(inputs, {"growth": [grown.get((i, first)) for i in inputs]}, label, name),
                        f"{number(facts['metrics'].get('test_rows'))} held-out samples, {counted(len(inputs), 'input')}",
                        f"Without shuffling the error is {number(whole[first])} {unit}.",
                    )
                ]
            )
        )
        heads = [
            Column("input"),
            *[Column(f"{texts[k][0].split(': ', 1)[-1].split(',')[0]} ({texts[k][1]})", True) for k in kinds],
        ]
        table = [["nothing shuffled: the error itself", *[number(whole[k]) for k in kinds]]]
        table += [[i, *[number(grown.get((i, k))) for k in kinds]] for i in inputs]
        section.blocks.append(Table(heads, table))
    return section


# ---------------------------------------------------------------- beyond the data


def _unseen(facts: Facts) -> Section:
    section = Section("unseen", "Services and platforms never seen", "Never seen")
    margin = facts["params"]["report"]["comparator_margin"]
    alone = facts["unseen"]["leave_one_out"]
    section.blocks.append(Heading("Each service left out once"))
    if alone is None:
        section.blocks.append(
            Callout(
                f"Not run: name {facts['dataset']} in leave_one_out in params.yaml, then dvc repro report@{facts['dataset']}."
            )
        )
    else:
        section.blocks.append(
            Text(
                "Fitted without one service at a time and asked about it; means over the services, and each. "
                + _scatter(alone["metrics"])
            )
        )
        section.blocks += [_error_table(alone["errors"], margin), *_by_service(alone)]
    found = facts["unseen"]["foreign"]
    section.blocks.append(Heading("Other data"))
    if not found:
        section.blocks.append(
            Callout(
                "Not run: name data of other services or of another platform in foreign in params.yaml, with models: "
                f"{facts['dataset']}, then dvc repro report@{facts['dataset']}."
            )
        )
    for name, one in found.items():
        section.blocks.append(Heading(name))
        section.blocks += [_error_table(one["errors"], margin), *_by_service(one)]
    return section


def _by_service(found: Facts) -> list[Any]:
    """The first figures of each service, a constant's and the nearest neighbour's beside them."""
    rows = found["by_service"]
    if not rows:
        return [Callout("generalise.csv, the figures of each service, is missing.")]
    kept = {"service", "a_mae", *HEADLINE}
    told = [n for n in rows[0] if n in kept or _base(n) in kept]
    shown = [{n: row[n] for n in told} for row in rows]
    more = [] if len(told) == len(rows[0]) else [Text("All measures of each service are in generalise.csv.", "note")]
    return [_plain(shown, _heads(shown)), *more]


def _base(metric: str) -> str:
    """Of what a figure is, whoever it is of."""
    for end in (*_VERSIONS, "_constant", "_nearest"):
        metric = metric.removesuffix(end)
    return metric


def _transfer(facts: Facts) -> Section:
    section = Section("transfer", "Transfer from another platform", "Transfer")
    found = facts["transfer"]
    if found is None:
        section.blocks.append(
            Callout(
                f"Not run: name {facts['dataset']} in transfers in params.yaml, with the data set to begin from, then dvc repro "
                f"report@{facts['dataset']}."
            )
        )
        return section
    section.blocks.append(_error_table(found["errors"], 0.0))
    drawn, tables = [], []
    for letter, rows in found["curves"].items():
        if not rows:
            section.blocks.append(Callout(f"curve_{letter}.csv of stage transfer is missing."))
            continue
        unit = "cores or ways" if letter == "a" else "% of QoS"
        name = MODELS[letter]
        names = {"scratch": "from random weights", "transfer": "with transfer", "constant": "constant"}
        names |= {"nearest": "nearest neighbour"}
        both = {words: _column(rows, name) for name, words in names.items() if name in rows[0]}
        drawn.append(
            Drawing(
                charts.lines(
                    _column(rows, "samples"),
                    both,
                    "samples of the new platform (log)",
                    f"mean absolute error, {unit}",
                    name,
                    log_x=True,
                ),
                f"{counted(len(rows), 'size')} of the new data, {number(min(_column(rows, 'samples')))} to "
                f"{number(max(_column(rows, 'samples')))} samples",
                "Means over the seeds; least and most are in the table.",
            )
        )
        tables += [Heading(name), Text(f"Mean absolute errors, {unit}.", "note"), _plain(rows, {})]
    rest = {m: v for m, v in found["metrics"].items()}
    section.blocks += [Figures(drawn), *tables] if drawn else []
    section.blocks.append(Table([Column("figure"), Column("value", True)], [[m, number(v)] for m, v in sorted(rest.items())]))
    return section


def _drift(facts: Facts) -> Section:
    section = Section("drift", "Drift of the data", "Drift")
    limits = facts["params"]["report"]
    found = facts["drift"]
    if found is None:
        section.blocks.append(
            Callout(
                "There is no previous version: this is the first report of these data. The next one, of changed data, is "
                "compared with them."
            )
        )
        return section
    before, now = found["previous"], facts["trained_on"]
    section.blocks.append(
        Text(
            f"Previous version: {before['campaign']}, SHA-256 {before['data_sha256']}, {before['rows']:,} rows, "
            f"{before['planes']:,} planes on {before['platform']}. Now: {now['campaign']}, SHA-256 "
            f"{now['data_sha256']}, {now['rows']:,} rows, {sum(now['planes'].values()):,} planes on {now['platform']['name']}."
        )
    )
    if found["drifted"]:
        section.blocks.append(
            Callout(f"Drifted: {', '.join(found['drifted'])}. Models of the version before were not trained on data like these.")
        )
    else:
        section.blocks.append(Text("Nothing drifted."))
    columns = found["columns"]
    far = [c for c in columns if c["distance"] is not None]
    if far:
        ranked = sorted(far, key=lambda c: -c["distance"])
        section.blocks.append(
            Figures(
                [
                    Drawing(
                        charts.bars(
                            [c["name"] for c in ranked],
                            {"distance": [c["distance"] for c in ranked]},
                            "Wasserstein distance, standard deviations of the previous version",
                            "How far each column moved",
                            limit=limits["drift_distance"],
                        ),
                        f"{before['rows']:,} rows before, {now['rows']:,} now; {len(far)} of {len(columns)} columns compared",
                        "Line: report.drift_distance in params.yaml. Of few values so much is chance: then the limit is higher.",
                    )
                ]
            )
        )
    table = [
        [
            c["name"],
            c["kind"],
            number(c["mean_before"]),
            number(c["mean_now"]),
            per_cent(c["missing_before"]),
            per_cent(c["missing_now"]),
            number(c["distance"]),
            number(c["limit"]),
            badge(None, "drifted", c["why"]) if c["why"] else "as before",
        ]
        for c in columns
    ]
    heads = [
        Column("column"),
        Column("kind"),
        Column("mean before", True),
        Column("mean now", True),
        Column("missing before", True),
    ]
    heads += [Column("missing now", True), Column("distance", True), Column("limit", True), Column("verdict")]
    section.blocks.append(Table(heads, table))
    for s in found["shares"]:
        section.blocks.append(Heading(f"Shares of rows by {s['name']}"))
        verdict = f"drifted: {s['why']}" if s["why"] else "as before"
        section.blocks.append(Text(f"Population stability index {number(s['psi'])}, limit {number(s['limit'])}: {verdict}."))
        names = sorted({*s["before"], *s["now"]})
        shares = [[n, per_cent(s["before"].get(n)), per_cent(s["now"].get(n))] for n in names]
        section.blocks.append(Table([Column(s["name"]), Column("before", True), Column("now", True)], shares))
    return section


# ---------------------------------------------------------------- how


def _training(facts: Facts) -> Section:
    section = Section("training", "How the training went", "Training")
    drawn = []
    table = []
    for model, about in facts["models"].items():
        rows = facts["loss"][model] or []
        names = [n for n in (rows[0] if rows else {}) if n != "epoch"]
        ends = [f"{n.replace('_', ' ')} {number(rows[0][n])} → {number(rows[-1][n])}" for n in names if _measured(rows, n)]
        table.append(
            [
                MODELS[model],
                f"{about['steps']:,}",
                ", ".join(f"{n:,} {split}" for split, n in about["rows"].items()) or "–",
                f"{len(rows)}",
                "; ".join(ends) or "loss.csv is missing",
                ", ".join(about["missing_inputs"]) or "none",
            ]
        )
        # an actor's loss is a return, far from the critic's in size: a figure each
        actor = [n for n in names if n == "actor_loss"]
        for group in ([n for n in names if n not in actor and _measured(rows, n)], actor):
            if group:
                series = {
                    _LOSSES.get(n, n.removesuffix("_loss").replace("train", "training").replace("val", "validation")): _column(
                        rows, n
                    )
                    for n in group
                }
                title = MODELS[model] + (f": {next(iter(series))}" if len(group) == 1 else "")
                known = sum(all(r[n] is not None for n in group) for r in rows)
                taught = ", ".join(f"{k:,} {split} rows" for split, k in about["rows"].items()) or f"{about['steps']:,} steps"
                n = f"{taught}; {known} of {counted(len(rows), 'epoch')} with a finite loss"
                drawn.append(
                    Drawing(charts.lines(_column(rows, "epoch"), series, "epoch", _loss_label(group), title, whole=True), n)
                )
    heads = [Column("model"), Column("steps", True), Column("rows"), Column("epochs", True), Column("loss, first → last epoch")]
    section.blocks.append(Table([*heads, Column("inputs of its variant that the data have not")], table))
    if drawn:
        section.blocks.append(Figures(drawn))
        section.blocks.append(Text("Of a regression the weights of the best validation epoch are kept.", "note"))
    section.blocks.append(Heading("Parameters (params.yaml)"))
    section.blocks.append(Table([Column("parameter"), Column("value")], [[n, f"{v}"] for n, v in flat(facts["params"])]))
    return section


def _measured(rows: Rows, name: str) -> bool:
    """Whether a loss has values: without planes of a split there are none."""
    return any(row[name] is not None for row in rows)


def _loss_label(names: Sequence[str]) -> str:
    return "squared error of the return" if "critic_loss" in names else "loss, mean of an epoch"


def _spelt(name: str) -> str:
    """A field's name in words: a verdict as it is written everywhere (docs/words.md)."""
    verdict = name.replace("_", "-")
    return verdict if verdict in VERDICTS else name.replace("_", " ")


def _data(facts: Facts) -> Section:
    section = Section("data", "What was trained on", "Data")
    t = facts["trained_on"]
    p = t["platform"]
    runs = sorted({m["mlflow_run_id"] for m in facts["models"].values()})
    rows: list[list[str]] = [
        ["data set", facts["dataset"]],
        ["campaign", t["campaign"]],
        ["data, SHA-256 of the manifest", t["data_sha256"]],
        [
            "platform",
            f"{p['name']}: {number(p['cores'])} cores in steps of {number(p['core_step'])}, {p['ways']} ways of "
            f"{number(p['mb_per_way'])} MB, {'MBA' if p['mba'] else 'no MBA'}",
        ],
        ["feature set", t["feature_set"]],
        ["features that every row has", ", ".join(t["features"])],
        ["rows", f"{t['rows']:,}"],
        *[[f"rows left out: {_spelt(why)}", f"{n:,}"] for why, n in t["rows_left_out"].items()],
        *[[f"planes: {split}", f"{n:,}"] for split, n in t["planes"].items()],
        *[[f"cases: {_spelt(state)}", f"{n:,}"] for state, n in (t["cases"] or {}).items()],
        [
            "seeds",
            ", ".join(f"{what} {facts['params'][part]['seed']}" for what, part in _SEEDS.items()),
        ],
        ["source, as this page was made", t["git_commit"] or "not a git checkout"],
        ["MLflow run of the data set", ", ".join(runs)],
    ]
    section.blocks.append(Table([Column("what"), Column("value")], rows))
    section.blocks.append(Heading("Services"))
    section.blocks.append(
        Table(
            [
                Column("service"),
                Column("QoS target: p99, ms", True),
                Column("planes", True),
                Column("with a label", True),
                Column("held out", True),
            ],
            [
                [s["service"], number(s["qos_target_ms"]), f"{s['planes']:,}", f"{s['labelled']:,}", f"{s['held_out']:,}"]
                for s in t["services"]
            ],
        )
    )
    return section
