"""`campaign verify` finds a planted fault of each kind in data whose hashes and counts all agree, and nothing in good data."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from campaigns import measured
from test_hosts_campaign import HOSTS, TEXT, Hosts

from collection import campaign, card, mirror, verify
from collection.checks import clock
from collection.checks.cases import Sampling
from collection.findings import Finding
from pipelines.io import sha256_file

# `make test` takes a few of the units and seeds, `make test-faults` all
ALL = os.environ.get("SUREFOOT_FAULTS") == "all"
CAMPAIGN = """\
name = "sound"
seed = 5
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian", "img-dnn"]
threads = [8]
cores = "1..36 step 3"
ways = "1..20 step 3"
neighbours = { count = [0, 1], draws = 1 }
[sampling]
interval_ms = 1000
samples = 12
"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = measured(tmp_path_factory.mktemp("sound"), CAMPAIGN)
    cut(out / "server-1", 12)
    card.write(out)
    return out


def cut(folder: Path, count: int) -> None:
    """Cut a data set into more shards than the sweep does: 30,000 rows are one of its, a week's work has hundreds."""
    rows = pl.concat([pl.read_parquet(p) for p in sorted((folder / "shards").iterdir())])
    cases = rows["case_id"].unique(maintain_order=True)
    home = {case: i * count // cases.len() for i, case in enumerate(cases)}
    shutil.rmtree(folder / "shards")
    (folder / "shards").mkdir()
    entries = []
    rows = rows.with_columns(pl.col("case_id").replace_strict(home).alias("shard"))
    for (number,), part in rows.partition_by("shard", as_dict=True, include_key=False).items():
        file = folder / f"shards/part-{number:05}.parquet"
        part.write_parquet(file)
        entries.append({"file": f"shards/{file.name}", "rows": part.height, "sha256": sha256_file(file)})
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text("utf-8").splitlines()]
    last = 0
    for line in lines:
        line["shard"] = last = home.get(line["case_id"], last)
    (folder / "journal.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "utf-8")
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    (folder / "manifest.json").write_text(json.dumps({**manifest, "shards": entries}), "utf-8")


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "data")
    return tmp_path / "data"


def shards(data: Path) -> list[Path]:
    return sorted((data / "server-1/shards").iterdir())


def plant(data: Path, shard: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    """Rewrite a shard and make the manifest agree, so that only its content tells."""
    frame = pl.read_parquet(shard)
    change(frame).select(frame.columns).write_parquet(shard, compression="zstd")
    path = data / "server-1/manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    for entry in manifest["shards"]:
        if entry["file"].endswith(shard.name):
            entry["sha256"] = sha256_file(shard)
    # what of its rows is usable was counted before
    manifest["cases"].pop("usable_rows", None)
    path.write_text(json.dumps(manifest), "utf-8")


def as_on_a_machine(data: Path, **sampling: int) -> None:
    """The same rows as a real target's: its manifest names no profile of a platform."""
    path = data / "server-1/manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest["sources"] = {name: digest for name, digest in manifest["sources"].items() if not name.startswith("platform ")}
    manifest["spec"]["sampling"].update(sampling)
    path.write_text(json.dumps(manifest), "utf-8")
    (data / card.CARD).unlink()  # of other data


def case_of(shard: Path) -> str:
    """A case of a shard that is far from its cliff."""
    frame = pl.read_parquet(shard).filter(
        (pl.col("verdict") == "valid").all().over("case_id"),
        pl.col("alloc_cores").is_between(10, 31),
        pl.col("alloc_ways").is_between(7, 16),
    )
    return str(frame["case_id"][-1])


def of_case(case: str, column: str, factor: float, first: int = 0, last: int = 99) -> pl.Expr:
    """A column times a factor in the samples `first` to `last` of a case."""
    sample = pl.int_range(pl.len()).over("case_id")
    here = (pl.col("case_id") == case) & sample.is_between(first, last)
    return pl.when(here).then(pl.col(column) * factor).otherwise(pl.col(column)).cast(pl.Float64).alias(column)


def found(data: Path) -> list[Finding]:
    return verify.verify(data).findings


def only(data: Path) -> Finding:
    (finding,) = found(data)
    return finding


def test_sound_data_pass(sound: Path) -> None:
    """Nothing is found in an undisturbed campaign."""
    assert len(shards(sound)) >= 8
    assert found(sound) == []


@pytest.mark.parametrize("seed", range(11, 21) if ALL else [11, 12])
@pytest.mark.parametrize("strategy", ["exhaustive", "frontier", "random"])
def test_no_false_alarm(strategy: str, seed: int, tmp_path: Path) -> None:
    """Whatever the seed, strategy, service and length of an interval: measurement noise is no fault."""
    text = CAMPAIGN.replace("seed = 5", f'strategy = "{strategy}"\nseed = {seed}')
    text = text.replace('["moses", "xapian", "img-dnn"]', '["sphinx", "nginx", "memcached", "specjbb"]')
    text = text.replace("interval_ms = 1000", "interval_ms = 100").replace("samples = 12", f"samples = {3 + 3 * (seed - 11)}")
    if strategy == "frontier":
        text = text.replace('cores = "1..36 step 3"\nways = "1..20 step 3"\n', "")
    if strategy == "random":
        text += "[random]\ncells = 2000\n"
    (tmp_path / "campaign.toml").write_text(text, "utf-8")
    campaign.run(tmp_path / "campaign.toml", tmp_path / "out")
    assert found(tmp_path / "out") == []


def test_clock_that_jumps(data: Path) -> None:
    """`t_ms` that leaves its grid in the middle of a case."""
    shard = shards(data)[2]
    case = case_of(shard)
    late = (pl.col("case_id") == case) & (pl.col("t_ms") > 8_000)
    plant(
        data, shard, lambda f: f.with_columns(pl.when(late).then(pl.col("t_ms") + 7_000).otherwise(pl.col("t_ms")).alias("t_ms"))
    )
    finding = only(data)
    assert (finding.file, finding.severity, finding.cases) == (str(shard), "error", (case,))
    assert f"clock: column t_ms of case {case}: 16000 stands where 9000 must" in finding.what
    assert f"rm {shard}" in finding.remedy


@pytest.mark.parametrize(
    ("seconds", "sound"),
    [
        ((1.0, 1.0), True),
        ((0.3, 1.7), True),
        ((0.6, 0.3), True),
        ((1.4, 0.6), True),
        ((1.0, 4.0), False),
        ((0.25, 1.0), False),
    ],
)
def test_windows_that_come_late_count_in_another_row(seconds: tuple[float, float], sound: bool) -> None:
    """A load generator that waits sends late: whole windows in other rows are sound, more time than the case took is none."""
    count = [round(80_000 * s) for s in seconds]
    frame = pl.DataFrame({"case_id": ["a", "a"], "verdict": "valid", "count": count, "achieved_rps": 80_000.0})
    on_a_machine = Sampling(interval_ms=1000, samples=2, warmup_ms=500, virtual=False)
    assert (list(clock._counts(frame, on_a_machine)) == []) == sound
    # on a virtual server each row is of its interval
    assert (list(clock._counts(frame, replace(on_a_machine, virtual=True))) == []) == (seconds == (1.0, 1.0))


def test_samples_begin_when_a_service_has_settled(data: Path) -> None:
    """On a machine a warm-up shorter than `warmup_ms` is sound; a start before anything was sent is not."""
    as_on_a_machine(data)
    shard = shards(data)[2]
    case = case_of(shard)

    def earlier(ms: int) -> None:
        t_ms = pl.when(pl.col("case_id") == case).then(pl.col("t_ms") - ms).otherwise(pl.col("t_ms"))
        plant(data, shard, lambda f: f.with_columns(t_ms.cast(pl.Int64).alias("t_ms")))

    earlier(1_500)
    assert [f for f in found(data) if f.severity == "error"] == []
    earlier(1_500)
    assert f"column t_ms of case {case}" in only(data).what


def test_a_virtual_case_begins_after_its_whole_warmup(data: Path) -> None:
    """Nothing settles there: all samples of a case half a second early, step by step, are a clock that jumped."""
    shard = shards(data)[2]
    case = case_of(shard)
    early = pl.when(pl.col("case_id") == case).then(pl.col("t_ms") - 500).otherwise(pl.col("t_ms")).alias("t_ms")
    plant(data, shard, lambda f: f.with_columns(early))
    finding = only(data)
    assert (finding.severity, finding.cases) == ("error", (case,))
    assert f"clock: column t_ms of case {case}: 2500 stands where 3000 must" in finding.what


def test_clock_that_goes_backwards(data: Path) -> None:
    """Samples of a case in another order."""
    shard = shards(data)[1]
    case = case_of(shard)
    plant(data, shard, lambda f: pl.concat([f.filter(pl.col("case_id") != case), f.filter(pl.col("case_id") == case).reverse()]))
    assert f"column t_ms of case {case}" in only(data).what


def test_clock_that_stretches_an_interval(data: Path) -> None:
    """A jump of three seconds in one interval: every rate of that sample is a quarter, its count is not."""
    shard = shards(data)[3]
    case = case_of(shard)
    rates = ["llc_misses_per_s", "mbl_mbps", "cpu_usage_cores", "achieved_rps"]
    plant(data, shard, lambda f: f.with_columns(of_case(case, name, 0.25, 7, 7) for name in rates))
    findings = found(data)
    assert {f.cases for f in findings} == {(case,)}
    assert {f.file for f in findings} == {str(shard)}
    text = " ".join(f.what for f in findings)
    assert "columns count and achieved_rps" in text
    assert "are of 4000 ms, an interval has 1000" in text
    assert "columns llc_misses_per_s, mbl_mbps, cpu_usage_cores" in text
    assert all("clock" in f.what for f in findings)


def test_clock_that_stretches_an_interval_of_few_requests(data: Path) -> None:
    """The same where a sample has too few requests to tell its length by: only the rates, all alike, say it."""
    shard = shards(data)[3]
    case = case_of(shard)
    rates = ["llc_misses_per_s", "mbl_mbps", "cpu_usage_cores", "achieved_rps"]
    few = [pl.lit(90, pl.Int64).alias("count"), pl.lit("not-resolvable").alias("verdict")]
    plant(data, shard, lambda f: f.with_columns(*(of_case(case, name, 0.25, 7, 7) for name in rates), *few))
    errors = [f for f in found(data) if f.severity == "error"]
    assert [f.cases for f in errors] == [(case,)]
    assert "mbl_mbps, cpu_usage_cores and achieved_rps of case" in errors[0].what


@pytest.mark.parametrize("seed", range(5) if ALL else [0])
@pytest.mark.parametrize("whole", [False, True], ids=["of-interval", "of-case"])
@pytest.mark.parametrize("requests", [8, 30, 300])
def test_rates_that_follow_the_requests(requests: int, whole: bool, seed: int, data: Path) -> None:
    """Counters as on a machine: each interval's are as large as its requests are many, and these are Poisson. No jump."""
    as_on_a_machine(data)
    random = np.random.default_rng(seed)

    def served(f: pl.DataFrame) -> pl.DataFrame:
        # planes stay apart, and what a request needs stays what it was
        rps = requests * (1 + pl.col("rps") / 1e6)
        mean = requests * f["achieved_rps"] / f["rps"]
        factor = rps / pl.col("rps") * pl.col("n") / pl.col("mean")
        count = pl.col("n").sum().over("case_id") if whole else pl.col("n")
        told = count / pl.len().over("case_id") if whole else count
        verdict = pl.when((count < 368) & (pl.col("verdict") == "valid")).then(pl.lit("not-resolvable")).otherwise("verdict")
        return f.with_columns(mean.alias("mean"), pl.Series("n", random.poisson(mean))).with_columns(
            *(pl.col(name) * factor for name in ("llc_misses_per_s", "mbl_mbps", "cpu_usage_cores")),
            told.cast(pl.Float64).alias("achieved_rps"),
            rps.alias("rps"),
            count.alias("count"),
            verdict.alias("verdict"),
        )

    for shard in shards(data):
        plant(data, shard, served)
    # a warning that something was there while one request came instead of eight is no error
    assert [f for f in found(data) if f.severity == "error"] == []


def late_window(data: Path, shard: Path, case: str, ms: int) -> None:
    """A sample that holds the requests of so many milliseconds, in rows of 100 ms."""
    sample = pl.int_range(pl.len()).over("case_id")
    here = (pl.col("case_id") == case) & (sample == 5)
    t_ms = pl.col("t_ms").first().over("case_id") - 900 + 100 * sample  # from the grid of a second
    plant(
        data,
        shard,
        lambda f: f.with_columns(
            t_ms.cast(pl.Int64).alias("t_ms"),
            (pl.col("achieved_rps") / 1000 * pl.when(here).then(ms).otherwise(100)).round().cast(pl.Int64).alias("count"),
            (pl.col("achieved_rps") / 1000 * pl.when(here).then(ms).otherwise(100)).round().alias("n"),
        ).with_columns((pl.col("n") * 1000 / pl.when(here).then(ms).otherwise(100)).alias("achieved_rps")),
    )


def test_a_window_that_arrives_late(data: Path) -> None:
    """The next interval of 100 ms has two of them."""
    case = case_of(shards(data)[3])
    as_on_a_machine(data, interval_ms=100)
    for shard in shards(data):
        late_window(data, shard, case, 200)
    assert [f for f in found(data) if "clock" in f.what] == []


@pytest.mark.parametrize("ms", [130, 700])
def test_a_jump_is_no_late_window(ms: int, data: Path) -> None:
    """130 ms is no whole number of windows, and seven of them are not one that was late."""
    case = case_of(shards(data)[3])
    as_on_a_machine(data, interval_ms=100)
    for shard in shards(data):
        late_window(data, shard, case, ms)
    (finding,) = [f for f in found(data) if "clock" in f.what]
    assert (finding.severity, finding.cases) == ("error", (case,))
    assert f"are of {ms} ms, an interval has 100" in finding.what


def test_noisy_neighbour_during_a_case(data: Path) -> None:
    """For four of twelve samples something else ran: slower, more misses, a longer tail. A warning names the case."""
    shard = shards(data)[4]
    case = case_of(shard)
    factors = {"ipc": 0.6, "llc_misses_per_s": 1.8, "latency_p95_ms": 3.0, "latency_p99_ms": 3.5}
    plant(data, shard, lambda f: f.with_columns(of_case(case, name, x, 4, 7) for name, x in factors.items()))
    finding = only(data)
    assert (finding.file, finding.severity, finding.cases) == (str(shard), "warning", (case,))
    assert f"disturbed: case {case}" in finding.what
    assert "t_ms 7000 to 10000" in finding.what
    assert verify.verify(data).ok


def test_noisy_neighbour_during_a_whole_case(data: Path) -> None:
    """A cell that is slow from its first sample to its last stands out of its plane."""
    shard = shards(data)[4]
    case = case_of(shard)
    columns = [f"latency_{q}_ms" for q in ("mean", "p50", "p95", "p99")]
    plant(data, shard, lambda f: f.with_columns([of_case(case, name, 6.0) for name in columns]))
    finding = only(data)
    assert (finding.severity, finding.cases) == ("warning", (case,))
    assert f"stands out: case {case}" in finding.what


# off alike in all shards these are possible values: found only against other shards
RELATIVE = [("virt_mem_mb", 1024.0), ("res_mem_mb", 1 / 1024), ("mbl_mbps", 8.0), ("ipc", 8.0)]
UNITS = [
    ("ipc", 100.0),
    ("ipc", 8.0),
    ("llc_misses_per_s", 1e-3),
    ("llc_misses_per_s", 64.0),
    ("mbl_mbps", 1024.0),
    ("mbl_mbps", 8.0),
    ("mbl_mbps", 1e-6),
    ("cpu_usage_cores", 100.0),
    ("cpu_usage_cores", 0.01),
    ("virt_mem_mb", 1024.0),
    ("res_mem_mb", 1 / 1024),
    ("core_freq_mhz", 1e-3),
    ("core_freq_mhz", 1e3),
    ("alloc_cache_mb", 1024.0),
    ("nb_cache_mb", 1024.0),
    ("nb_mbl_mbps", 1000.0),
]


@pytest.mark.parametrize(("column", "factor"), UNITS if ALL else UNITS[1::3])
def test_wrong_unit_in_a_shard(column: str, factor: float, data: Path) -> None:
    """One shard has a feature in another unit: column and file are named."""
    shard = next(s for s in shards(data)[4:] if pl.read_parquet(s)["nb_cores"].max() > 0)
    plant(data, shard, lambda f: f.with_columns(pl.col(column) * factor))
    findings = found(data)
    assert findings
    assert {f.file for f in findings} == {str(shard)}
    assert {f.severity for f in findings} == {"error"}
    assert all(column in f.what for f in findings), findings


@pytest.mark.parametrize(("column", "factor"), [u for u in UNITS if u not in RELATIVE][:: 1 if ALL else 4])
def test_wrong_unit_in_every_shard(column: str, factor: float, data: Path) -> None:
    """All shards have it alike, so that none stands out: found by what no machine does."""
    for shard in shards(data):
        plant(data, shard, lambda f: f.with_columns(pl.col(column) * factor))
    findings = [f for f in found(data) if f.severity == "error"]
    assert any(column in f.what for f in findings), findings


def test_bandwidth_counter_that_stands_still(data: Path) -> None:
    """Bandwidth 0 while the cache misses is a fault with its own words, not a factor that cannot be told."""
    for shard in shards(data)[2:4]:
        plant(data, shard, lambda f: f.with_columns(pl.col("mbl_mbps") * 0))
    (finding,) = found(data)
    assert (finding.file, finding.severity) == (str(shards(data)[2]), "error")
    assert "column mbl_mbps (and in 1 other shards) is 0 while the cache misses" in finding.what


def test_latencies_of_zero(data: Path) -> None:
    """Requests that take no time at all are told, too."""
    shard = shards(data)[2]
    plant(data, shard, lambda f: f.with_columns(pl.col("latency_mean_ms") * 0))
    assert "column cpu_usage_cores (or the latencies)" in only(data).what


KEYS = ["platform", "service", "threads", "rps", "mba_pct", "neighbours", "repeat", "t_ms", "alloc_cores", "count", "verdict"]


@pytest.mark.parametrize("column", ["campaign", *KEYS, "errors"] if ALL else KEYS[1::3])
def test_null_in_a_column_that_every_row_has(column: str, data: Path) -> None:
    """Shard, column and case are named; a null is no value that a check could pass, and none breaks."""
    shard = shards(data)[2]
    case = case_of(shard)
    here = pl.when(pl.col("case_id") != case).then(pl.col(column)).alias(column)
    plant(data, shard, lambda f: f.with_columns(here))
    finding = only(data)
    assert (finding.file, finding.severity, finding.cases) == (str(shard), "error", (case,))
    assert f"column {column}: null in 12 of" in finding.what


def test_null_in_case_id(data: Path) -> None:
    """Rows of no case: one finding, with the case that misses them."""
    shard = shards(data)[2]
    case = case_of(shard)
    plant(data, shard, lambda f: f.with_columns(pl.when(pl.col("case_id") != case).then("case_id").alias("case_id")))
    finding = only(data)
    assert "column case_id: null in 12 of" in finding.what
    assert f"case {case}: in the journal and not here" in finding.what


def test_null_in_a_neighbour(data: Path) -> None:
    """A neighbour without cores."""
    shard = next(s for s in shards(data) if pl.read_parquet(s)["nb_cores"].max() > 0)
    each = pl.element().struct
    fields = [
        pl.lit(None, pl.Float64).alias("cores") if n == "cores" else each.field(n) for n in ("service", "cores", "ways", "rps")
    ]
    plant(data, shard, lambda f: f.with_columns(pl.col("neighbours").list.eval(pl.struct(fields))))
    assert "column neighbours: null in" in only(data).what


def test_the_factor_is_named(data: Path) -> None:
    """What it looks like, in words."""
    shard = shards(data)[5]
    plant(data, shard, lambda f: f.with_columns(pl.col("mbl_mbps") * 8))
    what = only(data).what
    assert "column mbl_mbps of" in what
    assert "(bits for bytes)" in what


def test_values_that_cannot_be(data: Path) -> None:
    """NaN, percentiles in disorder, more cores than there are: each is named with its column, rows and a case."""
    shard = shards(data)[0]
    case = case_of(shard)
    here = pl.col("case_id") == case
    plant(
        data,
        shard,
        lambda f: f.with_columns(
            pl.when(here).then(float("nan")).otherwise(pl.col("ipc")).alias("ipc"),
            pl.when(here).then(37.0).otherwise(pl.col("alloc_cores")).alias("alloc_cores"),
            of_case(case, "latency_p50_ms", 1e3),
        ),
    )
    what = {f.what.split(":")[0]: f for f in found(data)}
    assert {"column ipc", "column alloc_cores", "columns latency_p50_ms and latency_p95_ms"} <= set(what)
    assert "in 12 of" in what["column ipc"].what
    assert f"NaN in case {case}" in what["column ipc"].what or f"nan in case {case}" in what["column ipc"].what
    assert all(f.cases == (case,) for f in what.values() if f.severity == "error")


def test_dropped_shard(data: Path) -> None:
    """A shard that is gone from folder and manifest alike is missed by the journal."""
    gone = shards(data)[2]
    gone.unlink()
    path = data / "server-1/manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest["shards"] = [s for s in manifest["shards"] if not s["file"].endswith(gone.name)]
    path.write_text(json.dumps(manifest), "utf-8")
    finding = only(data)
    assert f"shards/{gone.name} is missing" in finding.what


def test_swapped_targets(tmp_path: Path) -> None:
    """Two targets whose folders were swapped: both are named."""
    text = (
        CAMPAIGN.replace('["server-1"]', '["server-1", "server-2"]')
        .replace("1..36 step 3", "1..8")
        .replace("1..20 step 3", "2..11 step 3")
    )
    (tmp_path / "campaign.toml").write_text(text, "utf-8")
    out = tmp_path / "out"
    campaign.run(tmp_path / "campaign.toml", out)
    assert found(out) == []
    for old, new in (("server-1", "x"), ("server-2", "server-1"), ("x", "server-2")):
        (out / old).rename(out / new)
    findings = [f for f in found(out) if "targets are swapped" in f.what]
    assert {f.file for f in findings} == {str(out / t / "manifest.json") for t in ("server-1", "server-2")}


def test_shard_of_another_platform(data: Path) -> None:
    """Rows that say another platform than their manifest."""
    shard = shards(data)[6]
    plant(data, shard, lambda f: f.with_columns(pl.lit("server-2").alias("platform")))
    assert any("column platform: server-2, the manifest says server-1" in f.what for f in found(data))


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(tmp_path / "hosts").stand_in(monkeypatch)


def swap(a: Path, b: Path) -> None:
    other = a.with_name("swapped")
    a.rename(other)
    b.rename(a)
    other.rename(b)


def test_swapped_hosts(hosts: Hosts, tmp_path: Path) -> None:
    """What two hosts measured stands under each other's names, in every file: only the planes tell, and the host is named."""
    (tmp_path / "campaign.toml").write_text(TEXT.replace("samples = 1000", "samples = 100"), "utf-8")
    out = tmp_path / "out"
    campaign.run(tmp_path / "campaign.toml", out, inventory=tmp_path)
    assert found(out) == []
    one, other = HOSTS[0], HOSTS[2]
    swap(out / "hosts" / one, out / "hosts" / other)
    for host, number in ((one, 1), (other, 3)):  # whoever mixed them up made the parts fit
        path = out / "hosts" / host / "manifest.json"
        manifest = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps({**manifest, "part": {"number": number, "of": 3}}), "utf-8")
    numbers = sorted(int(p.stem.removeprefix("part-")) for p in (out / "lab/shards").iterdir())
    for n in numbers:
        (out / f"lab/shards/part-{n:05}.parquet").rename(out / f"lab/shards/old-{n:05}.parquet")
    for n in numbers:
        new = n + {0: 2, 1: 0, 2: -2}[n % 3]
        (out / f"lab/shards/old-{n:05}.parquet").rename(out / f"lab/shards/part-{new:05}.parquet")
    split = mirror.Split.read(out)
    assert split is not None
    planned = json.loads((out / "lab/manifest.json").read_text("utf-8"))["cases"]["planned"]
    mirror.merge(out, split, planned)
    findings = found(out)
    assert findings
    assert all("hosts are swapped" in f.what for f in findings)
    text = " ".join(f.what for f in findings)
    assert f"stands under {one} and holds planes of the part of {other}" in text
    assert f"stands under {other} and holds planes of the part of {one}" in text
    assert "out/lab/shards" in findings[0].file
    assert f"on {one}" in findings[0].remedy


def test_remedy_on_a_host_works(hosts: Hosts, tmp_path: Path) -> None:
    """Doing what is said of a bad shard of a host gives back what it was."""
    (tmp_path / "campaign.toml").write_text(TEXT.replace("samples = 1000", "samples = 100"), "utf-8")
    out = tmp_path / "out"
    campaign.run(tmp_path / "campaign.toml", out, inventory=tmp_path)
    good = {p.name: p.read_bytes() for p in (out / "lab/shards").iterdir()}
    host = hosts.job(HOSTS[1])
    bad = sorted((out / "lab/shards").iterdir())[1]
    share = mirror.owners(out, "lab")[f"shards/{bad.name}"]
    assert share.host == HOSTS[1]
    own = host / "out" / f"shards/part-{share.own(f'shards/{bad.name}'):05}.parquet"
    assert sha256_file(own) == sha256_file(bad)
    own.unlink()
    (host / "ended.json").unlink()
    shutil.rmtree(out / "hosts" / HOSTS[1])
    campaign.run(tmp_path / "campaign.toml", out, inventory=tmp_path)
    assert {p.name: p.read_bytes() for p in (out / "lab/shards").iterdir()} == good
    assert found(out) == []
