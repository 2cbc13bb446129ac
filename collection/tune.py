"""`surefoot tune`: values of a policy's settings, chosen on drawn worlds (docs/tune.md).

A trial runs the policy with other settings on all worlds (`surefootd eval`), and is compared with the defaults by workload and
seed. Optuna proposes what to try next. Worlds are drawn in two halves: the first one chooses, the second one has to agree.

    DIR/what            what the command was given; another command is refused there
    DIR/study.jsonl     Optuna's journal of trials, lines of JSON
    DIR/runs/NAME       rows of each evaluation
    DIR/tune.json       trials, the winner, what the second half says, the verdict
    DIR/tune.md         the same to read, with lines for node.toml
    DIR/sensitivity.json, sensitivity.md    each setting halved and doubled (`--sensitivity`)

A call that was killed goes on where it was, with the trials that it would have had: each is drawn from the seed, its number and
the trials before it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.inputs import SUMMARY_BYTES, Unreadable, choice, read_bytes, read_text, read_toml
from pipelines.io import canonical_json, check_output, make_folder, sha256_bytes, sha256_file, write_bytes, write_json

from . import tools
from .errors import InputError
from .worlds import Worlds

if TYPE_CHECKING:
    import optuna

POLICY = "surefoot"
TABLE = "tune.json"
PAGE = "tune.md"
SENSITIVITY = "sensitivity.json"
SENSITIVITY_PAGE = "sensitivity.md"
BE_WEIGHT = 0.1
"""One per cent of violation weighs as much as ten of BE throughput: violation comes first."""
FACTORS = {"halved": 0.5, "doubled": 2.0}
MOST_COST = 0.2
"""What halving or doubling a setting may cost of violation."""
RANDOM_TRIALS = 10
"""Trials before Optuna's estimator has enough to go by."""
DRAWS = 2000
_JOURNAL = "study.jsonl"
_KEY = "what"

Values = dict[str, float]


@dataclass(frozen=True)
class Options:
    """What the command was given; see `surefoot tune --help`."""

    worlds: str
    out: Path
    bundles: Path | None = None
    settings: Path | None = None
    seeds: int = 1
    seed: int = 1
    trials: int = 30
    threads: int | None = None


@dataclass(frozen=True)
class Setting:
    """A setting of the policy as `surefootd schema` lists it: one number."""

    name: str
    default: float
    low: float
    high: float
    whole: bool
    unit: str

    def scaled(self, factor: float) -> float:
        """The default times `factor` within its bounds. A whole number changes by one at least."""
        value = self.default * factor
        if self.whole:
            value = float(round(value))
            if value == self.default:
                value += 1 if factor > 1 else -1
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class Range:
    """Values of a setting that may be tried."""

    setting: Setting
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """A run of one workload with one seed."""

    violation_s: float
    be: float | None
    converged: bool


Rows = dict[tuple[str, str], Outcome]


def settings_of(policy: str = POLICY) -> list[Setting]:
    """Settings of a policy that are single numbers, in the order of its table.

    Raises:
        ToolMissing, ToolFailed: surefootd is not built, or is of another version.
    """
    listed = tools.run_json(tools.SUREFOOTD, ["schema", "--json"])["settings"]
    return [
        Setting(s["name"], s["default"][0], s["low"], s["high"], s["whole"], s["unit"])
        for s in listed
        if s["name"].startswith(f"{policy}.") and not s["is_list"]
    ]


def ranges(file: Path | None, known: Sequence[Setting]) -> list[Range]:
    """What is tried: `NAME = [LOW, HIGH]` of the file, or each setting from half to twice its default.

    Raises:
        InputError: a name that is no setting, or a range that is none or leaves the bounds.
    """
    if file is None:
        # What means the same halved and doubled (0) is left as it is.
        halves = [Range(s, s.scaled(0.5), s.scaled(2.0)) for s in known]
        return [r for r in halves if r.low < r.high]
    try:
        raw = read_toml(file)
    except Unreadable as e:
        raise InputError(f"{file}: not valid TOML: {e}. Write NAME = [LOW, HIGH], e.g. trust.margin = [0.06, 0.24]") from e
    by_name = {s.name: s for s in known}
    found = []
    for name, value in _flat(raw):
        full = name if name.startswith(f"{POLICY}.") else f"{POLICY}.{name}"
        setting = by_name.get(full)
        if setting is None:
            raise InputError(f"{file}: {name}: there is no such setting. {choice(full, by_name)}")
        numbers = value if isinstance(value, list) else []
        if len(numbers) != 2 or not all(type(x) in (int, float) for x in numbers) or not numbers[0] < numbers[1]:
            raise InputError(
                f"{file}: {name}: write [LOW, HIGH] with LOW below HIGH, e.g. {name} = [{setting.low:g}, {setting.high:g}]"
            )
        low, high = float(numbers[0]), float(numbers[1])
        if low < setting.low or high > setting.high or (setting.whole and (low % 1 or high % 1)):
            whole = "whole numbers " if setting.whole else ""
            raise InputError(f"{file}: {name}: the range is out of its bounds: {whole}from {setting.low:g} to {setting.high:g}")
        found.append(Range(setting, low, high))
    if not found:
        raise InputError(f"{file}: has no setting; write NAME = [LOW, HIGH], e.g. trust.margin = [0.06, 0.24]")
    return found


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


class Bench:
    """Evaluations of the policy with other settings, each kept in a folder of its own."""

    def __init__(self, given: Options) -> None:
        self.given = given
        wanted = Worlds.parse(given.worlds)
        if wanted.range != "tune":
            raise InputError(f"--worlds {given.worlds}: settings are chosen on tune worlds alone; give tune:1..40")
        if wanted.last == wanted.first:
            raise InputError(
                f"--worlds {given.worlds}: the first half chooses and the second has to agree; give two worlds or more"
            )
        middle = (wanted.first + wanted.last + 1) // 2
        self.halves = {"chosen on": f"tune:{wanted.first}..{middle - 1}", "held back": f"tune:{middle}..{wanted.last}"}
        self.whole = f"tune:{wanted.first}..{wanted.last}"

    def rows(self, worlds: str, values: Values) -> Rows:
        """Rows of the policy on these worlds with these settings; what was evaluated before is read.

        Raises:
            ToolFailed: the evaluation failed.
        """
        given = self.given
        said = [f"{name}={value!r}" for name, value in sorted(values.items())]
        key = sha256_bytes(canonical_json([worlds, said]))[:16]
        at = given.out / "runs" / key
        args: list[str | Path] = ["eval", "--worlds", worlds, "--policies", POLICY, "--seeds", str(given.seeds), "--out", at]
        args += ["--timelines", "none", "--progress", "none"]
        args += ["--harm", "no-models"] if given.bundles is None else ["--bundles", given.bundles]
        args += [] if given.threads is None else ["--threads", str(given.threads)]
        args += [word for one in said for word in ("--set", one)]
        if not (at / "rows.csv").is_file():
            make_folder(at.parent)
            tools.run(tools.SUREFOOTD, args)
        return _outcomes(at / "rows.csv")


def _outcomes(file: Path) -> Rows:
    found: Rows = {}
    for row in csv.DictReader(io.StringIO(read_text(file, SUMMARY_BYTES))):
        be = row["be_throughput"]
        found[row["workload"], row["seed"]] = Outcome(
            float(row["qos_violation_s"]), float(be) if be else None, row["converged"] == "true"
        )
    return found


@dataclass(frozen=True)
class Compared:
    """Settings against the defaults, over the same workloads and seeds."""

    violation: float
    """Mean violation over that of the defaults; 1 where both have none."""
    be: float
    """Mean BE throughput over that of the defaults; 1 where no workload has jobs."""
    failures: int
    """Runs more that do not converge."""
    cost: float
    """What is minimised: `violation`, less BE_WEIGHT of the gain in BE throughput."""
    cost_ci: tuple[float, float]
    """95 % of draws of worlds."""
    violation_ci: tuple[float, float]

    def as_json(self) -> dict[str, Any]:
        return {
            "violation": self.violation,
            "violation_ci": list(self.violation_ci),
            "be": self.be,
            "failures": self.failures,
            "cost": self.cost,
            "cost_ci": list(self.cost_ci),
        }

    def words(self) -> str:
        return f"violation {self.violation:.3f}, BE throughput {self.be:.3f} of the defaults', failures {self.failures:+d}"


def compared(default: Rows, other: Rows) -> Compared:
    """How settings compare with the defaults."""
    keys = sorted(default)
    # Seeds of a workload, and workloads of a world, are no independent draws: worlds are.
    world = [workload.rpartition("-")[0] for workload, _ in keys]
    names = sorted(set(world))

    def of_worlds(value: Callable[[Outcome], float], rows: Rows) -> Any:
        return np.array([sum(value(rows[k]) for k, w in zip(keys, world, strict=True) if w == name) for name in names])

    # A second more for each: where the defaults have nearly none, a ratio says nothing.
    before, after = (of_worlds(lambda o: o.violation_s + 1.0, rows) for rows in (default, other))
    jobs_before, jobs_after = (of_worlds(lambda o: o.be or 0.0, rows) for rows in (default, other))

    def ratios(rows: Any) -> tuple[Any, Any]:
        violation = after[rows].sum(axis=-1) / before[rows].sum(axis=-1)
        was = jobs_before[rows].sum(axis=-1)
        be = np.where(was > 0, jobs_after[rows].sum(axis=-1) / np.where(was > 0, was, 1.0), 1.0)
        return violation, be

    def cost(violation: Any, be: Any) -> Any:
        return violation - BE_WEIGHT * (be - 1.0)

    violation, be = ratios(np.arange(len(names)))
    drawn = ratios(np.random.default_rng(1).integers(0, len(names), (DRAWS, len(names))))
    ends = [2.5, 97.5]
    low, high = np.percentile(cost(*drawn), ends)
    v_low, v_high = np.percentile(drawn[0], ends)
    failures = sum(default[k].converged for k in keys) - sum(other[k].converged for k in keys)
    return Compared(
        float(violation),
        float(be),
        failures,
        float(cost(violation, be)),
        (float(low), float(high)),
        (float(v_low), float(v_high)),
    )


def run(given: Options, said: Callable[[str], None]) -> dict[str, Any]:
    """Try settings, and ask the worlds that were held back; returns what tune.json holds.

    Args:
        said: takes a line of progress a trial.
    Raises:
        InputError, BadInput: names the option or file at fault.
        ToolMissing, ToolFailed: surefootd is not built, or an evaluation failed.
    """
    bench = Bench(given)
    tried = ranges(given.settings, settings_of())
    _begin(given, {"tried": [[r.setting.name, r.low, r.high] for r in tried], "trials": "any number"}, TABLE)
    chosen_on, held_back = bench.halves["chosen on"], bench.halves["held back"]
    default = bench.rows(chosen_on, {})
    if not any(o.violation_s for o in default.values()) and all(o.be is None for o in default.values()):
        raise InputError(
            f"--worlds {given.worlds}: no workload has a violation or a BE job, so nothing can be chosen; give more worlds"
        )
    trials: list[dict[str, Any]] = []
    study = _Study(given, tried)
    for values, told in study.trials(given.trials):
        found = compared(default, bench.rows(chosen_on, values))
        if told is None:
            study.tell(found.cost)
        trials.append({"trial": len(trials) + 1, "settings": values, **found.as_json()})
        said(f"trial {len(trials)} of {given.trials}: {found.words()}")
    best = min(trials, key=lambda t: float(t["cost"]))
    held = compared(bench.rows(held_back, {}), bench.rows(held_back, best["settings"]))
    # Better on the worlds that chose it is what every winner is. The others decide: BE throughput buys no violation.
    better = float(best["cost"]) < 1.0 and held.cost_ci[1] < 1.0 and held.violation <= 1.0 and held.failures <= 0
    verdict = "take" if better else "keep the defaults"
    found_all = {
        "policy": POLICY,
        "worlds": bench.halves,
        "models": "none" if given.bundles is None else "of each world's own server",
        "seeds": given.seeds,
        "seed": given.seed,
        "rule": f"least cost: violation, less {BE_WEIGHT:g} of the gain in BE throughput, over the defaults",
        "defaults": {r.setting.name: r.setting.default for r in tried},
        "trials": trials,
        "best": best["trial"],
        "held_back": held.as_json(),
        "verdict": verdict,
    }
    write_json(given.out / TABLE, found_all)
    write_bytes(given.out / PAGE, page(found_all).encode())
    said(f"held back: {held.words()}; {verdict}")
    return found_all


class _Study:
    """Optuna's study: what is tried next, from what was seen."""

    def __init__(self, given: Options, tried: Sequence[Range]) -> None:
        import optuna
        from optuna.storages import journal

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        file = given.out / _JOURNAL
        _whole_lines(file)
        backend = journal.JournalFileBackend(str(file), journal.JournalFileOpenLock(str(file)))
        # A lock that a killed call has left would be waited for.
        Path(f"{file}.lock").unlink(missing_ok=True)
        storage = optuna.storages.JournalStorage(backend)
        self.study = optuna.create_study(storage=storage, study_name=POLICY, load_if_exists=True, direction="minimize")
        self.seed = given.seed
        self.asked: optuna.Trial | None = None
        self.space: dict[str, optuna.distributions.BaseDistribution] = {}
        for r in tried:
            # Prices and times are chosen by their ratio.
            log = r.low > 0
            self.space[r.setting.name] = (
                optuna.distributions.IntDistribution(int(r.low), int(r.high), log=log)
                if r.setting.whole
                else optuna.distributions.FloatDistribution(r.low, r.high, log=log)
            )
        # What a killed call was trying is tried again, from the same draw.
        for trial in self.study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING]):
            self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    def trials(self, most: int) -> Iterator[tuple[Values, float | None]]:
        """So many trials: those that are there with their cost, then new ones, which are told before the next."""
        import optuna

        done = self.study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
        for trial in done[:most]:
            yield self._values(trial.params), trial.value
        for number in range(len(done), most):
            self.study.sampler = optuna.samplers.TPESampler(
                seed=int(np.random.default_rng((self.seed, number)).integers(2**31)),
                n_startup_trials=RANDOM_TRIALS,
                multivariate=True,
                constant_liar=False,
            )
            self.asked = self.study.ask(self.space)
            yield self._values(self.asked.params), None

    def tell(self, cost: float) -> None:
        """The cost of the trial that was asked for last."""
        assert self.asked is not None
        self.study.tell(self.asked, cost)

    @staticmethod
    def _values(params: Mapping[str, Any]) -> Values:
        # Four digits are what is evaluated, and what is written down.
        return {name: float(f"{value:.4g}") for name, value in params.items()}


def _whole_lines(file: Path) -> None:
    """A journal that was cut off within a line: without that part."""
    if file.is_file():
        whole = read_bytes(file).rpartition(b"\n")
        if whole[2]:
            write_bytes(file, whole[0] + whole[1])


def _begin(given: Options, of_command: dict[str, Any], table: str) -> None:
    """That the folder is new, or of the same command."""
    inputs = [] if given.bundles is None else [("--bundles", given.bundles)]
    check_output("--out", given.out / table, inputs, overwrite=True)
    bundles = [] if given.bundles is None else sorted((b.name, sha256_file(b)) for b in given.bundles.glob("*.tar"))
    what = {"worlds": given.worlds, "seeds": given.seeds, "seed": given.seed, "bundles": [list(b) for b in bundles], **of_command}
    key = canonical_json({**what, "surefootd": sha256_file(tools.find(tools.SUREFOOTD))})
    make_folder(given.out)
    path = given.out / _KEY
    if path.is_file():
        if read_bytes(path) != key:
            raise InputError(f"--out {given.out}: is of other worlds, ranges, bundles, seeds or programs; give another folder")
    elif any(given.out.iterdir()):
        raise InputError(
            f"--out {given.out}: is not empty, and nothing in it says that it is of this command; give another folder"
        )
    else:
        write_bytes(path, key)


def sensitivity(given: Options, said: Callable[[str], None]) -> dict[str, Any]:
    """Each setting halved and doubled on all worlds; returns what sensitivity.json holds.

    Args:
        said: takes a line of progress a setting.
    Raises:
        As `run`.
    """
    bench = Bench(given)
    tried = [r.setting for r in ranges(given.settings, settings_of())]
    _begin(given, {"sensitivity": [s.name for s in tried]}, SENSITIVITY)
    default = bench.rows(bench.whole, {})
    lines: list[dict[str, Any]] = []
    for number, setting in enumerate(tried, 1):
        line: dict[str, Any] = {"name": setting.name, "default": setting.default, "unit": setting.unit}
        for word, factor in FACTORS.items():
            value = setting.scaled(factor)
            if value != setting.default:
                line[word] = {"value": value, **compared(default, bench.rows(bench.whole, {setting.name: value})).as_json()}
        lines.append(line)
        told = ", ".join(f"{word} {100 * (line[word]['violation'] - 1):+.1f} %" for word in FACTORS if word in line)
        said(f"{number} of {len(tried)}: {setting.name}: violation {told or 'at its bounds'}")
    worst = max((float(x[w]["violation"]) for x in lines for w in FACTORS if w in x), default=1.0)
    found = {
        "policy": POLICY,
        "worlds": bench.whole,
        "models": "none" if given.bundles is None else "of each world's own server",
        "seeds": given.seeds,
        "settings": lines,
        "worst": worst,
        "within": worst <= 1 + MOST_COST,
    }
    write_json(given.out / SENSITIVITY, found)
    write_bytes(given.out / SENSITIVITY_PAGE, sensitivity_page(found).encode())
    return found


def node_lines(values: Mapping[str, float]) -> list[str]:
    """Lines for node.toml."""
    return ["[policy.settings]", *(f"{name} = {value:g}" for name, value in values.items())]


def page(found: Mapping[str, Any]) -> str:
    """tune.md."""
    trials: list[dict[str, Any]] = found["trials"]
    best = trials[found["best"] - 1]
    held = found["held_back"]
    out = [f"# Settings of {found['policy']}, tried on tune worlds", ""]
    out += [
        f"Verdict: **{found['verdict']}**. Chosen on {found['worlds']['chosen on']}, held back {found['worlds']['held back']}.",
        "",
    ]
    out += [f"Models: {found['models']}. Seed {found['seed']}, {found['seeds']} runs a workload. Rule: {found['rule']}.", ""]
    out += ["| worlds | violation (95 %) | BE throughput | more failures | cost (95 %) |", "| --- | --- | --- | --- | --- |"]
    for word, c in (("chosen on", best), ("held back", held)):
        v, k = c["violation_ci"], c["cost_ci"]
        out.append(
            f"| {word} | {c['violation']:.3f} ({v[0]:.3f} to {v[1]:.3f}) | {c['be']:.3f} | {c['failures']} "
            f"| {c['cost']:.3f} ({k[0]:.3f} to {k[1]:.3f}) |"
        )
    out += ["", "| trial | violation | BE throughput | cost |", "| --- | --- | --- | --- |"]
    out += [f"| {t['trial']} | {t['violation']:.3f} | {t['be']:.3f} | {t['cost']:.3f} |" for t in trials]
    out += ["", f"Trial {best['trial']}, for node.toml:", "", *(f"    {line}" for line in node_lines(best["settings"]))]
    return "\n".join(out) + "\n"


def sensitivity_page(found: Mapping[str, Any]) -> str:
    """sensitivity.md."""

    def cell(line: Mapping[str, Any], word: str) -> str:
        if word not in line:
            return "at its bound"
        c = line[word]
        low, high = (100 * (x - 1) for x in c["violation_ci"])
        return f"{100 * (c['violation'] - 1):+.1f} % ({low:+.1f} to {high:+.1f}), BE {100 * (c['be'] - 1):+.1f} %"

    out = [f"# Sensitivity of {found['policy']} to its settings", ""]
    worst = f"{100 * (found['worst'] - 1):+.1f} %"
    out += [f"On {found['worlds']}; models: {found['models']}; {found['seeds']} runs a workload. Worst: {worst}.", ""]
    out += ["| setting | value | halved: violation (95 %), BE throughput | doubled |", "| --- | --- | --- | --- |"]
    out += [f"| `{x['name']}` | {x['default']:g} | {cell(x, 'halved')} | {cell(x, 'doubled')} |" for x in found["settings"]]
    return "\n".join(out) + "\n"
