"""Worked values on toys; that laws are exact is proved by the conformance kit."""

from dataclasses import replace

import pytest

from treespec.acceptance import (
    AbstractAcceptanceRule,
    ChainSpeculative,
    SampleAndMatch,
)
from treespec.sampling import Sampling
from treespec.testing.laws import (
    Setting,
    autoregressive_law,
    bias,
    distance,
    expected_accepted,
    output_law,
    recovered_share,
)
from treespec.testing.toys import constant_model, random_model
from treespec.types import ProposalKind

EXACT = 1e-12
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


@pytest.mark.parametrize("widths", [(1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize("sampling", [PLAIN, PROCESSED])
def test_a_fifth_of_the_rounds_end_in_the_residual(
    widths: tuple[int, ...], sampling: Sampling
) -> None:
    """Models that agree too well would never run the branch that is hard."""
    setting = random_setting(
        WITH_REPLACEMENT, widths, 5 if widths == (1,) else 3, sampling
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


def first_token_law(rule: AbstractAcceptanceRule, setting: Setting) -> list[float]:
    law = output_law(rule, setting, (0,), 1)
    vocab_size = len(setting.target_law((0,)))
    return [round(law.get((token,), 0.0), 3) for token in range(vocab_size)]


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
