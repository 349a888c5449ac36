"""The enumeration that the kit stands on: every outcome once, with its weight."""

import math

import pytest
import torch
from torch import Tensor

from treespec.chance import NO_TOKEN, AbstractChance
from treespec.testing import ConformanceError
from treespec.testing.enumeration import ScriptedChance, outcomes, replays

LAW = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)


def pair(chance: AbstractChance) -> tuple[int, ...]:
    return tuple(chance.draw_without_replacement(LAW[None], 2)[0].tolist())


def test_every_ordered_pair_comes_once_with_its_probability() -> None:
    found = [(drawn, weight) for weight, drawn in outcomes(pair)]
    assert len(found) == len(dict(found)) == 6
    assert dict(found)[1, 0] == pytest.approx(0.3 * 0.5 / 0.7)
    assert sum(weight for _, weight in found) == pytest.approx(1, abs=1e-15)


def test_a_law_that_runs_out_yields_no_token() -> None:
    ((weight, drawn),) = outcomes(
        lambda chance: chance.draw_without_replacement(torch.eye(3)[:1], 2).tolist()
    )
    assert weight == 1
    assert drawn == [[0, NO_TOKEN]]


def test_a_law_of_any_mass_is_normalised_as_a_generator_does() -> None:
    weights = {int(x): weight for weight, x in outcomes(lambda c: c.draw(LAW / 4))}
    assert weights == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2})


@pytest.mark.parametrize(
    ("probability", "expected"),
    [(0.25, {True: 0.25, False: 0.75}), (3.0, {True: 1}), (math.nan, {False: 1})],
)
def test_accepting_is_comparing_with_a_uniform(
    probability: float, expected: dict[bool, float]
) -> None:
    found = outcomes(lambda chance: chance.accepts(torch.tensor(probability)))
    assert {accepted: weight for weight, accepted in found} == expected


def test_a_script_leads_to_the_same_outcome_again() -> None:
    for chance, drawn in replays(pair):
        assert pair(ScriptedChance(chance.taken)) == drawn


@pytest.mark.parametrize("law", [torch.zeros(3), torch.full((3,), math.nan)])
def test_a_draw_from_no_law_is_refused(law: Tensor) -> None:
    with pytest.raises(ConformanceError, match="weights that are no law"):
        ScriptedChance(()).draw(law)
