"""The kit passes every policy that ships, and none that is wrong."""

import re
from dataclasses import dataclass

import pytest
import torch

from tests.testing import faulty_policies as faulty
from tests.testing.faulty_policies import (
    WITH,
    WITHOUT,
    CountsOnSelf,
    Fault,
    FaultyBestFirst,
    FaultyPruning,
    FaultyTree,
    PrunesWhatItDrew,
    TopKAsSampled,
    Wrapped,
)
from treespec.chance import NO_TOKEN
from treespec.policies import (
    AbstractDraftPolicy,
    BestFirst,
    Chain,
    ConfidenceTree,
    EntropyStop,
    Growth,
    SampledBestFirst,
    SampledChain,
    SampledTree,
    StaticTree,
    TopKTree,
    TreeShape,
)
from treespec.testing import ConformanceError, check_draft_policy
from treespec.tree import Layer
from treespec.types import ProposalKind

UNEVEN = TreeShape(((0,), (1,), (0, 0), (1, 0), (2,), (0, 1), (0, 0, 0), (1, 1)))


@pytest.mark.parametrize(
    "policy",
    [
        Chain(),
        Chain(min_confidence=0.4),
        SampledChain(),
        SampledChain(min_confidence=0.4),
        TopKTree(2),
        TopKTree(4),
        SampledTree(3, WITH),
        SampledTree(3, WITHOUT),
        SampledTree(3, ProposalKind.GREEDY_PLUS_RANDOM),
        SampledTree(2, ProposalKind.ARGMAX_PAIR),
        BestFirst(),
        BestFirst(3, beam=1),
        BestFirst(3, beam=2, scope="layer", decay=0.9, min_gain=0.1),
        ConfidenceTree(),
        ConfidenceTree(3, ratio=0.9),
        SampledBestFirst(),
        SampledBestFirst(power=1.0, threshold=1.0),
        SampledBestFirst(threshold=2.0),
        EntropyStop(Chain(), 0.6),
        EntropyStop(SampledChain(), 0.6),
        EntropyStop(SampledTree(2), 0.6),
        EntropyStop(BestFirst(2), 0.6),
        StaticTree(UNEVEN),
        StaticTree(UNEVEN, WITH),
        StaticTree(UNEVEN, WITHOUT),
    ],
    ids=repr,
)
def test_every_policy_that_ships_passes(policy: AbstractDraftPolicy) -> None:
    report = check_draft_policy(policy)
    assert report.largest_deviation < 1e-12
    assert report.num_cases > 50
    assert str(policy.proposal) in str(report)


@pytest.mark.parametrize("kind", [WITH, WITHOUT])
def test_the_faulty_tree_without_a_fault_passes(kind: ProposalKind) -> None:
    assert check_draft_policy(FaultyTree(kind=kind)).largest_deviation < 1e-12


@dataclass(frozen=True, slots=True)
class EndsSiblingsByToken(AbstractDraftPolicy):
    """Draws a second child only if the first one was token 0: it may, and says so."""

    proposal = WITHOUT
    max_children = 2
    ends_siblings_early = True

    def grow(self, growth: Growth) -> Layer | None:
        law = growth.draft.law(growth.sampling, growth.vocab_size)
        rows, tokens = [], []
        for row in growth.draft.known_rows().tolist()[: growth.room // 2]:
            first, second = growth.chance.draw_without_replacement(
                law[row][None], 2
            ).tolist()[0]
            drawn = [first, second] if first == 0 and second != NO_TOKEN else [first]
            rows += [row] * len(drawn)
            tokens += drawn
        if not rows:
            return None
        return Layer(
            parents=growth.frontier[rows],
            tokens=torch.tensor(tokens),
            draft_logprobs=law[rows, tokens].log(),
            sources=growth.draft.row_sources()[rows],
            draft_probs=law,
        )


def test_a_policy_may_end_siblings_by_what_was_drawn() -> None:
    assert check_draft_policy(EndsSiblingsByToken()).largest_deviation < 1e-12


class EndsSiblingsSilently(EndsSiblingsByToken):
    ends_siblings_early = False


def test_a_policy_must_say_that_siblings_decide_on_the_next_one() -> None:
    with pytest.raises(ConformanceError) as caught:
        check_draft_policy(EndsSiblingsSilently())
    assert "EndsSiblingsSilently gives a node one more child after" in str(caught.value)
    assert "say ends_siblings_early = True" in str(caught.value)


UNFAITHFUL = [
    (faulty.pruned, WITHOUT),
    (faulty.pruned, WITH),
    (faulty.above_threshold, WITHOUT),
    (faulty.reordered, WITHOUT),
    (faulty.deduplicated, WITH),
    (faulty.rescored, WITH),
    (faulty.rescored, WITHOUT),
    (faulty.other_temperature, WITH),
    (faulty.reordered, ProposalKind.ARGMAX_PAIR),
    (faulty.pruned, ProposalKind.GREEDY_PLUS_RANDOM),
]


@pytest.mark.parametrize(("fault", "kind"), UNFAITHFUL)
def test_a_tree_that_is_not_as_it_was_drawn_is_caught(
    fault: Fault, kind: ProposalKind
) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_draft_policy(FaultyTree(fault, kind))
    message = str(caught.value)
    assert f"FaultyTree declares {kind} children, but the children of node" in message
    assert "never drop, reorder, replace or rescore" in message
    assert "prescribed" in message
    assert f"{kind} children, in draw order:" in message


def test_the_faulty_best_first_without_a_fault_passes() -> None:
    assert check_draft_policy(FaultyBestFirst()).largest_deviation < 1e-12


@pytest.mark.parametrize(
    "fault", [faulty.drops_unlikely, faulty.redraws, faulty.forgets_elders]
)
def test_a_dynamic_tree_that_is_not_as_it_was_drawn_is_caught(fault: Fault) -> None:
    """Also where later siblings come after the children of their elders."""
    with pytest.raises(ConformanceError) as caught:
        check_draft_policy(FaultyBestFirst(fault))
    message = str(caught.value)
    assert "FaultyBestFirst declares without_replacement children" in message
    assert "never drop, reorder, replace or rescore" in message


class DynamicSilently(FaultyBestFirst):
    ends_siblings_early = False


def test_a_dynamic_tree_must_say_that_siblings_decide_on_the_next_one() -> None:
    with pytest.raises(ConformanceError, match="say ends_siblings_early = True"):
        check_draft_policy(DynamicSilently())


def test_top_k_children_that_are_said_to_be_drawn_are_caught() -> None:
    with pytest.raises(ConformanceError, match="declare it deterministic"):
        check_draft_policy(TopKAsSampled())


def test_a_policy_that_claims_no_law_may_draw_and_prune() -> None:
    """The advice for a policy that drops what it drew was refused once followed."""
    report = check_draft_policy(FaultyTree(faulty.pruned_and_unclaimed, claims=False))
    assert report.proposal is ProposalKind.DETERMINISTIC
    assert report.num_trees > 50
    assert report.largest_deviation < 1e-12


def test_equal_numbers_are_not_printed() -> None:
    with pytest.raises(ConformanceError) as caught:
        check_draft_policy(FaultyTree(faulty.little_off, WITH))
    found = re.search(r"probability (\S+), wanted (\S+), dev", str(caught.value))
    assert found is not None
    assert found[1] != found[2]


BROKEN = [
    (CountsOnSelf(), "keeps state|changes its own object"),
    (Wrapped(faulty.too_many), r"but growth\.room is"),
    (Wrapped(faulty.three_children), "more children than max_children"),
    (Wrapped(faulty.strange_parent), r"nodes of growth\.frontier"),
    (Wrapped(faulty.strange_token), r"tokens must be in \[0, 4\)"),
    (Wrapped(faulty.strange_source), "sources must be those of the draft"),
    (Wrapped(faulty.expands_twice), "must not name a node twice"),
    (Wrapped(faulty.expands_nothing), "ids of nodes in the grown tree"),
    (Wrapped(faulty.probabilities), "logarithms of probabilities"),
    (Wrapped(faulty.with_draft_probs), "no draft_probs"),
    (Wrapped(faulty.draws_globally), r"elsewhere than growth\.chance: .* of torch"),
    (FaultyTree(faulty.drawn_globally), r"elsewhere than growth\.chance: .* of torch"),
    (
        FaultyTree(faulty.drawn_by_itself),
        r"draws from elsewhere than growth\.chance",
    ),
    (FaultyTree(faulty.without_rare), "declare it deterministic, without draft_probs"),
    (FaultyTree(faulty.draws_from_nothing), "FaultyTree: a draw was asked from"),
    (Wrapped(faulty.writes_to_the_tree), r"writes to growth\.tree"),
    (
        Wrapped(faulty.raises),
        r"raised IndexError: one node only \(faulty_policies.py:\d+\)",
    ),
    (FaultyTree(faulty.without_draft_probs), "draft_probs must hold a row"),
    (FaultyTree(faulty.unnormalised), "must be a law"),
    (FaultyTree(faulty.path_logprobs_instead), "those of the nodes' tokens"),
    (FaultyTree(faulty.children_of_strangers), "frontier, or of an earlier one"),
    (Wrapped(faulty.expands_an_elder_again), r"have been expanded: \[1\]"),
    (FaultyPruning(faulty.drops_a_parent), "prune must keep the root, and with every"),
    (FaultyPruning(faulty.drops_the_root), "prune must keep the root, and with every"),
    (FaultyPruning(faulty.keeps_all), r"prune must keep at most \d+ nodes besides"),
    (FaultyPruning(faulty.best_first_order), "prune must return .*ascending"),
    (FaultyPruning(faulty.keeps_a_mask), "prune must return the ids"),
    (PrunesWhatItDrew(), "prunes without_replacement children: dropping what was"),
]


@pytest.mark.parametrize(("policy", "words"), BROKEN)
def test_a_broken_policy_is_caught_and_its_mistake_told(
    policy: AbstractDraftPolicy, words: str
) -> None:
    with pytest.raises(ConformanceError, match=words):
        check_draft_policy(policy)
