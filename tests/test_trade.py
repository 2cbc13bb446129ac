"""B-points and QoS slowdowns: properties on any grid, and the published program's mistakes on chosen ones."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.osml_b import ANGLES
from pipelines.fits import trade
from pipelines.fits.grids import Grids

DEFAULT, CORES, CACHE = range(3)


def reached_by_walking(kept: NDArray[np.bool_], row: int, column: int) -> set[tuple[int, int]]:
    """Steps (cores, ways) that single steps lead to, each on a cell that keeps the QoS: the definition, cell by cell."""
    found, todo = set(), [(0, 0)]
    while todo:
        i, j = todo.pop()
        if i <= row and j <= column and kept[row - i, column - j] and (i, j) not in found:
            found.add((i, j))
            todo += [(i + 1, j), (i, j + 1)]
    return found


def grids(most_rows: int = 9, most_columns: int = 7) -> st.SearchStrategy[NDArray[np.bool_]]:
    shapes = st.tuples(st.integers(1, most_rows), st.integers(1, most_columns))
    return shapes.flatmap(
        lambda s: st.lists(st.booleans(), min_size=s[0] * s[1], max_size=s[0] * s[1]).map(lambda v: np.array(v).reshape(s))
    )


@settings(max_examples=200, deadline=None)
@given(grids(), st.data())
def test_points_are_the_ends_of_what_can_be_walked_to(kept: NDArray[np.bool_], data: st.DataObject) -> None:
    """On any grid: each angle's point is reached without a gap, and nothing reached is further along that angle."""
    row, column = data.draw(st.integers(0, kept.shape[0] - 1)), data.draw(st.integers(0, kept.shape[1] - 1))
    points = [tuple(p) for p in trade.b_points(kept[None], *(np.array([k]) for k in (0, row, column)))[0].tolist()]
    reached = reached_by_walking(kept, row, column) or {(0, 0)}
    assert set(points) <= reached
    assert points[CORES] == max(reached)
    assert points[CACHE] == max(reached, key=lambda p: (p[1], p[0]))

    def share(p: tuple[int, int]) -> float:
        return p[0] / kept.shape[0] + p[1] / kept.shape[1]

    assert share(points[DEFAULT]) == pytest.approx(max(map(share, reached)))


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 12), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_on_a_monotone_grid_more_slowdown_never_gives_less(n_cores: int, n_ways: int, seed: int) -> None:
    """Latency falls with both resources: points stay within the machine, and a larger slowdown reaches further."""
    rng = np.random.default_rng(seed)
    qos = np.cumsum(np.cumsum(rng.exponential(0.1, (n_cores, n_ways)), axis=0), axis=1)
    row, column = n_cores - 1, n_ways - 1
    qos *= 1.2 / qos[row, column]
    last = np.zeros(3)
    for slowdown in (0.05, 0.1, 0.15, 0.2, 0.5):
        taken = trade.b_points(trade.keeps(qos[None], slowdown), *(np.array([k]) for k in (0, row, column)))[0]
        assert (taken >= 0).all()
        assert (taken <= [row, column]).all()  # a core and a way are left
        for cores, ways in taken:
            assert qos[row - cores, column - ways] >= 1 - slowdown - 1e-9
        reach = np.array([(taken[DEFAULT] / [n_cores, n_ways]).sum(), taken[CORES][0], taken[CACHE][1]])
        assert (reach >= last - 1e-12).all()
        last = reach


def points(kept: list[str], row: int, column: int) -> list[tuple[int, int]]:
    """From rows of text, most cores last; `#` keeps the QoS."""
    mask = np.array([[c == "#" for c in line] for line in kept])
    return [tuple(p) for p in trade.b_points(mask[None], *(np.array([k]) for k in (0, row, column)))[0].tolist()]


def test_what_lies_beyond_a_gap_is_not_given() -> None:
    """The published program takes the last match of a scan: here the corner behind the gap."""
    assert points(["##..", "....", "...#", "..##"], 3, 3) == [(0, 1), (1, 0), (0, 1)]


def test_an_unmeasured_cell_is_a_gap() -> None:
    qos = np.array([[1.4, np.nan, 1.5, 1.6]])
    taken = trade.b_points(trade.keeps(qos[None], 0.05), np.array([0]), np.array([0]), np.array([3]))[0]
    assert taken.tolist() == [[0, 1]] * 3


def test_the_three_angles_differ() -> None:
    """A staircase: the corner gives most of the machine, its ends the most of one resource."""
    assert points(["...#", ".###", ".###", "####"], 3, 3) == [(2, 2), (3, 0), (0, 3)]
    assert len(ANGLES) == 3


def test_a_start_that_misses_its_qos_gives_nothing() -> None:
    assert points(["####", "####", "###."], 2, 3) == [(0, 0)] * 3


def test_qos_above_the_target_is_no_reserve_to_lose() -> None:
    """From 3x the target's speed to exactly the target is no slowdown; from there to half of it is 50 %."""
    assert trade.slowdown(np.array([3.0, 1.0, 0.5, np.nan]), np.array([1.0, 0.5, 1.5, 1.0])).tolist() == pytest.approx(
        [0.0, 0.5, -0.5, np.nan], nan_ok=True
    )
    assert trade.keeps(np.array([0.95, 0.949, np.nan, 0.0, 9.0]), 0.05).tolist() == [True, False, False, False, True]


def test_grids_find_their_cells() -> None:
    """Two planes with other axes: places, cells and their values lead to each other; beyond the grid there is none."""
    plane = np.array([0, 0, 0, 1, 1])
    cores, ways = np.array([2.0, 4.0, 2.0, 1.0, 3.0]), np.array([1.0, 1.0, 5.0, 2.0, 3.0])
    g = Grids.of(plane, cores, ways, 2)
    assert g.at(plane, g.row, g.column).tolist() == [0, 1, 2, 3, 4]
    assert (g.cores[plane, g.row] == cores).all()
    assert (g.ways[plane, g.column] == ways).all()
    assert g.at(np.array([0, 0, 0, 1]), np.array([-1, 1, 2, 0]), np.array([0, 1, 0, 1])).tolist() == [-1, -1, -1, -1]
    assert np.isnan(g.spread(np.arange(5.0))[1, 0, 1])
    assert g.spread(np.arange(5.0))[0, 1, 0] == 1.0


def test_labels_come_at_least_as_fast_as_rows() -> None:
    """Hundreds of times as many starts take far less than as many times the time: there is no loop over starts."""
    rng = np.random.default_rng(1)
    qos = np.cumsum(rng.exponential(0.1, (8, 36, 20)), axis=1).clip(max=1.5)
    kept = trade.keeps(qos, 0.05)
    plane, row, column = (a.ravel() for a in np.meshgrid(np.arange(8), np.arange(36), np.arange(20), indexing="ij"))

    def took(count: int) -> float:
        best = np.inf
        for _ in range(5):
            start = time.process_time()
            trade.b_points(kept, plane[-count:], row[-count:], column[-count:])
            best = min(best, time.process_time() - start)
        return best

    # 288 times as many starts
    assert took(len(plane)) < 100 * took(20)
