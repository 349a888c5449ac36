"""The best acceptance of one node: against every token set, a transport, and rules."""

import inspect
from fractions import Fraction
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from treespec import acceptance
from treespec.acceptance.optimum import optimal_acceptance
from treespec.chance import NO_TOKEN
from treespec.errors import TreespecError
from treespec.siblings import draw_siblings
from treespec.testing.enumeration import outcomes
from treespec.testing.laws import Setting, expected_accepted
from treespec.testing.toys import random_model
from treespec.types import ProposalKind

EXACT = 1e-12
WITH_REPLACEMENT = ProposalKind.WITH_REPLACEMENT
WITHOUT_REPLACEMENT = ProposalKind.WITHOUT_REPLACEMENT
SAMPLED = [kind for kind in ProposalKind if kind is not ProposalKind.DETERMINISTIC]
RULES = [
    rule()
    for rule in map(acceptance.__dict__.get, acceptance.__all__)
    if isinstance(rule, type)
    and issubclass(rule, acceptance.AbstractAcceptanceRule)
    and not inspect.isabstract(rule)
    and rule.lossless is True
]

TARGET = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
DRAFT = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
SECOND_TARGET = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
SECOND_DRAFT = torch.tensor([0.1, 0.5, 0.2, 0.2], dtype=torch.float64)


def random_law(vocab_size: int, seed: int, spread: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(vocab_size, generator=generator).double()
    return logits.softmax(dim=-1)


def draft_sets(
    proposal: ProposalKind, draft: Tensor, num_drafts: int
) -> dict[frozenset[int], float]:
    """The probability of every set of tokens that may be drafted."""
    sets: dict[frozenset[int], float] = {}
    drawn = outcomes(
        lambda chance: draw_siblings(proposal, draft[None], num_drafts, chance)[0]
    )
    for weight, tokens in drawn:
        key = frozenset(tokens.tolist()) - {NO_TOKEN}
        sets[key] = sets.get(key, 0.0) + weight
    return sets


def best_over_all_sets(
    target: Tensor, draft: Tensor, num_drafts: int, proposal: ProposalKind
) -> float:
    """The bound's own formula, over all subsets H of the vocabulary."""
    drafted = draft_sets(proposal, draft, num_drafts)
    tokens = range(target.shape[0])
    return min(
        1
        + sum(float(target[token]) for token in inside)
        - sum(weight for some, weight in drafted.items() if some <= set(inside))
        for size in range(len(tokens) + 1)
        for inside in combinations(tokens, size)
    )


@pytest.mark.parametrize("proposal", SAMPLED)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    vocab_size=st.integers(2, 5),
    num_drafts=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.3, 1.5, 6.0, 25.0]),
    num_impossible=st.integers(0, 2),
)
def test_no_token_set_gives_a_smaller_bound(
    proposal: ProposalKind,
    vocab_size: int,
    num_drafts: int,
    seed: int,
    spread: float,
    num_impossible: int,
) -> None:
    if proposal is ProposalKind.ARGMAX_PAIR:
        num_drafts = min(num_drafts, 2)
    target = random_law(vocab_size, seed, spread)
    draft = random_law(vocab_size, seed + 1, spread)
    draft[: min(num_impossible, vocab_size - 1)] = 0.0
    draft /= draft.sum()
    expected = best_over_all_sets(target, draft, num_drafts, proposal)
    found = optimal_acceptance(target, draft, num_drafts, proposal)
    assert found == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize(
    ("laws", "num_drafts", "with_replacement", "without_replacement"),
    [
        ((TARGET, DRAFT), 1, Fraction(1, 2), Fraction(1, 2)),
        ((TARGET, DRAFT), 2, Fraction(69, 100), Fraction(617, 840)),
        ((TARGET, DRAFT), 3, Fraction(771, 1000), Fraction(797, 840)),
        ((SECOND_TARGET, SECOND_DRAFT), 1, Fraction(7, 10), Fraction(7, 10)),
        ((SECOND_TARGET, SECOND_DRAFT), 2, Fraction(79, 100), Fraction(17, 20)),
    ],
)
def test_optima_are_those_worked_out_in_fractions(
    laws: tuple[Tensor, Tensor],
    num_drafts: int,
    with_replacement: Fraction,
    without_replacement: Fraction,
) -> None:
    for proposal, expected in (
        (WITH_REPLACEMENT, with_replacement),
        (WITHOUT_REPLACEMENT, without_replacement),
    ):
        found = optimal_acceptance(*laws, num_drafts, proposal)
        assert found == pytest.approx(float(expected), abs=EXACT)


@pytest.mark.parametrize("proposal", SAMPLED)
@pytest.mark.parametrize("seed", range(5))
def test_the_best_transport_of_two_drafts_attains_it(
    proposal: ProposalKind, seed: int
) -> None:
    """A linear program over all couplings of drafted set and token knows no bound."""
    target, draft = random_law(3, seed, 1.5), random_law(3, seed + 50, 1.5)
    sets = draft_sets(proposal, draft, 2)
    pairs = list(product(sets, range(3)))  # drafted set, committed token
    kept = [float(token in drafted) for drafted, token in pairs]
    marginals = [[drafted == some for drafted, _ in pairs] for some in sets]
    marginals += [[token == some for _, token in pairs] for some in range(3)]
    best = linprog(
        -np.array(kept),
        A_eq=np.array(marginals, dtype=float),
        b_eq=[*sets.values(), *target.tolist()],
    )
    found = optimal_acceptance(target, draft, 2, proposal)
    assert found == pytest.approx(-best.fun, abs=1e-8)


def closed_form_of_two(target: Tensor, draft: Tensor) -> float:
    """The optimum of two draws without replacement, over prefixes, by plain sums."""
    order = (target / draft).argsort()
    target, draft = target[order], draft[order]
    mass = draft.cumsum(0)
    ratios = (draft / (1 - draft)).cumsum(0)
    squares = (draft.square() / (1 - draft)).cumsum(0)
    return 1 + min(0.0, float((target.cumsum(0) - mass * ratios + squares).min()))


def test_two_draws_of_a_large_vocabulary_are_those_of_the_closed_form() -> None:
    target, draft = random_law(5000, 1, 3.0), random_law(5000, 2, 3.0)
    found = optimal_acceptance(target, draft, 2, WITHOUT_REPLACEMENT)
    assert found == pytest.approx(closed_form_of_two(target, draft), abs=EXACT)


@pytest.mark.parametrize("rest", [1e-3, 1e-9, 1e-30])
def test_a_draft_that_is_nearly_certain_loses_no_digits(rest: float) -> None:
    """exp(q t) of the certain token overflows long before the others matter."""
    target = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    draft = torch.tensor([1.0, 0.5 * rest, 0.3 * rest, 0.2 * rest], dtype=target.dtype)
    # The first token is drafted, and one of the others by their shares.
    expected = 0.1 + (0.2 + 0.3 + 0.2)
    found = optimal_acceptance(target, draft, 2, WITHOUT_REPLACEMENT)
    assert found == pytest.approx(expected, abs=max(EXACT, rest))


def test_different_draws_of_equal_tokens_are_a_uniform_set() -> None:
    """Of 1000 equal tokens, K different ones are drafted: H counts in binomials."""
    target = random_law(1000, 3, 2.0)
    ascending = target.sort().values
    for num_drafts in (2, 3, 5, 9, 20):
        inside = np.ones(1001)
        sizes = np.arange(1001)
        for taken in range(num_drafts):
            inside *= np.clip(sizes - taken, 0, None) / (1000 - taken)
        mass = np.concatenate(([0.0], ascending.cumsum(0).numpy()))
        found = optimal_acceptance(
            target, torch.ones(1000), num_drafts, WITHOUT_REPLACEMENT
        )
        assert found == pytest.approx(1 + (mass - inside).min(), abs=EXACT)


@pytest.mark.parametrize("seed", range(4))
def test_more_drafts_and_different_ones_never_accept_less(seed: int) -> None:
    target, draft = random_law(60, seed, 2.0), random_law(60, seed + 9, 2.0)
    optima = {
        proposal: [optimal_acceptance(target, draft, k, proposal) for k in range(1, 9)]
        for proposal in (WITH_REPLACEMENT, WITHOUT_REPLACEMENT)
    }
    for values in optima.values():
        assert values == sorted(values)
    pairs = zip(*optima.values(), strict=True)
    assert all(less <= more + EXACT for less, more in pairs)


@pytest.mark.parametrize("proposal", SAMPLED)
def test_equal_laws_always_accept_and_disjoint_ones_never(
    proposal: ProposalKind,
) -> None:
    law = random_law(6, 4, 1.0)
    left, right = law.clone(), law.clone()
    left[:3], right[3:] = 0.0, 0.0
    for num_drafts in (1, 2):
        accepted = optimal_acceptance(law, law, num_drafts, proposal)
        assert accepted == pytest.approx(1.0, abs=EXACT)
        assert optimal_acceptance(left, right, num_drafts, proposal) == 0.0


def test_drafting_all_tokens_accepts_all_that_the_draft_knows() -> None:
    draft = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64)
    for num_drafts in (2, 3, 7):
        found = optimal_acceptance(TARGET, draft, num_drafts, WITHOUT_REPLACEMENT)
        assert found == pytest.approx(0.5)


@cache
def random_setting(proposal: ProposalKind, width: int, seed: int) -> Setting:
    target, draft = random_model(4, seed), random_model(4, seed + 100)
    return Setting(target, draft, proposal, (width,))


@pytest.mark.parametrize(
    ("rule", "proposal", "width"),
    [
        pytest.param(rule, proposal, width, id=f"{rule.name}-{proposal}-{width}")
        for rule in RULES
        if not rule.greedy_only
        for proposal, most in rule.proposals.items()
        if proposal is not ProposalKind.DETERMINISTIC
        for width in (1, 2, 3)
        if width <= (most or 3)
        and not (proposal is ProposalKind.ARGMAX_PAIR and width > 2)
    ],
)
def test_no_rule_accepts_more_often(
    rule: acceptance.AbstractAcceptanceRule, proposal: ProposalKind, width: int
) -> None:
    for seed in range(3):
        setting = random_setting(proposal, width, seed)
        target, draft = (
            setting.sampling.probs(model((0,)))
            for model in (setting.target, setting.draft)
        )
        best = optimal_acceptance(target, draft, width, proposal)
        assert expected_accepted(rule, setting) <= best + EXACT


def test_the_likeliest_token_is_the_one_that_was_drafted_as_such() -> None:
    """Normalised, these two tie, and then the first would count as the likeliest."""
    draft = torch.tensor([1 - 2**-53, 1.0, 101 / 2000], dtype=torch.float64)
    normalised = draft / draft.sum()
    assert normalised[0] == normalised[1]
    target = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    kind = ProposalKind.GREEDY_PLUS_RANDOM
    assert optimal_acceptance(target, draft, 2, kind) == 1.0


def test_a_vocabulary_beyond_the_size_of_a_chunk_is_integrated_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, draft = random_law(6, 1, 2.0), random_law(6, 2, 2.0)
    expected = optimal_acceptance(target, draft, 3, WITHOUT_REPLACEMENT)
    monkeypatch.setattr("treespec.acceptance.optimum._CHUNK", 5)
    found = optimal_acceptance(target, draft, 3, WITHOUT_REPLACEMENT)
    assert found == pytest.approx(expected, abs=EXACT)


def test_what_has_no_optimum_is_refused() -> None:
    with pytest.raises(TreespecError, match="sum of target_probs over"):
        optimal_acceptance(TARGET, DRAFT, 2, ProposalKind.DETERMINISTIC)
    with pytest.raises(TreespecError, match="num_drafts must be an integer >= 1"):
        optimal_acceptance(TARGET, DRAFT, 0, WITH_REPLACEMENT)
    with pytest.raises(TreespecError, match="at most 2, got 3"):
        optimal_acceptance(TARGET, DRAFT, 3, ProposalKind.ARGMAX_PAIR)
    with pytest.raises(TreespecError, match="draft_probs must be a law"):
        optimal_acceptance(TARGET, torch.zeros(4), 2, WITH_REPLACEMENT)
