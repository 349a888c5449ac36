"""How uniforms become tokens: looked up in a cumulated law, or as a race of clocks."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from treespec.chance import (
    NO_TOKEN,
    GeneratorChance,
    draw,
    draw_without_replacement,
    look_up,
)

LAW = torch.tensor([0.4, 0.0, 0.3, 0.2, 0.1])
ALMOST_ONE = 1 - 2**-53
FALSE_ALARM = 1e-4
"""Chance with which a right law fails a test; the seeds are fixed."""


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def order_law(law: list[float], count: int) -> dict[tuple[int, ...], float]:
    """The law of successive draws without replacement, by its definition."""
    found = {}
    for tokens in itertools.permutations(range(len(law)), count):
        prob, left = 1.0, sum(law)
        for token in tokens:
            prob *= law[token] / left if left > 0 else 0.0
            left -= law[token]
        if prob > 0:
            found[tokens] = prob
    return found


# Looking up


def test_a_mark_is_looked_up_in_the_stretch_of_its_token() -> None:
    """A stretch has its start and not its end; a token of no mass has none."""
    law = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    marks = torch.tensor([0.0, 0.2499, 0.25, 0.74, 0.75, ALMOST_ONE]).double()
    assert look_up(law, marks).tolist() == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 7.0])
def test_a_law_need_not_sum_to_one(scale: float) -> None:
    marks = torch.tensor([0.1, 0.5, 0.95], dtype=torch.float64)
    assert look_up(scale * LAW, marks).equal(look_up(LAW, marks))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_last_mark_finds_the_last_possible_token(dtype: torch.dtype) -> None:
    """Totals round up and down; a search must not run over the end."""
    last = torch.tensor([ALMOST_ONE], dtype=torch.float64)
    assert last.item() == torch.nextafter(torch.ones(1).double(), last * 0).item()
    for seed in range(50):
        law = torch.rand(997, generator=seeded(seed), dtype=dtype).softmax(dim=-1)
        law[-3:] = 0
        assert look_up(law, last).tolist() == [993]


def test_tiny_masses_are_reached_among_150000_tokens() -> None:
    """Float32 sums would round masses of 1e-9 away beside those before them."""
    law = torch.full((150_000,), 1e-9, dtype=torch.float32)
    law[0] = 1.0
    reached = law.double().cumsum(dim=-1)
    tokens = torch.tensor([1, 75_000, 149_999])
    marks = (reached[tokens] - 5e-10) / reached[-1]
    assert look_up(law, marks).equal(tokens)


# Draws


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_have_the_law(dtype: torch.dtype, seed: int) -> None:
    count = 20_000
    tokens = draw(LAW.to(dtype).expand(count, -1), seeded(seed))
    seen = torch.bincount(tokens, minlength=5)
    assert seen[1] == 0
    possible = LAW > 0
    expected = count * LAW[possible].double() / LAW.double().sum()
    assert chisquare(seen[possible], expected).pvalue > FALSE_ALARM


def test_a_draw_takes_one_uniform_per_row_and_rows_are_independent() -> None:
    """The second row's token must not depend on the first row's law."""
    both = draw(torch.stack((LAW, LAW.flip(0))), seeded(3))
    generator = seeded(3)
    one_by_one = [int(draw(law, generator)) for law in (LAW, LAW.flip(0))]
    assert both.tolist() == one_by_one
    law = torch.full((20_000, 2, 3), 1 / 3)
    left, right = draw(law, seeded(0)).unbind(dim=1)
    pairs = torch.bincount(3 * left + right, minlength=9)
    assert chisquare(pairs).pvalue > FALSE_ALARM


# Draws without replacement


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_draws", [1, 2, 3])
def test_tokens_without_replacement_come_in_the_order_of_draws(
    num_draws: int, dtype: torch.dtype, seed: int
) -> None:
    """Their joint law is that of successive draws: the order is part of it."""
    count = 20_000
    laws = LAW.to(dtype).expand(count, -1)
    drawn = draw_without_replacement(laws, num_draws, seeded(seed))
    assert drawn.dtype == torch.int64
    seen = Counter(map(tuple, drawn.tolist()))
    expected = order_law(LAW.tolist(), num_draws)
    assert set(seen) <= set(expected)
    observed = [seen[tokens] for tokens in expected]
    scale = count / sum(expected.values())
    pvalue = chisquare(observed, [p * scale for p in expected.values()]).pvalue
    assert pvalue > FALSE_ALARM


def test_a_row_that_ran_out_has_no_token() -> None:
    laws = torch.tensor([[0.0, 0.7, 0.0], [0.0, 0.0, 0.0], [0.5, 0.2, 0.3]])
    drawn = draw_without_replacement(laws, 4, seeded(0))
    assert drawn[0].tolist() == [1, NO_TOKEN, NO_TOKEN, NO_TOKEN]
    assert drawn[1].tolist() == [NO_TOKEN] * 4
    assert sorted(drawn[2].tolist()) == [NO_TOKEN, 0, 1, 2]
    assert drawn[2, 3] == NO_TOKEN


def test_only_ratios_of_a_row_matter_without_replacement() -> None:
    rows = torch.stack((LAW, 1e-20 * LAW, 50 * LAW))
    for seed in range(20):
        alone = [
            draw_without_replacement(row.expand(3, -1), 4, seeded(seed))[i].tolist()
            for i, row in enumerate(rows)
        ]
        assert draw_without_replacement(rows, 4, seeded(seed)).tolist() == alone
        assert NO_TOKEN not in itertools.chain(*alone)


@pytest.mark.parametrize("uniform", [0.0, ALMOST_ONE])
def test_extreme_uniforms_ring_no_impossible_clock(
    uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def constant(shape: tuple[int, ...], **kwargs: Any) -> Tensor:
        return torch.full(shape, uniform, dtype=kwargs["dtype"])

    monkeypatch.setattr(torch, "rand", constant)
    (drawn,) = draw_without_replacement(LAW[None], 5, torch.Generator()).tolist()
    assert sorted(drawn) == [NO_TOKEN, 0, 2, 3, 4]
    assert drawn[-1] == NO_TOKEN


def test_the_least_uniform_accepts_nothing_impossible_and_the_most_all_that_is_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = GeneratorChance(torch.Generator())
    for uniform in (0.0, ALMOST_ONE):
        monkeypatch.setattr(
            "treespec.chance.uniforms",
            lambda *_, u=uniform: torch.tensor(u, dtype=torch.float64),
        )
        assert not chance.accepts(0.0)
        assert chance.accepts(torch.ones(()))


def test_the_first_of_150000_clocks_is_fair() -> None:
    """The earliest rings at about 1e-5: float32 uniforms near 1 have steps of 6e-8."""
    law = torch.full((1, 150_000), 1 / 150_000)
    generator = seeded(0)
    firsts = [
        int(draw_without_replacement(law, 1, generator)) for _ in range(300)
    ]  # one row at a time: memory
    assert len(set(firsts)) >= 297
    halves = Counter(token >= 75_000 for token in firsts)
    assert abs(halves[True] - 150) < 4.5 * 300**0.5 / 2


def test_draws_stay_on_the_device_of_their_law() -> None:
    chance = GeneratorChance(seeded(0))
    with torch.device("meta"):  # what forgets its device lands there and fails
        assert chance.draw(LAW).item() >= 0
        assert len(chance.draw_without_replacement(LAW[None], 6).tolist()[0]) == 6


def test_a_chance_moves_its_own_generator_and_no_other() -> None:
    before = torch.get_rng_state()
    chance, twin = GeneratorChance(seeded(7)), seeded(7)
    assert chance.draw(LAW).equal(draw(LAW, twin))
    assert chance.draw_without_replacement(LAW[None], 3).equal(
        draw_without_replacement(LAW[None], 3, twin)
    )
    assert torch.get_rng_state().equal(before)
