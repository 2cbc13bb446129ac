"""Errors of OSML's models, worked out by hand on one plane of 4 cores x 3 ways."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from models import osml_b
from models.features import Bound, PlatformLimits, Scale
from models.osml_actions import ACTIONS, IDLE
from pipelines import osml_measures, params
from pipelines.fits import rowfile
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table
from pipelines.pages.metric_words import describe

P = params.Params()
ROWS = np.arange(12)


@pytest.fixture
def table() -> Table:
    """A row a cell; every cell meets QoS; OAA is 3 cores and 2 ways."""
    cores, ways = (axis.ravel().astype(float) + 1 for axis in np.indices((4, 3)))
    zeros = np.zeros(12, dtype=np.int64)
    labels = {"service": ["s"], "neighbours": [""], "split": ["test"], "oaa_cores": [3.0], "oaa_ways": [2.0]}
    return Table(
        columns={"alloc_cores": cores},
        p99_ms=np.where(cores > 1, 1.0, np.nan),  # one core: overloaded
        achieved_rps=np.ones(len(cores)),
        cell=np.arange(12),
        plane=zeros,
        cell_cores=cores,
        cell_ways=ways,
        cell_mba=np.full(12, 100.0),
        cell_qos=np.full(12, 1.0),
        cell_plane=zeros,
        plane_labels=pl.DataFrame(labels),
        plane_target_ms=np.array([1.0]),
        plane_platform=np.tile([4.0, 4.0, 2.0], (1, 1)),
        about=rowfile.About(
            data_sha256="0" * 64,
            campaign="none",
            feature_set="full",
            platform=PlatformLimits("toy", 4.0, 1.0, 3, 2.0, mba=False),
            features=["alloc_cores"],
            rows=12,
            rows_left_out=rowfile.Left(feature_missing=0, not_resolvable=0, overloaded=0, thinned_out=0),
        ),
    )


def constant(outputs: dict[str, float], *, prefix: str = "", inputs: tuple[str, ...] = ("alloc_cores",)) -> Fitted:
    """A network that always says the same."""
    weights = {
        f"{prefix}layers.0.weight": np.zeros((len(outputs), len(inputs)), np.float32),
        f"{prefix}layers.0.bias": np.array(list(outputs.values()), np.float32),
    }
    scales = [] if prefix else [Scale(name, 1.0, 0.0) for name in outputs]
    settings = {"slowdowns": [0.05, 0.1]}
    return Fitted(weights, [Bound(name, 0.0, 10.0) for name in inputs], scales, [], [], 1, settings)


def test_errors_of_the_area(table: Table) -> None:
    """3.5 cores for 3, everywhere; and where one core is too few the same, told apart."""
    found = osml_measures.of_area("osml_ap", table, constant({"oaa_cores": 3.5, "oaa_ways": 2.0}), ROWS)
    assert found == {
        **{f"osml_ap_oaa_cores_mae{which}": 0.5 for which in ("", "_overloaded", "_carried")},
        **{f"osml_ap_oaa_ways_mae{which}": 0.0 for which in ("", "_overloaded", "_carried")},
    }


def test_errors_of_b_points(table: Table) -> None:
    """All that is held but one core and one way can be given; of the 12 starts the smallest can give nothing: no label."""
    model = constant(dict.fromkeys(osml_b.OUTPUTS, 0.0), inputs=("alloc_cores", "qos_slowdown"))
    found = osml_measures.of_b_points(table, model, ROWS, P.train.osml_b, 1)
    # cores: 3 x (0 + 1 + 2 + 3) of 11 starts; ways: 4 x (0 + 1 + 2)
    given = {"cores": 18, "ways": 12}
    assert found == {f"osml_b_{a}_{u}_mae": pytest.approx(n / 11) for a in osml_b.ANGLES for u, n in given.items()}


def test_the_error_of_a_slowdown(table: Table) -> None:
    """Nothing is lost anywhere, and a tenth is said."""
    found = osml_measures.of_slowdown(table, constant({"qos_slowdown": 0.1}), ROWS, P.train.osml_bp, 1)
    assert found == {"osml_bp_error_pct": pytest.approx(10.0)}
    assert describe("osml_bp_error_pct") == ("Model-B' (OSML): QoS slowdown, mean absolute error", "% of QoS")


def test_errors_of_actions(table: Table) -> None:
    """A network that wants one more core, and where the machine has none, nothing."""
    wanted = {str(k): {ACTIONS.index((1, 0)): 1.0, IDLE: 0.5}.get(k, 0.0) for k in range(len(ACTIONS))}
    found = osml_measures.of_actions(table, constant(wanted, prefix="policy."), ROWS)
    # cores, from 1, 2, 3, 4 to 3: |1 - 2|, |1 - 1|, |1 - 0|, |0 - -1|; ways, from 1, 2, 3 to 2: |0 - 1|, 0, |0 - -1|
    assert found["osml_c_cores_mae"] == pytest.approx(0.75)
    assert found["osml_c_ways_mae"] == pytest.approx(2 / 3)
    assert found["osml_c_grows_when_violating"] == 1.0  # the three cells of one core


def test_only_models_that_there_are_are_measured(table: Table) -> None:
    """OSML's Model-A is about services alone: the same rows count for it here, and no other metric appears."""
    found = osml_measures.measure(table, {"osml-a": constant({"oaa_cores": 2.0})}, ROWS, P)
    assert found["osml_a_oaa_cores_mae"] == 1.0
    assert {name.rsplit("_mae")[0] for name in found} == {"osml_a_oaa_cores"}
