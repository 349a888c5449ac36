"""The joint law of a node's children, against what defines each kind of proposal."""

import itertools
import math
from collections import defaultdict

import pytest
import torch

from treespec.chance import NO_TOKEN, GeneratorChance
from treespec.errors import TreespecError
from treespec.siblings import draw_siblings
from treespec.testing.enumeration import outcomes
from treespec.types import ProposalKind

Law = dict[tuple[int, ...], float]
Q = [0.15, 0.5, 0.05, 0.3]
SPARSE = [0.0, 0.6, 0.0, 0.4]
ONE_HOT = [0.0, 0.0, 1.0, 0.0]
SAMPLED = [kind for kind in ProposalKind if kind is not ProposalKind.DETERMINISTIC]
EXACT = 1e-12


def joint_law(kind: ProposalKind, q: list[float], num_children: int) -> Law:
    """The law of the children, by trying every outcome of every draw."""
    law: defaultdict[tuple[int, ...], float] = defaultdict(float)
    laws = torch.tensor([q], dtype=torch.float64)
    drawn = outcomes(lambda chance: draw_siblings(kind, laws, num_children, chance))
    for weight, tokens in drawn:
        assert tokens.shape == (1, num_children)
        law[tuple(tokens[0].tolist())] += weight
    return dict(law)


def independent(q: list[float], k: int) -> Law:
    """q(x1) * q(x2) * ..."""
    texts = itertools.product(range(len(q)), repeat=k)
    return {text: math.prod(q[token] for token in text) for text in texts}


def successive(q: list[float], k: int) -> Law:
    """q(x1) * q(x2) / (1 - q(x1)) * ...; ends where nothing is left."""
    law: Law = {}

    def extend(text: tuple[int, ...], prob: float) -> None:
        left = {x: q[x] for x in range(len(q)) if q[x] > 0 and x not in text}
        if len(text) == k or not left:
            law[text + (NO_TOKEN,) * (k - len(text))] = prob
            return
        for token, mass in left.items():
            extend((*text, token), prob * mass / sum(left.values()))

    extend((), 1.0)
    return law


def greedy_plus_random(q: list[float], k: int) -> Law:
    """The k-1 likeliest, then one draw from q outside of them."""
    order = sorted(range(len(q)), key=lambda x: -q[x])
    top = tuple(order[: k - 1])
    rest = sum(q[x] for x in order[k - 1 :])
    return {(*top, x): q[x] / rest for x in order[k - 1 :]}


def argmax_pair(q: list[float]) -> Law:
    """P(i, a) = q(i); P(a, i) = q(a) q(i) / (1 - q(a)); a is the argmax."""
    a = max(range(len(q)), key=lambda x: q[x])
    others = [x for x in range(len(q)) if x != a]
    forwards = {(i, a): q[i] for i in others}
    return {**forwards, **{(a, i): q[a] * q[i] / (1 - q[a]) for i in others}}


def assert_equal(law: Law, expected: Law) -> None:
    for tokens in {*law, *expected}:
        assert law.get(tokens, 0.0) == pytest.approx(
            expected.get(tokens, 0.0), abs=EXACT
        ), tokens


@pytest.mark.parametrize("q", [Q, SPARSE, ONE_HOT], ids=["full", "sparse", "one_hot"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_children_with_replacement_are_independent(q: list[float], k: int) -> None:
    assert_equal(joint_law(ProposalKind.WITH_REPLACEMENT, q, k), independent(q, k))


@pytest.mark.parametrize("q", [Q, SPARSE, ONE_HOT], ids=["full", "sparse", "one_hot"])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_children_without_replacement_are_successive_draws(
    q: list[float], k: int
) -> None:
    assert_equal(joint_law(ProposalKind.WITHOUT_REPLACEMENT, q, k), successive(q, k))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_greedy_plus_random_is_the_best_and_a_draw_of_the_others(k: int) -> None:
    """The drawn child is the last: a rule must know which one it is."""
    law = joint_law(ProposalKind.GREEDY_PLUS_RANDOM, Q, k)
    assert_equal(law, greedy_plus_random(Q, k))


def test_an_argmax_pair_has_the_law_of_spechub() -> None:
    assert_equal(joint_law(ProposalKind.ARGMAX_PAIR, Q, 2), argmax_pair(Q))
    assert_equal(joint_law(ProposalKind.ARGMAX_PAIR, SPARSE, 2), argmax_pair(SPARSE))


@pytest.mark.parametrize("kind", SAMPLED)
def test_one_child_is_a_draw_from_the_law(kind: ProposalKind) -> None:
    assert_equal(joint_law(kind, Q, 1), {(x,): mass for x, mass in enumerate(Q)})


def test_where_a_law_runs_out_there_are_fewer_children() -> None:
    """Of what is then drawn, the joint law is that of the smaller number."""
    kind = ProposalKind.GREEDY_PLUS_RANDOM
    assert joint_law(kind, SPARSE, 3) == {(1, 3, NO_TOKEN): 1.0}
    assert joint_law(kind, ONE_HOT, 2) == {(2, NO_TOKEN): 1.0}
    assert joint_law(kind, Q, 6) == {(1, 3, 0, 2, NO_TOKEN, NO_TOKEN): 1.0}
    assert joint_law(ProposalKind.ARGMAX_PAIR, ONE_HOT, 2) == {(2, NO_TOKEN): 1.0}


@pytest.mark.parametrize("kind", SAMPLED)
def test_rows_are_drawn_each_from_its_own_law(kind: ProposalKind) -> None:
    one_hots = torch.eye(4)[[3, 0, 2]]
    chance = GeneratorChance(torch.Generator().manual_seed(0))
    drawn = draw_siblings(kind, one_hots, 2, chance)
    assert drawn[:, 0].tolist() == [3, 0, 2]
    repeated = kind is ProposalKind.WITH_REPLACEMENT
    assert drawn[:, 1].tolist() == ([3, 0, 2] if repeated else [NO_TOKEN] * 3)


def test_deterministic_children_are_not_drawn() -> None:
    chance = GeneratorChance(torch.Generator())
    with pytest.raises(TreespecError, match="are not drawn; use one of"):
        draw_siblings(ProposalKind.DETERMINISTIC, torch.ones(1, 2), 1, chance)


def test_tokens_that_the_draft_rules_out_are_no_likeliest_tokens() -> None:
    """A sibling of q = 0 would make 0/0 of the ratio."""
    law = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    chance = GeneratorChance(torch.Generator().manual_seed(0))
    drawn = draw_siblings(ProposalKind.GREEDY_PLUS_RANDOM, law, 3, chance)
    assert drawn.tolist() == [[1, NO_TOKEN, NO_TOKEN]]
