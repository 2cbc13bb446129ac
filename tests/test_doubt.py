"""Intervals that cover what they say, the strangeness score, and what of both a bundle holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from models import intervals
from models.features import PlatformLimits, Scale
from models.regression import Regression
from pipelines import params, vectors
from pipelines.artefact import bundle
from pipelines.artefact.keys import private_key
from pipelines.errors import BadInput, BundleError
from pipelines.fits import calibrate, comparators, doubt, strange
from pipelines.fits.fit import Start
from pipelines.fits.fitted import Fitted
from pipelines.generalise import rescaled

VECTORS = Path(__file__).parent / "vectors"
FREE = {"qos": (-np.inf, np.inf)}
NAMES = ["qos", "qos_lower", "qos_upper"]


def says(values: list[float]) -> nn.Module:
    """A network that answers with these, whatever it is asked."""
    net = nn.Linear(1, len(values))
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor(values))
    return net


def test_the_loss_is_least_at_the_quantiles() -> None:
    """Labels 0.01 to 1.00: of all answers in hundredths 0.05, 0.5 and 0.95 cost the least, each output for itself."""
    y = torch.arange(1, 101)[:, None].repeat(1, 3) / 100.0
    levels = intervals.levels(NAMES, 0.9)
    assert levels == pytest.approx([0.5, 0.05, 0.95])

    def cost(answer: list[float]) -> float:
        return Regression(says(answer), 1e-3, 100, levels=levels).loss((torch.zeros(100, 1), y)).item()

    best = [min((cost([*[0.5] * k, c / 100, *[0.5] * (2 - k)]), c / 100) for c in range(101))[1] for k in range(3)]
    assert best == pytest.approx([0.5, 0.05, 0.95], abs=0.011)
    # at 0.5 all are off by 0.25; what the middle one costs is that, and each end costs 0.3 of it
    assert cost([0.5] * 3) == pytest.approx(0.25 * (1 + 0.3 + 0.3) / 3)


def test_a_label_within_bounds_costs_no_end_anything() -> None:
    low, high = torch.full((4, 3), 2.0), torch.full((4, 3), 5.0)
    module = Regression(says([3.0, 2.0, 5.0]), 1e-3, 100, levels=[0.5, 0.05, 0.95])
    assert module.loss((torch.zeros(4, 1), low, high)).item() == 0.0
    wrong = Regression(says([3.0, 3.0, 4.0]), 1e-3, 100, levels=[0.5, 0.05, 0.95])
    assert wrong.loss((torch.zeros(4, 1), torch.full((4, 3), torch.nan), high)).item() == 0.0


def test_a_squared_middle_keeps_its_square() -> None:
    y = torch.full((2, 2), 3.0)
    module = Regression(says([1.0, 1.0]), 1e-3, 100, loss="squared", levels=[0.5, 0.95])
    # 2 below: the square is 4, the end's cost 0.3 x 2 x 0.95 x 2; the mean of both
    assert intervals.LOSS_WEIGHT == 0.3
    assert module.loss((torch.zeros(2, 1), y)).item() == pytest.approx((4.0 + 1.14) / 2)


def drawn(worlds: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers whose ends are far too narrow, labels, worlds. A world has an error of its own, and few to many rows."""
    rows = rng.integers(20, 400, worlds)
    world = np.repeat(np.arange(worlds), rows)
    middle = rng.uniform(0.0, 2.0, len(world))
    label = middle + rng.normal(0.0, 0.1, worlds)[world] + rng.normal(0.0, 0.2, len(world)) ** 2
    return np.column_stack([middle, middle - 0.01, middle + 0.01]), label, world


@pytest.mark.parametrize("nominal", [0.8, 0.9])
def test_moved_ends_cover_what_they_say(nominal: float) -> None:
    """On worlds that were not calibrated on the coverage is within 2 % of nominal, and half of the rest on either side."""
    rng = np.random.default_rng(4)
    answers, label, world = drawn(4000, rng)
    model = Fitted({}, [], [Scale(name, 0.5, 1.0) for name in NAMES], [])
    moved = calibrate.moved(model, answers, {"qos": label}, FREE, world, nominal)
    shift = np.array([o.offset - 1.0 for o in moved.outputs])
    assert shift[0] == 0.0
    assert shift[1] < 0.0 < shift[2]
    assert [(o.name, o.scale) for o in moved.outputs] == [(name, 0.5) for name in NAMES]
    answers, label, world = drawn(4000, rng)
    weights = calibrate.evenly(world)
    below, above = (weights @ beyond for beyond in (label < answers[:, 1] + shift[1], label > answers[:, 2] + shift[2]))
    assert 1.0 - below - above == pytest.approx(nominal, abs=0.02)
    assert below == pytest.approx((1.0 - nominal) / 2, abs=0.012)
    assert above == pytest.approx((1.0 - nominal) / 2, abs=0.012)


def test_ends_that_are_too_wide_are_moved_in() -> None:
    """Labels -50 to 50 about an answer of 0, ends at 1000: the ends go to where 10 % are outside. Unknown labels do not count."""
    label = np.concatenate([np.arange(-50.0, 51.0), np.full(30, np.nan)])
    answers = np.tile([0.0, -1000.0, 1000.0], (len(label), 1))
    model = Fitted({}, [], [Scale(name, 1.0, 0.0) for name in NAMES], [])
    moved = calibrate.moved(model, answers, {"qos": label}, FREE, np.zeros(len(label), dtype=np.int64), 0.9)
    assert [o.offset for o in moved.outputs] == pytest.approx([0.0, 955.0, -955.0], abs=1.0)


def test_an_atom_is_not_covered_twice() -> None:
    """Half of the labels are at the cap, where the answer is too, above the upper end: the interval holds it all the same.

    So of 100 rows the 50 others alone decide, and 5 of them may lie above: those with 46 to 50 over an end of 0.
    """
    label = np.concatenate([np.full(50, 100.0), np.arange(1.0, 51.0)])
    middle = np.concatenate([np.full(50, 100.0), np.zeros(50)])
    answers = np.column_stack([middle, np.full(100, -1.0), np.concatenate([np.full(50, 10.0), np.zeros(50)])])
    model = Fitted({}, [], [Scale(name, 1.0, 0.0) for name in NAMES], [])
    moved = calibrate.moved(model, answers, {"qos": label}, FREE, np.arange(100), 0.9)
    assert [o.offset for o in moved.outputs] == [0.0, 0.0, 45.0]


def test_a_label_on_a_bound_is_covered_by_what_is_clipped_there() -> None:
    """Half of the labels are at the cap of 2, and answers and lower ends a little above it: a node says 2 and 2.

    Of the 50 others, at 1.01 to 1.50 with lower ends at 1.6 below answers of 1.7, 5 may lie below: the end goes to 1.06.
    """
    label = np.concatenate([np.full(50, 2.0), 1.0 + np.arange(1, 51) / 100])
    middle, lower = (np.concatenate([np.full(50, 2.0 + d), np.full(50, 1.7 - 10 * d)]) for d in (0.0, 0.01))
    middle[:50] += 0.02
    answers = np.column_stack([middle, lower, np.full(100, 3.0)])
    model = Fitted({}, [], [Scale(name, 1.0, 0.0) for name in NAMES], [])
    moved = calibrate.moved(model, answers, {"qos": label}, {"qos": (0.0, 2.0)}, np.arange(100), 0.9)
    assert moved.outputs[1].offset == pytest.approx(1.06 - 1.6)
    ends = lower + moved.outputs[1].offset
    settled = intervals.settled(middle, ends, np.full(100, 3.0), 0.0, 2.0)[0]
    assert (label < settled - 1e-9).mean() == pytest.approx(0.05)


def test_a_world_of_many_rows_weighs_no_more() -> None:
    """One world of 10,000 rows at 9, nine of one row each at 0 to 8: nine tenths of the weight are not above 8."""
    values = np.concatenate([np.full(10_000, 9.0), np.arange(9.0)])
    world = np.concatenate([np.full(10_000, 50), np.arange(9)])
    weights = calibrate.evenly(world)
    assert weights.sum() == pytest.approx(1.0)
    assert calibrate.quantile(values, 0.85, weights) == 8.0
    assert calibrate.quantile(values, 0.95, weights) == 9.0


def test_what_a_node_says_holds_the_answer() -> None:
    middle, lower, upper = np.array([1.0, 1.0, 3.0]), np.array([0.5, 1.4, -1.0]), np.array([1.5, 0.2, 9.0])
    low, high = intervals.settled(middle, lower, upper, 0.0, 2.0)
    assert (low.tolist(), high.tolist()) == ([0.5, 1.0, 0.0], [1.5, 1.0, 2.0])


def test_the_score_finds_what_is_unlike() -> None:
    """Two inputs that go together: what breaks the rule is strange though each value alone is usual; 1 is where it was put."""
    rng = np.random.default_rng(6)

    def rows(count: int) -> np.ndarray:
        x = rng.normal(0.5, 0.1, count)
        return np.column_stack([x, 1.0 - x + rng.normal(0.0, 0.01, count), np.full(count, 0.3)]).astype(np.float32)

    found = strange.measure(rows(4000))
    scores = strange.scores(found, rows(4000))
    placed = strange.one_at(found, calibrate.quantile(scores, 0.9, np.full(len(scores), 1.0)))
    assert (strange.scores(placed, rows(4000)) > 1.0).mean() == pytest.approx(0.1, abs=0.02)
    usual, odd = (strange.scores(placed, np.array([x], dtype=np.float32))[0] for x in ([0.55, 0.45, 0.3], [0.55, 0.55, 0.3]))
    assert usual < 1.0 < odd
    # an input that never varied is no reason by a hair's breadth, and is one by far
    hair, far = (strange.scores(placed, np.array([[0.5, 0.5, x]], dtype=np.float32))[0] for x in (0.301, 0.9))
    assert hair < 1.0 < far


def told(**other: np.ndarray) -> doubt.Told:
    base = {
        "middle": np.array([1.2, 1.1, 0.5, 1.3]),
        "lower": np.array([1.0, 0.9, 0.2, 1.1]),
        "upper": np.array([1.5, 1.6, 0.7, 1.4]),
        "label": np.array([1.4, 0.8, 0.6, 0.9]),
        "service": np.array([1, 1, 1, 2]),
        "over": np.array([False, False, True, True]),
        "strangeness": np.array([0.5, 0.9, 1.1, 2.0]),
    }
    return doubt.Told("qos", **(base | other))


def test_measures_of_doubt() -> None:
    """Rows 1 and 3 are covered. Services weigh the same: (2/3 + 0) / 2. "Met" is said of rows 1 and 4; 2, 3 and 4 miss."""
    found = doubt.measures(told())
    assert found["b_coverage"] == pytest.approx(1 / 3)
    assert found["b_coverage_valid"] == pytest.approx(0.5)
    assert found["b_width"] == pytest.approx(((0.5 + 0.7 + 0.5) / 3 + 0.3) / 2)
    assert found["b_false_met_lower"] == pytest.approx(1 / 3)
    assert found["b_missed_met_lower"] == 0.0
    assert found["b_accuracy_lower"] == pytest.approx(3 / 4)
    assert "b_missed_met_lower_over" not in found


def test_what_is_kept_is_what_is_doubted_least() -> None:
    """Errors 0, 20, 10 and 10 %. Of three the narrowest are 4, 1 and 3, the least strange 1, 2, 3, the least wrong 1, 3, 4."""
    found = doubt.abstention([told()], 0.75)
    wants = {"all": 10.0, "least_strange": 10.0, "least_wide": 20 / 3, "least_wrong": 20 / 3}
    assert found == pytest.approx(wants)
    assert not calibrate.kept(np.array([3.0, 1.0, 2.0]), 0.67)[0]


def doubtful_a() -> Fitted:
    spec = vectors.doubt_bundle().a
    return Fitted(dict(spec.weights), list(spec.inputs), list(spec.outputs), [])


def test_ends_are_rescaled_with_their_output() -> None:
    here = PlatformLimits(name="here", cores=36.0, core_step=1.0, ways=20, mb_per_way=2.25)
    there = PlatformLimits(name="there", cores=18.0, core_step=1.0, ways=10, mb_per_way=2.25)
    before, after = doubtful_a(), rescaled(doubtful_a(), here, there, outputs_alone=True)
    for old, new in zip(before.outputs, after.outputs, strict=True):
        share = 1.0 if "mbps" in old.name else 0.5
        assert (new.name, new.scale, new.offset) == (old.name, old.scale * share, old.offset * share)


def test_a_network_without_ends_can_begin_from_one_with_them() -> None:
    """The outputs that it has are the same function; ends and score stay behind."""
    a = doubtful_a()
    start = Start(a.weights, (), tuple(a.inputs), tuple(a.outputs))
    moved = start.moved_to(a.inputs, a.outputs[:5])
    assert sorted(moved.weights) == sorted(n for n in a.weights if not strange.is_strangeness(n))
    np.testing.assert_allclose(moved.weights["layers.3.weight"], a.weights["layers.3.weight"][:5], rtol=1e-6)
    with pytest.raises(BadInput, match="oaa_ways"):
        start.moved_to(a.inputs, [a.outputs[0]])
    whole = start.moved_to(a.inputs, a.outputs)
    np.testing.assert_allclose(whole.weights["layers.3.bias"], a.weights["layers.3.bias"], rtol=1e-5, atol=1e-6)


def test_a_bundle_with_doubt_is_of_version_4() -> None:
    """What has none stays what it was; a serial must be there."""
    key_file = VECTORS / "keys" / "TEST-ONLY-signing.pem"
    key = private_key(key_file.read_bytes(), str(key_file))
    spec = vectors.doubt_bundle()
    assert bundle.to_tar(bundle.assemble(spec, key)) == (VECTORS / "bundle-doubt.tar").read_bytes()
    for other, version in (
        (spec, 4),
        (replace(spec, a=vectors.small_bundle().a), 4),
        (replace(spec, a=vectors.small_bundle().a, b=vectors.small_bundle().b), 3),
        (vectors.small_bundle(), 1),
    ):
        assert json.loads(bundle.assemble(other, key)["manifest.json"])["format_version"] == version
    with pytest.raises(BadInput, match="serial"):
        bundle.assemble(replace(spec, serial=None), key)
    b = spec.b
    half = replace(
        b, outputs=b.outputs[:2], weights={**b.weights, **{n: b.weights[n][:2] for n in ("layers.3.weight", "layers.3.bias")}}
    )
    files = bundle.assemble(replace(spec, b=half), key)
    with pytest.raises(BundleError, match="qos_lower: is an end of an interval without the other, qos_upper"):
        bundle._parse_manifest(files["manifest.json"], key.public_key())


def test_committed_vectors_of_doubt_hold() -> None:
    """What the node is tested with follows from the committed bundle."""
    given, made = json.loads((VECTORS / "doubt.json").read_text()), vectors.doubt_vectors()
    for letter in ("a", "b"):
        assert given[letter]["outputs"] == made[letter]["outputs"]
        for old, new in zip(given[letter]["cases"], made[letter]["cases"], strict=True):
            assert old["raw"] == new["raw"]
            np.testing.assert_allclose(old["outputs"], new["outputs"], rtol=1e-5)
            assert (old["strangeness"] is None) == (letter == "b")
            if letter == "a":
                assert old["strangeness"] == pytest.approx(new["strangeness"], rel=1e-5)


def test_ends_are_no_answers_of_model_a() -> None:
    """Its errors are those of the central outputs: an end has no label."""
    names = ["oaa_cores", "oaa_cores_lower", "oaa_cores_upper"]
    asked = comparators.Asked.__new__(comparators.Asked)
    asked.__dict__.update(table=_Labels(), rows=np.array([0, 1]))
    found = asked.errors_of_a(np.array([[4.0, 0.0, 99.0], [6.0, 0.0, 99.0]]), names)
    assert found["a_cores_mae"] == pytest.approx(1.5)


class _Labels:
    """Labels of two planes, and what a row's plane is."""

    plane = np.array([0, 1])

    def labels(self, names: list[str]) -> np.ndarray:
        assert names == ["oaa_cores"]
        return np.array([[5.0], [8.0]])


@pytest.mark.parametrize("wrong", [{"interval": 1.0}, {"interval": 0.2}, {"usual_share": 0.0}, {"usual_share": 1.5}])
def test_shares_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        params.Params.model_validate({"worlds": wrong})
    assert params.Params.model_validate({"worlds": {"interval": None}}).worlds.interval is None
