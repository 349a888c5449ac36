"""Whether probabilities came true, against values worked out by hand."""

import math

import pytest

from tests.outcomes import make_step
from treespec.reliability import expected_calibration_error, reliability


def judged(*claims):
    """Return a step that judged nodes of (source, probability, accepted)."""
    sources, probs, accepted = zip(*claims, strict=True)
    return make_step(
        1,
        (len(claims),),
        judged_sources=sources,
        judged_ranks=tuple(range(len(claims))),
        judged_depths=(1,) * len(claims),
        judged_probs=probs,
        judged_accepted=accepted,
    )


def test_a_bin_compares_what_was_claimed_with_what_came():
    """Four nodes near 0.65, one accepted; one at 0.95, accepted.

    (4 * |0.65 - 0.25| + 1 * |0.95 - 1|) / 5 = 0.33.
    """
    steps = [
        judged(("draft", 0.62, True), ("draft", 0.68, False)),
        judged(("draft", 0.64, False), ("draft", 0.66, False)),
        judged(("draft", 0.95, True)),
    ]
    diagram = reliability(steps)["draft"]
    assert [(row["low"], row["high"]) for row in diagram["bins"]] == [
        (0.6, 0.7),
        (0.9, 1.0),
    ]
    low, high = diagram["bins"]
    assert low["num_judged"] == 4
    assert low["mean_prob"] == pytest.approx(0.65)
    assert low["acceptance"] == 0.25
    assert high["num_judged"] == 1
    assert diagram["num_judged"] == 5
    assert diagram["mean_prob"] == pytest.approx(0.71)
    assert diagram["acceptance"] == pytest.approx(0.4)
    assert diagram["expected_calibration_error"] == pytest.approx(0.33)
    assert expected_calibration_error(steps) == pytest.approx(0.33)


def test_errors_of_two_sources_do_not_cancel_out():
    """One source says 0.5 and is always right, the other says 0.5 and never is.

    Pooled, half of the nodes at 0.5 are accepted: a perfect score for two bad sources.
    """
    steps = [judged(("lookup", 0.5, True), ("draft", 0.5, False))]
    assert set(reliability(steps)) == {"draft", "lookup"}
    assert expected_calibration_error(steps) == pytest.approx(0.5)


def test_the_ends_of_the_scale_belong_to_the_outer_bins():
    (first, last) = reliability([judged(("a", 0.0, False), ("a", 1.0, True))])["a"][
        "bins"
    ]
    assert (first["low"], last["low"], last["high"]) == (0.0, 0.9, 1.0)
    assert expected_calibration_error([judged(("a", 1.0 + 1e-7, True))]) < 1e-6


@pytest.mark.parametrize("prob", [math.nan, math.inf, -math.inf])
def test_a_probability_that_is_no_number_counts_nowhere(prob):
    steps = [judged(("a", prob, True), ("a", 0.25, False))]
    assert reliability(steps)["a"]["num_judged"] == 1
    assert expected_calibration_error(steps) == pytest.approx(0.25)
    assert expected_calibration_error([judged(("a", prob, True))]) is None


def test_without_judged_nodes_there_is_no_error_rather_than_a_perfect_one():
    assert reliability([make_step(0, ())]) == {}
    assert expected_calibration_error([make_step(0, ())]) is None
    assert expected_calibration_error([]) is None
