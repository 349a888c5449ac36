"""The law of the next tokens, exactly, for every legal pair of proposal and rule."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from treespec.acceptance import (
    AbstractAcceptanceRule,
    ChainSpeculative,
    Greedy,
    SampleAndMatch,
)
from treespec.sampling import AbstractChance, Sampling
from treespec.testing.laws import (
    Setting,
    autoregressive_law,
    bias,
    distance,
    expected_accepted,
    output_law,
    recovered_share,
    rounds,
)
from treespec.testing.toys import constant_model, random_model
from treespec.tree import TokenTree
from treespec.types import Acceptance, ProposalKind

EXACT = 1e-12
RULES = (Greedy(), SampleAndMatch(), ChainSpeculative())
GREEDY = Sampling()
PLAIN = Sampling(1.0)
PROCESSED = Sampling(0.7, top_k=3, top_p=0.9, repetition_penalty=1.4)

DETERMINISTIC = ProposalKind.DETERMINISTIC
WITH_REPLACEMENT = ProposalKind.WITH_REPLACEMENT

VECTORS = Setting(
    target=constant_model(0.5, 0.3, 0.2, 0.0),
    draft=constant_model(0.1, 0.2, 0.3, 0.4),
    proposal=WITH_REPLACEMENT,
    widths=(1,),
)
SECOND_VECTORS = Setting(
    target=constant_model(0.4, 0.3, 0.2, 0.1),
    draft=constant_model(0.1, 0.5, 0.2, 0.2),
    proposal=WITH_REPLACEMENT,
    widths=(1,),
)


def random_setting(
    proposal: ProposalKind,
    widths: tuple[int, ...],
    vocab_size: int,
    sampling: Sampling = PLAIN,
) -> Setting:
    target, draft = random_model(vocab_size, seed=1), random_model(vocab_size, seed=2)
    return Setting(target, draft, proposal, widths, sampling)


def shapes(most_children: int | None, proposal: ProposalKind) -> list[tuple[int, ...]]:
    """Trees to try, each with the vocabulary that keeps its enumeration small."""
    if most_children == 1:
        return [(1,), (1, 1), (1, 1, 1)]
    if proposal is DETERMINISTIC:
        return [(3,), (2, 2), (1, 1, 1), (2, 1, 1)]
    return [(2,), (2, 1)]


VOCAB_SIZES = {(1,): 5, (3,): 5, (2, 2): 4, (2, 1): 2}

LEGAL = [
    pytest.param(
        rule,
        random_setting(proposal, widths, VOCAB_SIZES.get(widths, 3), sampling),
        id=f"{rule.name}-{proposal}-{widths}-T{sampling.temperature}",
    )
    for rule in RULES
    for proposal, most_children in rule.proposals.items()
    for widths in shapes(most_children, proposal)
    for sampling in ([GREEDY] if rule.greedy_only else [GREEDY, PLAIN, PROCESSED])
]


@pytest.mark.parametrize(("rule", "setting"), LEGAL)
def test_the_next_three_tokens_follow_the_target(
    rule: AbstractAcceptanceRule, setting: Setting
) -> None:
    assert bias(rule, setting, text=(0,), length=3) < EXACT


@pytest.mark.parametrize("sampling", [PLAIN, PROCESSED])
def test_the_law_holds_from_the_second_round_on(sampling: Sampling) -> None:
    """Public case 15: rows were looked up at the wrong offset after round 1.

    Round 1 is warmed with fixed tokens; then a chain deeper than the window, so that
    the bonus falls inside, and the law of the second token given each first one.
    """
    setting = random_setting(WITH_REPLACEMENT, (1, 1, 1), 3, sampling)
    warm = (0, 2, 1, 1)
    law = output_law(ChainSpeculative(), setting, warm, length=2)
    for first, prob in enumerate(setting.target_law(warm)):
        conditional = setting.target_law((*warm, first))
        for second, next_prob in enumerate(conditional):
            assert abs(law.get((first, second), 0) - prob * next_prob) < EXACT


def test_the_weights_of_all_outcomes_sum_to_one() -> None:
    setting = random_setting(WITH_REPLACEMENT, (2,), 3)
    weights = [weight for weight, _ in rounds(SampleAndMatch(), setting, (0,))]
    assert len(weights) > 20
    assert abs(sum(weights) - 1) < EXACT


@pytest.mark.parametrize("widths", [(1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize("sampling", [PLAIN, PROCESSED])
def test_a_fifth_of_the_rounds_end_in_the_residual(
    widths: tuple[int, ...], sampling: Sampling
) -> None:
    """Models that agree too well would never run the branch that is hard."""
    setting = random_setting(
        WITH_REPLACEMENT, widths, VOCAB_SIZES.get(widths, 3), sampling
    )
    assert recovered_share(ChainSpeculative(), setting) > 0.2


# Acceptance: public case 21 and the values of the literature's toys


def test_one_sampled_child_is_accepted_with_the_overlap_of_the_laws() -> None:
    """Public case 21: taking q as 1 for sampled drafts is lossless, but accepts .17."""
    assert expected_accepted(ChainSpeculative(), VECTORS) == pytest.approx(0.5)
    assert expected_accepted(SampleAndMatch(), VECTORS) == pytest.approx(0.17)
    assert expected_accepted(ChainSpeculative(), SECOND_VECTORS) == pytest.approx(0.7)


def test_acceptance_is_the_mean_overlap_over_random_contexts() -> None:
    setting = random_setting(WITH_REPLACEMENT, (1,), 5)
    for text in [(0,), (1,), (0, 3)]:
        draft = setting.sampling.probs(setting.draft(text)).tolist()
        target = setting.target_law(text)
        overlap = sum(map(min, target, draft))
        assert expected_accepted(ChainSpeculative(), setting, text) == pytest.approx(
            overlap, abs=EXACT
        )


@pytest.mark.parametrize(("num_children", "accepted"), [(1, 0), (2, 0.2), (3, 0.5)])
def test_top_k_children_are_matched_with_their_target_mass(
    num_children: int, accepted: float
) -> None:
    setting = Setting(VECTORS.target, VECTORS.draft, DETERMINISTIC, (num_children,))
    assert expected_accepted(SampleAndMatch(), setting) == pytest.approx(accepted)


@pytest.mark.parametrize(
    ("max_depth", "accepted"), [(1, 2 / 3), (2, 10 / 9), (3, 38 / 27)]
)
def test_a_chain_accepts_as_many_tokens_as_the_toy_of_2403_10444(
    max_depth: int, accepted: float
) -> None:
    setting = Setting(
        target=constant_model(1 / 3, 2 / 3),
        draft=constant_model(2 / 3, 1 / 3),
        proposal=WITH_REPLACEMENT,
        widths=(1,) * max_depth,
    )
    assert expected_accepted(ChainSpeculative(), setting) == pytest.approx(accepted)


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN, Sampling(0.7, top_k=2, top_p=0.9)])
def test_a_draft_equal_to_the_target_is_always_accepted(sampling: Sampling) -> None:
    """Public case 17: a NaN residual, an early stop, or a drifted law."""
    model = random_model(3, seed=4)
    setting = Setting(model, model, WITH_REPLACEMENT, (1, 1, 1), sampling)
    for weight, outcome in rounds(ChainSpeculative(), setting, (0,)):
        assert weight > 0
        assert len(outcome.acceptance.node_ids) == 3
        assert outcome.acceptance.next_kind == "bonus"
    assert bias(ChainSpeculative(), setting, (0,), 2) < EXACT


def test_laws_that_differ_by_a_rounding_error_stay_exact() -> None:
    """Public case 17, the near miss."""
    setting = Setting(
        target=constant_model(0.5 + 1e-9, 0.3, 0.2 - 1e-9),
        draft=constant_model(0.5, 0.3, 0.2),
        proposal=WITH_REPLACEMENT,
        widths=(1,),
    )
    assert bias(ChainSpeculative(), setting, (0,), 2) < EXACT
    assert expected_accepted(ChainSpeculative(), setting) == pytest.approx(1, abs=2e-9)


def test_deterministic_children_leave_the_law_alone() -> None:
    """Public case 19, with one child, two, and the same one twice."""
    target, draft = constant_model(0.4, 0.4, 0.2), constant_model(0.5, 0.3, 0.2)
    for num_children, accepted in [(1, 0.4), (2, 0.8)]:
        setting = Setting(target, draft, DETERMINISTIC, (num_children,))
        assert bias(SampleAndMatch(), setting, (0,), 2) < EXACT
        assert expected_accepted(SampleAndMatch(), setting) == pytest.approx(accepted)
    # A draft of one certain token, drawn twice: two siblings with the same token.
    certain = constant_model(1.0, 0.0, 0.0)
    twice = Setting(target, certain, WITH_REPLACEMENT, (2,))
    law = output_law(SampleAndMatch(), twice, (0,), 1)
    assert law[0,] == pytest.approx(0.4)
    assert distance(law, autoregressive_law(twice, (0,), 1)) < EXACT


# Negative controls: the test above must be able to fail


@dataclass(frozen=True, slots=True)
class FaultyChain(AbstractAcceptanceRule):
    """Chain speculative sampling whose parts can be replaced by wrong ones."""

    lossless = False
    greedy_only = False
    draws_like_autoregressive = False
    proposals = ChainSpeculative.proposals

    ratio: Callable[[Tensor, Tensor], Tensor] = torch.div
    residual: Callable[[Tensor, Tensor], Tensor] = lambda p, q: (p - q).clamp(min=0)
    residual_of_last_row: bool = False

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        assert tree.draft_probs is not None
        target_probs = sampling.probs(target_logits)
        for node in range(tree.num_drafted):  # a chain: node's child is node + 1
            token = int(tree.tokens[node + 1])
            p, q = target_probs[node], tree.draft_probs[node]
            if not chance.accepts(self.ratio(p[token], q[token])):
                if self.residual_of_last_row:
                    p, q = target_probs[-2], tree.draft_probs[-1]
                law = self.residual(p, q)
                recovered = int(chance.draw(law / law.sum()))
                return Acceptance(tuple(range(1, node + 1)), recovered, "recovered")
        bonus = int(chance.draw(target_probs[-1]))
        return Acceptance(tuple(range(1, tree.size)), bonus, "bonus")


RECOVERED_FROM_TARGET = FaultyChain(residual=lambda p, q: p)
INVERTED_RATIO = FaultyChain(ratio=lambda p, q: q / p)


def first_token_law(rule: AbstractAcceptanceRule, setting: Setting) -> list[float]:
    law = output_law(rule, setting, (0,), 1)
    vocab_size = len(setting.target_law((0,)))
    return [round(law.get((token,), 0.0), 3) for token in range(vocab_size)]


def test_the_faulty_chain_without_a_fault_is_right() -> None:
    assert (
        bias(FaultyChain(), random_setting(WITH_REPLACEMENT, (1, 1), 3), (0,), 2)
        < EXACT
    )


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(RECOVERED_FROM_TARGET, id="recovered token from p"),
        pytest.param(INVERTED_RATIO, id="inverted ratio"),
        pytest.param(FaultyChain(residual_of_last_row=True), id="residual of last row"),
    ],
)
def test_a_faulty_rule_fails_the_law(rule: AbstractAcceptanceRule) -> None:
    setting = random_setting(WITH_REPLACEMENT, (1, 1), 3)
    assert bias(rule, setting, (0,), 2) > 0.01


@pytest.mark.parametrize("rule", [SampleAndMatch(), ChainSpeculative()])
def test_the_vectors_come_out_as_the_target(rule: AbstractAcceptanceRule) -> None:
    """Public case 14; the fourth token is impossible."""
    assert first_token_law(rule, VECTORS) == [0.5, 0.3, 0.2, 0.0]


def test_a_fault_leaves_its_known_fingerprint() -> None:
    """Public case 14, from the papers' letters being the other way round."""
    assert first_token_law(INVERTED_RATIO, VECTORS) == [0.137, 0.163, 0.3, 0.4]
    assert first_token_law(RECOVERED_FROM_TARGET, VECTORS) == [0.35, 0.35, 0.3, 0.0]


def test_a_top_k_child_scored_as_sampled_is_over_represented() -> None:
    """Public case 19: what ``check`` refuses, let through by a tree that lies."""
    mislabelled = Setting(
        target=constant_model(0.4, 0.4, 0.2),
        draft=constant_model(0.5, 0.3, 0.2),
        proposal=DETERMINISTIC,
        declared=WITH_REPLACEMENT,
        widths=(1,),
    )
    assert first_token_law(ChainSpeculative(), mislabelled) == [0.8, 0.2, 0.0]
    random_lie = replace(
        random_setting(DETERMINISTIC, (1, 1), 4), declared=WITH_REPLACEMENT
    )
    assert bias(ChainSpeculative(), random_lie, (0,), 2) > 0.01


def test_the_root_alone_is_autoregressive_decoding() -> None:
    for rule in (SampleAndMatch(), ChainSpeculative()):
        setting = random_setting(WITH_REPLACEMENT, (), 4)
        kinds = set()
        for _, outcome in rounds(rule, setting, (0,)):
            kinds.add(outcome.acceptance.next_kind)
            assert outcome.acceptance.node_ids == ()
        assert kinds == {"bonus"}
        assert bias(rule, setting, (0,), 2) < EXACT
