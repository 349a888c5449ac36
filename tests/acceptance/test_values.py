"""Expected acceptance on the toys of the literature, and identities between rules.

The numbers are fractions that were worked out by exact enumeration, not by this code.
"""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import pytest
from torch import Tensor

from treespec.acceptance import (
    AbstractAcceptanceRule,
    BlockVerification,
    ChainSpeculative,
    GreedyDraftTransport,
    KSeq,
    RejectionWithoutReplacement,
    RejectionWithReplacement,
    SampleAndMatch,
    SpecHub,
    TraversalVerification,
)
from treespec.acceptance.base import ANY_PROPOSAL, follow, target_law
from treespec.acceptance.k_seq import smallest_scale
from treespec.chance import AbstractChance
from treespec.sampling import Sampling
from treespec.testing.laws import Setting, expected_accepted, rounds
from treespec.testing.toys import constant_model, random_model
from treespec.tree import TokenTree
from treespec.types import Acceptance, ProposalKind

EXACT = 1e-12
WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT
PLUS, PAIR = ProposalKind.GREEDY_PLUS_RANDOM, ProposalKind.ARGMAX_PAIR

CHAIN, BLOCK, TRAVERSAL = (
    ChainSpeculative(),
    BlockVerification(),
    TraversalVerification(),
)
IN_TURN_WITH, IN_TURN_WITHOUT = (
    RejectionWithReplacement(),
    RejectionWithoutReplacement(),
)
TRANSPORT = GreedyDraftTransport()
MADE_FOR_ONE_KIND = [
    (IN_TURN_WITH, WITH),
    (IN_TURN_WITHOUT, WITHOUT),
    (KSeq(), WITH),
    (SpecHub(), PAIR),
    (TRANSPORT, PLUS),
    (TRANSPORT, PAIR),
    (TRAVERSAL, WITH),
    (TRAVERSAL, WITHOUT),
]

FIRST = constant_model(0.5, 0.3, 0.2, 0.0), constant_model(0.1, 0.2, 0.3, 0.4)
SECOND = constant_model(0.4, 0.3, 0.2, 0.1), constant_model(0.1, 0.5, 0.2, 0.2)
TWO_TOKENS = constant_model(1 / 3, 2 / 3), constant_model(2 / 3, 1 / 3)
THREE_TOKENS = constant_model(0.5, 0.3, 0.2), constant_model(0.2, 0.3, 0.5)


@pytest.mark.parametrize(
    ("rule", "kind", "first", "second"),
    [
        (IN_TURN_WITH, WITH, ("13/20", "137/200"), "73/100"),
        (IN_TURN_WITHOUT, WITHOUT, ("143/210", "684/875"), "301/400"),
        (TRAVERSAL, WITH, ("13/20", "137/200"), "73/100"),
        (TRAVERSAL, WITHOUT, ("143/210", "684/875"), "301/400"),
        (SpecHub(), PAIR, ("2/3",), "4/5"),
        (TRANSPORT, PAIR, ("2/3",), "4/5"),
        (TRANSPORT, PLUS, ("2/3", "5/6"), "4/5"),
    ],
)
def test_siblings_are_accepted_as_often_as_worked_out(
    rule: AbstractAcceptanceRule,
    kind: ProposalKind,
    first: tuple[str, ...],
    second: str,
) -> None:
    for num_children, value in enumerate(first, start=2):
        setting = Setting(*FIRST, kind, (num_children,))
        assert expected_accepted(rule, setting) == pytest.approx(
            float(Fraction(value)), abs=EXACT
        )
    setting = Setting(*SECOND, kind, (2,))
    assert expected_accepted(rule, setting) == pytest.approx(
        float(Fraction(second)), abs=EXACT
    )


@pytest.mark.parametrize(
    ("models", "num_drafts", "scale", "overlap", "accepted"),
    [
        (FIRST, 1, 1, 0.5, 0.5),
        (FIRST, 2, 1.584429, 0.415571, 0.658443),
        (FIRST, 3, 2.100031, 0.338092, 0.710003),
        (SECOND, 2, 1.5, 0.5, 0.75),
    ],
)
def test_k_seq_finds_the_scale_and_accepts_as_often_as_worked_out(
    models: tuple, num_drafts: int, scale: float, overlap: float, accepted: float
) -> None:
    target_probs, draft_probs = (model((0,)).exp() for model in models)
    found = smallest_scale(target_probs, draft_probs, num_drafts)
    assert found == pytest.approx(scale, abs=1e-6)
    capped = draft_probs.minimum(target_probs / found)
    assert float(capped.sum()) == pytest.approx(overlap, abs=1e-6)
    setting = Setting(*models, WITH, (num_drafts,))
    assert expected_accepted(KSeq(), setting) == pytest.approx(accepted, abs=1e-6)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("num_drafts", [2, 3, 7])
def test_the_scale_is_the_root_and_never_below_it(seed: int, num_drafts: int) -> None:
    laws = [random_model(50, s, spread=3.0)((0,)).softmax(-1) for s in (seed, 99)]
    scale = smallest_scale(*laws, num_drafts)
    overlap = float(laws[1].minimum(laws[0] / scale).sum())
    accepted = 1 - (1 - overlap) ** num_drafts
    assert 1 <= scale <= num_drafts
    assert accepted <= scale * overlap + EXACT
    assert accepted == pytest.approx(scale * overlap, abs=1e-7)


@pytest.mark.parametrize(
    ("length", "token_by_token", "block"),
    [(1, "2/3", "2/3"), (2, "10/9", "11/9"), (3, "38/27", "45/27")],
)
def test_a_block_accepts_as_many_tokens_as_the_toy_of_2403_10444(
    length: int, token_by_token: str, block: str
) -> None:
    setting = Setting(*TWO_TOKENS, WITH, (1,) * length)
    for rule, value in [
        (CHAIN, token_by_token),
        (IN_TURN_WITH, token_by_token),
        (IN_TURN_WITHOUT, token_by_token),
        (BLOCK, block),
        (TRAVERSAL, block),
    ]:
        assert expected_accepted(rule, setting) == pytest.approx(
            float(Fraction(value)), abs=EXACT
        )


@pytest.mark.parametrize(
    ("models", "kind", "widths", "in_turn", "traversal"),
    [
        (TWO_TOKENS, WITH, (2,), "7/9", "7/9"),
        (TWO_TOKENS, WITH, (2, 2), "112/81", "118/81"),
        (THREE_TOKENS, WITH, (1, 1), "119/100", "5/4"),
        (THREE_TOKENS, WITH, (2,), "19/25", "19/25"),
        (THREE_TOKENS, WITHOUT, (2,), "41/50", "41/50"),
        (THREE_TOKENS, WITHOUT, (2, 2), "3731/2500", "3821/2500"),
        (THREE_TOKENS, WITHOUT, (2, 1), "697/500", "727/500"),
        (THREE_TOKENS, WITHOUT, (1, 2), "637/500", "131/100"),
    ],
)
def test_trees_are_accepted_as_far_as_worked_out(
    models: tuple,
    kind: ProposalKind,
    widths: tuple[int, ...],
    in_turn: str,
    traversal: str,
) -> None:
    setting = Setting(*models, kind, widths)
    rule = IN_TURN_WITH if kind is WITH else IN_TURN_WITHOUT
    assert expected_accepted(rule, setting) == pytest.approx(
        float(Fraction(in_turn)), abs=EXACT
    )
    assert expected_accepted(TRAVERSAL, setting) == pytest.approx(
        float(Fraction(traversal)), abs=EXACT
    )


# Identities


@pytest.mark.parametrize(("rule", "kind"), MADE_FOR_ONE_KIND)
@pytest.mark.parametrize("seed", range(3))
def test_one_draft_is_accepted_by_every_rule_as_by_the_chain_rule(
    rule: AbstractAcceptanceRule, kind: ProposalKind, seed: int
) -> None:
    models = random_model(4, seed), random_model(4, seed + 50)
    accepted = expected_accepted(rule, Setting(*models, kind, (1,)))
    chain = expected_accepted(CHAIN, Setting(*models, WITH, (1,)))
    assert accepted == pytest.approx(chain, abs=EXACT)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_traversal_of_a_chain_is_block_verification(length: int, seed: int) -> None:
    models = random_model(3, seed), random_model(3, seed + 50)
    setting = Setting(*models, WITH, (1,) * length)
    block = expected_accepted(BLOCK, setting)
    assert expected_accepted(TRAVERSAL, setting) == pytest.approx(block, abs=EXACT)
    assert block >= expected_accepted(CHAIN, setting) - EXACT


@pytest.mark.parametrize("kind", [WITH, WITHOUT])
@pytest.mark.parametrize("seed", range(3))
def test_traversal_at_depth_1_is_rejection_in_turn(
    kind: ProposalKind, seed: int
) -> None:
    setting = Setting(random_model(4, seed), random_model(4, seed + 50), kind, (2,))
    rule = IN_TURN_WITH if kind is WITH else IN_TURN_WITHOUT
    assert expected_accepted(TRAVERSAL, setting) == pytest.approx(
        expected_accepted(rule, setting), abs=EXACT
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_transport_accepts_a_pair_as_often_as_spec_hub(seed: int) -> None:
    models = random_model(4, seed), random_model(4, seed + 50)
    hub = expected_accepted(SpecHub(), Setting(*models, PAIR, (2,)))
    for kind in (PAIR, PLUS):
        accepted = expected_accepted(TRANSPORT, Setting(*models, kind, (2,)))
        assert accepted == pytest.approx(hub, abs=EXACT)


@pytest.mark.parametrize(("rule", "kind"), MADE_FOR_ONE_KIND)
@pytest.mark.parametrize("seed", range(2))
def test_a_draft_equal_to_the_target_is_accepted_at_its_first_child(
    rule: AbstractAcceptanceRule, kind: ProposalKind, seed: int
) -> None:
    """Where a pair offers the likeliest token last, any of the two may be taken."""
    model = random_model(4, seed)
    for _, outcome in rounds(rule, Setting(model, model, kind, (2, 1)), (0,)):
        assert len(outcome.acceptance.node_ids) == 2
        if kind in (WITH, WITHOUT):
            assert outcome.acceptance.node_ids[0] == 1


@pytest.mark.parametrize(("rule", "kind"), MADE_FOR_ONE_KIND)
def test_towards_temperature_0_every_rule_is_greedy(
    rule: AbstractAcceptanceRule, kind: ProposalKind
) -> None:
    target, draft = random_model(4, 3), random_model(4, 4)
    for temperature in (0.0, 1e-4):
        setting = Setting(target, draft, kind, (2, 1), Sampling(temperature))
        for weight, outcome in rounds(rule, setting, (0,)):
            text = [0]
            for token in outcome.committed:
                assert weight < EXACT or token == int(target(tuple(text)).argmax())
                text.append(token)


def test_sample_and_match_of_one_sampled_child_wastes_most_of_the_overlap() -> None:
    """Public case 21: lossless, but it accepts .17 where .5 could be had."""
    setting = Setting(*FIRST, WITH, (1,))
    assert expected_accepted(SampleAndMatch(), setting) == pytest.approx(0.17)
    assert expected_accepted(CHAIN, setting) == pytest.approx(0.5)


@dataclass(frozen=True, slots=True)
class OneByOne(AbstractAcceptanceRule):
    """The twin of sample-and-match: every child is drawn with certainty, q = 1."""

    lossless = True
    greedy_only = False
    draws_like_autoregressive = False
    proposals = ANY_PROPOSAL

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        host = tree.host()

        def choose(node: int) -> int:
            probs = target_law(target_logits, node, sampling)
            for child in host.children()[node]:
                token = host.tokens[child]
                if chance.accepts(probs[token]):
                    return token
                probs[token] = 0
                probs = probs / probs.sum()
            return int(chance.draw(probs))

        return follow(host, choose)


@pytest.mark.parametrize("widths", [(1,), (2,), (2, 2), (3, 1)])
def test_sample_and_match_has_a_twin_that_asks_child_by_child(
    widths: tuple[int, ...],
) -> None:
    """What is published as accepting with q = 1 is the same rule in other words."""
    setting = Setting(
        random_model(4, 1), random_model(4, 2), ProposalKind.DETERMINISTIC, widths
    )
    laws = []
    for rule in (SampleAndMatch(), OneByOne()):
        law: defaultdict[object, float] = defaultdict(float)
        for weight, outcome in rounds(rule, setting, (0,)):
            law[outcome.acceptance] += weight
        laws.append(dict(law))
    assert laws[0] == pytest.approx(laws[1], abs=EXACT)
