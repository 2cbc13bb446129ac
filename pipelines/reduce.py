"""From samples to cells and to the rows that models learn from: one set of Ibis expressions for every engine
(pipelines/engine.py).

What the engine computes is the same bits on each of them: numbers of rows, order statistics, and sums of whole numbers, which
do not depend on the order of rows. What is left (cases to cells, formatting, sorting) is a thirtieth of the data and is done
here, in one process, from rows in a fixed order.

Mind when changing an expression that engines differ in: ibis' `isinf` (constant on Spark), interpolated medians (last bit), sums
and means of floats, text made of numbers, rounding to decimals, the type of an index into an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from pipelines import samples
from pipelines.engine import Engine
from pipelines.errors import BadInput

if TYPE_CHECKING:
    import ibis.expr.types as ir

_LARGEST = 1e308  # above: infinite or not a number, which both engines order last
_PER_UNIT = float(2**20)  # bandwidth is summed in whole parts of this: exact to 2^-21 MB/s a sample
_PER_CORE = 1e6  # cores are told apart to so many parts


NO_LATENCY = "valid, without a latency"
_REMEDY = "`surefoot campaign verify` says which cases, and what to do"
_TEXTS = ("campaign", "service", "case_id", "verdict")
_MOST_MBPS = 1e9  # bandwidth of no server; in whole parts it still fits 64 bits, for a million samples


def _number(value: ir.NumericColumn) -> ir.BooleanValue:
    """True: neither infinite nor NaN; null where the value is missing."""
    return value.abs() <= _LARGEST


def open_samples(data: samples.DataSet, engine: Engine, places: Sequence[int] | None = None, *, bound: bool = False) -> ir.Table:
    """All rows of the data set, or those of some of its shards. Rows of disturbed cases have the verdict `disturbed`, those that
    a limit on memory bound `memory-bound`.

    Args:
        bound: rows that a limit on memory bound keep their verdict.

    Raises:
        BadInput: a column is missing.
    """
    shards = data.shards if places is None else [data.shards[k] for k in places]
    table = engine.samples(shards)
    if missing := [name for name in samples.NEEDED if name not in table.columns]:
        raise BadInput(f"{shards[0]}: column {missing[0]} is missing; collect the data set again")
    for name in samples.NEEDED:
        kind = table[name].type()
        want, right = ("text", kind.is_string()) if name in _TEXTS else ("numbers", kind.is_numeric() or kind.is_null())
        if name == "neighbours":
            of = set(getattr(getattr(kind, "value_type", None), "names", ()))
            want, right = "a list of services", {"service", "rps", "cores", "ways"} <= of
        if not right:
            raise BadInput(f"{shards[0]}: column {name} is {kind}, want {want}; collect the data set again")
    if data.disturbed:
        import ibis

        marked = table.case_id.isin(sorted(data.disturbed))
        # a verdict that is none stays so: it is named
        known = marked & table.verdict.isin(samples.VERDICTS)
        table = table.mutate(verdict=ibis.ifelse(known, ibis.literal(samples.DISTURBED), table.verdict))
    if not bound and samples.BINDS in table.columns:
        import ibis

        known = table[samples.BINDS] & table.verdict.isin(samples.VERDICTS)
        table = table.mutate(verdict=ibis.ifelse(known, ibis.literal(samples.MEMORY_BOUND), table.verdict))
    return table


def verdict_counts(data: samples.DataSet, engine: Engine) -> dict[str, int]:
    """Rows of each verdict, and of disturbed cases; an unknown verdict, or a row that does not say what the service held, is an
    error.

    Raises:
        BadInput: rows are none of a sweep's; names a shard.
    """
    table = open_samples(data, engine)
    refuse_impossible(data, table, engine)
    unplaced = table.alloc_cores.isnull()
    if data.platform.ways > 0:
        unplaced |= table.alloc_ways.isnull()
    no_latency = (table.verdict == "valid") & measured_p99_ms(table).isnull()
    asked = {"unplaced": unplaced.cast("int64").sum(), "no_latency": no_latency.cast("int64").sum()}
    counts = engine.collect(table.group_by("verdict").agg(rows=table.count(), **asked))
    found = {str(verdict): int(n) for verdict, n in counts.select("verdict", "rows").iter_rows()}
    known = (*samples.VERDICTS, samples.DISTURBED, samples.MEMORY_BOUND)
    if unknown := sorted(set(found) - set(known)):
        raise BadInput(f"{data.folder}: verdict {unknown[0]!r} is unknown; known: {', '.join(samples.VERDICTS)}")
    if n := int(counts.filter(~pl.col("verdict").is_in(samples.DROPPED))["unplaced"].sum()):
        raise BadInput(f"{data.folder}: {n} rows have no alloc_cores or alloc_ways; measure their cases again")
    return {verdict: found.get(verdict, 0) for verdict in known} | {NO_LATENCY: int(counts["no_latency"].sum())}


def refuse_impossible(data: samples.DataSet, table: ir.Table, engine: Engine) -> None:
    """What says which cell a row is of must be there and possible on the platform, and no row may stand there twice.

    What was measured may be missing: a latency or counter that is no number counts as none.

    Raises:
        BadInput: rows are otherwise; names the first shard, how many, and what they say.
    """
    t, p = table, data.platform
    nameless = t.verdict.isnull()
    for name in ("service", "case_id", "rps", "threads", "mba_pct"):
        nameless |= t[name].isnull()
    ways = t.alloc_ways > p.ways if p.ways else t.alloc_ways > _LARGEST
    wrong = {
        "no service, case_id, rps, threads, mba_pct or verdict": nameless,
        "an rps below 0, or none": (t.rps < 0) | ~_number(t.rps),
        f"alloc_cores that is not above 0 and at most {p.cores:g}": (t.alloc_cores <= 0) | (t.alloc_cores > p.cores + 1e-6),
        f"alloc_ways that is not from 0 to {p.ways}": (t.alloc_ways < 0) | ways,
        "an mbl_mbps below 0, or of no server": (t.mbl_mbps < 0) | (_number(t.mbl_mbps) & (t.mbl_mbps > _MOST_MBPS)),
    }
    said = list(wrong)
    counts = t.group_by("shard").agg(**{f"n{k}": t.count(where=wrong[what]) for k, what in enumerate(said)})
    found = [(str(row["shard"]), row[f"n{k}"], what) for row in _rows(engine, counts) for k, what in enumerate(said)]
    if "t_ms" in t.columns:
        cases = t.group_by("shard", "case_id").agg(n=t.t_ms.count(), times=t.t_ms.nunique())
        twice = cases.filter(cases.n > cases.times)
        doubled = twice.group_by("shard").agg(n=(twice.n - twice.times).sum())
        found += [(str(row["shard"]), row["n"], "the case_id and t_ms of another row") for row in _rows(engine, doubled)]
    bad = min(((shard, what, n) for shard, n, what in found if n), default=None)
    if bad:
        raise BadInput(f"{bad[0]}: {bad[2]} rows have {bad[1]}. {_REMEDY}")


def _rows(engine: Engine, table: ir.Table) -> list[dict[str, Any]]:
    return engine.collect(table).to_dicts()


def measured_p99_ms(table: ir.Table) -> ir.Value:
    """p99 of a valid row; null where it is no number, or not above 0, which no latency is."""
    import ibis

    p99_ms = table.latency_p99_ms
    return ibis.ifelse((table.verdict == "valid") & _number(p99_ms) & (p99_ms > 0), p99_ms, None)


def cases(table: ir.Table, more: Sequence[str] = ()) -> ir.Table:
    """One row a case: what it is, rows by verdict, the median of its valid rows' p99, its bandwidth in whole parts.

    Args:
        more: columns that say what it is besides those of every data set.
    """
    import ibis

    valid = table.verdict == "valid"
    mbl = ibis.ifelse(valid & _number(table.mbl_mbps), table.mbl_mbps, None)
    t = table.filter(table.verdict.notin(samples.DROPPED)).mutate(
        cores_parts=(table.alloc_cores * _PER_CORE + 0.5).floor().cast("int64"),
        p99=measured_p99_ms(table),
        mbl_parts=(mbl * _PER_UNIT + 0.5).floor().cast("int64"),
    )
    found = t.group_by("service", "rps", "threads", "mba_pct", "neighbours", "cores_parts", "alloc_ways", "case_id", *more).agg(
        n_valid=(t.verdict == "valid").cast("int64").sum(),
        n_over=(t.verdict == "server-overloaded").cast("int64").sum(),
        rows=t.count(),
        n_p99=t.p99.count(),
        p99s=t.p99.collect(where=t.p99.notnull()),
        mbl_parts=t.mbl_parts.sum(),
        mbl_count=t.mbl_parts.count(),
    )
    found = found.mutate(p99s=found.p99s.sort())
    middle = [((found.n_p99 - k) / 2).floor().cast("int32") for k in (1, 0)]
    median = (found.p99s[middle[0]] + found.p99s[middle[1]]) / 2.0
    return found.mutate(p99_ms=ibis.ifelse(found.n_p99 > 0, median, None)).drop("p99s", "n_p99")


def cells(data: samples.DataSet, engine: Engine) -> pl.DataFrame:
    """One row a cell (allocation in a plane).

    Columns: CELL_KEY, `status` (met-able latency `measured`, `overloaded` or `unknown`), `p99_ms` (geometric mean of its cases'
    p99; infinite where overloaded, null where unknown), `mbl_mbps` (mean), `rows`, `cases`.

    A case is what most of its rows say, on a tie the worse, and its p99 the median of the windows': an order statistic, not an
    average of percentiles. A cell is what most of its cases say, in the same way. The search of a frontier campaign reckons alike
    (scheduler/search/src/series.rs).
    """
    return _of_cases(data, engine.collect(cases(open_samples(data, engine))), samples.CELL_KEY)


def memory_cells(data: samples.DataSet, engine: Engine) -> pl.DataFrame | None:
    """As `cells`, a row for each limit on memory too: `samples.MEMORY_KEY`, and `samples.IN_FORCE` (null where nothing was).

    None where the data set has no such axis.
    """
    table = open_samples(data, engine, bound=True)
    if samples.BINDS not in table.columns:
        return None
    limit, in_force = table[samples.MEMORY_KEY[0]], table[samples.IN_FORCE[0]]
    # what was in force is what a latency is of; one that was not in force is of no limit that anything asked for
    of = table.filter(limit.isnull() | in_force.notnull())
    # a limit that rose while it was sampled is the highest that it had
    each = of.group_by("case_id").agg(**{f"most_{name}": of[name].max() for name in samples.IN_FORCE})
    of = of.drop(*samples.IN_FORCE).join(each, "case_id").rename({name: f"most_{name}" for name in samples.IN_FORCE})
    key = (*samples.MEMORY_KEY, *samples.IN_FORCE)
    return _of_cases(data, engine.collect(cases(of, key)), (*samples.CELL_KEY, *key))


def _of_cases(data: samples.DataSet, found: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    placed = found.with_columns((pl.col("cores_parts") / _PER_CORE).alias("alloc_cores"))
    keyed = samples.with_keys(placed.lazy(), data).drop("neighbours", "cores_parts")
    return _cells(keyed.sort(*key, "case_id"), key).sort(key).collect()


def _cells(cases: pl.LazyFrame, key: Sequence[str]) -> pl.LazyFrame:
    n_unknown = pl.col("rows") - pl.col("n_valid") - pl.col("n_over")
    overloaded = (pl.col("n_over") > 0) & (pl.col("n_over") >= pl.max_horizontal("n_valid", n_unknown))
    measured = ~overloaded & (pl.col("n_valid") > n_unknown) & pl.col("p99_ms").is_not_null()
    n_overloaded, n_measured = pl.col("n_overloaded"), pl.col("n_measured")
    return (
        cases.group_by(key)
        .agg(
            overloaded.sum().alias("n_overloaded"),
            measured.sum().alias("n_measured"),
            pl.col("rows").sum(),
            pl.len().alias("cases"),
            pl.col("p99_ms").filter(measured).log().mean().exp().alias("p99_ms"),
            pl.col("p99_ms").filter(measured).first().alias("only_ms"),
            pl.col("mbl_parts").sum(),
            pl.col("mbl_count").sum(),
        )
        .select(
            *key,
            pl.col("rows").cast(pl.get_index_type()),
            "cases",
            pl.when(pl.col("mbl_count") > 0)
            .then(pl.col("mbl_parts").cast(pl.Float64) / _PER_UNIT / pl.col("mbl_count"))
            .alias("mbl_mbps"),
            pl.when((n_measured > 0) & (n_measured > n_overloaded))
            .then(pl.lit("measured"))
            .when(n_overloaded > 0)
            .then(pl.lit("overloaded"))
            .otherwise(pl.lit("unknown"))
            .alias("status"),
            # one case's own number, to the last bit
            pl.when((n_measured > 0) & (n_measured > n_overloaded))
            .then(pl.when(n_measured == 1).then("only_ms").otherwise("p99_ms"))
            .when(n_overloaded > 0)
            .then(pl.lit(float("inf")))
            .alias("p99_ms"),
        )
    )


def _usable(table: ir.Table, features: Sequence[str]) -> ir.BooleanValue:
    """True: all features are numbers and none is below 0, which nothing that is measured is.

    The sum is a number exactly if all are, and a quarter of the work of asking each.
    """
    import ibis

    total = table[features[0]].cast("float64")
    for name in features[1:]:
        total += table[name].cast("float64")
    return _number(total) & (ibis.least(*(table[name].cast("float64") for name in features)) >= 0)


def tally(table: ir.Table, features: Sequence[str]) -> ir.Table:
    """By shard and verdict: `rows`, and those of them that have all features."""
    return table.group_by("shard", "verdict").agg(rows=table.count(), usable=table.count(where=_usable(table, features)))


def present(table: ir.Table, features: Sequence[str]) -> ir.Table:
    """How many rows have each feature."""
    t = table.filter(table.verdict.notin(samples.DROPPED))
    return t.aggregate(**{name: t[name].count() for name in features})


def chosen(
    table: ir.Table, features: Sequence[str], verdicts: Sequence[str], step: int, before: ir.Table, *, whole: bool
) -> ir.Table:
    """Every step-th wanted row, counted over all shards: its address, what says its cell, `p99_ms` (null unless valid),
    `achieved_rps` and its features as `x_*`.

    Args:
        before: wanted rows in earlier shards (`before`) by `shard`.
        whole: these shards have wanted rows alone, so that a row's number needs no counting: much cheaper.
    """
    import ibis

    t = table
    if whole:
        numbered = t.join(before, "shard")
        t = numbered.filter((numbered.row + numbered.before) % step == 0)
    else:
        t = t.filter(t.verdict.isin(verdicts), _usable(t, features))
        if step > 1:
            # The address alone is sorted; a row that stays is read again.
            ranked = t.select("shard", "row", rank=ibis.row_number().over(ibis.window(group_by="shard", order_by="row")))
            numbered = ranked.join(before, "shard")
            kept = numbered.filter((numbered.rank + numbered.before) % step == 0).select("shard", "row")
            t = table.join(kept, ["shard", "row"])
    plain = [name for name in samples.CELL_KEY if name != "nb_key"]
    return t.select(
        "shard",
        "row",
        "neighbours",
        *plain,
        p99_ms=measured_p99_ms(t),
        achieved_rps=t.achieved_rps.cast("float64"),
        **{f"x_{name}": t[name].cast("float64") for name in features},
    )
