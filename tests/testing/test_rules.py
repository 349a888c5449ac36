"""The kit passes every rule that ships, and none that is wrong."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from treespec import acceptance
from treespec.acceptance import (
    AbstractAcceptanceRule,
    ChainSpeculative,
    KSeq,
    RejectionWithoutReplacement,
    RejectionWithReplacement,
    SampleAndMatch,
    SpecHub,
    TypicalAcceptance,
)
from treespec.sampling import AbstractChance, Sampling
from treespec.testing import ConformanceError, check_acceptance_rule
from treespec.tree import TokenTree
from treespec.types import Acceptance, ProposalKind

WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT
SHIPPED = [
    getattr(acceptance, name)()
    for name in acceptance.__all__
    if not name.startswith("Abstract")
]


@pytest.mark.parametrize("rule", SHIPPED, ids=lambda rule: rule.name)
def test_every_rule_that_ships_passes(rule: AbstractAcceptanceRule) -> None:
    report = check_acceptance_rule(rule)
    assert report.num_cases > 30
    assert (report.largest_deviation < 1e-12) == rule.lossless
    assert rule.name in str(report)


def test_a_report_says_how_often_children_are_accepted() -> None:
    report = check_acceptance_rule(RejectionWithoutReplacement())
    rows = {(row.proposal, row.num_children): row.accepted for row in report.acceptance}
    assert rows[WITHOUT, 2] == pytest.approx(143 / 210)
    assert rows[WITHOUT, 3] == pytest.approx(684 / 875)
    assert rows[WITH, 1] == pytest.approx(1 / 2)
    assert "without_replacement  2         0.6810" in str(report)


def test_a_lossy_rule_is_measured_and_passes() -> None:
    report = check_acceptance_rule(TypicalAcceptance())
    assert not report.lossless
    assert report.largest_deviation > 0.1


def test_a_report_says_whether_siblings_may_end_early() -> None:
    """k-SEQ tests every draft against a scale that is made for their number."""
    assert check_acceptance_rule(RejectionWithReplacement()).takes_early_stops
    assert check_acceptance_rule(KSeq()).takes_early_stops is False
    assert check_acceptance_rule(SpecHub()).takes_early_stops is None


# Rules with one mistake


@dataclass(frozen=True, slots=True)
class FaultyRejection(AbstractAcceptanceRule):
    """Rejection in turn whose parts can be replaced by wrong ones."""

    kind: ProposalKind = WITH
    ratio: Callable[[Tensor, Tensor], Tensor] = torch.div
    zeroes: bool = False
    zeroes_first: bool = False
    skips_repeated: bool = False
    recovers_from_target: bool = False
    sorts: bool = False

    lossless = True
    greedy_only = False
    draws_like_autoregressive = False

    @property
    def proposals(self) -> Mapping[ProposalKind, int | None]:
        return MappingProxyType({self.kind: None})

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        host = tree.host()
        children = host.children()
        path = [0]
        while children[path[-1]]:
            node = path[-1]
            p = acceptance.base.target_law(target_logits, node, sampling)
            assert tree.draft_probs is not None
            q = tree.draft_probs[host.draft_rows[node]]
            found = self._test(children[node], host.tokens, p, q, chance)
            if found is None or found < 0:
                token = -found - 1 if found is not None else 0
                return Acceptance(tuple(path[1:]), token, "recovered")
            path.append(found)
        p = acceptance.base.target_law(target_logits, path[-1], sampling)
        return Acceptance(tuple(path[1:]), int(chance.draw(p)), "bonus")

    def _test(
        self,
        nodes: Sequence[int],
        tokens: Sequence[int],
        p: Tensor,
        q: Tensor,
        chance: AbstractChance,
    ) -> int:
        """Return the accepted node, or the recovered token x as -x - 1."""
        target, tested = p, set()
        if self.sorts:
            nodes = sorted(nodes, key=lambda node: -float(q[tokens[node]]))
        for node in nodes:
            token = tokens[node]
            if self.skips_repeated and token in tested:
                continue
            tested.add(token)
            if chance.accepts(self.ratio(p[token], q[token])):
                return node
            others = q.index_fill(0, torch.tensor(token), 0.0)
            others = others / others.sum() if others.sum() > 0 else others
            left = (p - (others if self.zeroes_first else q)).clamp(min=0)
            if left.sum() == 0:
                return node
            p = left / left.sum()
            q = others if self.zeroes or self.zeroes_first else q
        law = target if self.recovers_from_target else p
        return -int(chance.draw(law)) - 1


@pytest.mark.parametrize(
    "rule", [FaultyRejection(WITH), FaultyRejection(WITHOUT, zeroes=True)]
)
def test_the_faulty_rejection_without_a_fault_passes(rule: FaultyRejection) -> None:
    assert check_acceptance_rule(rule).largest_deviation < 1e-12


BIASED = {
    "inverted ratio": (
        FaultyRejection(ratio=lambda p, q: q / p),
        "the ratio is inverted",
    ),
    "recovered from p": (
        FaultyRejection(recovers_from_target=True),
        "the recovered token was drawn from the target's law",
    ),
    "duplicate skipped": (
        FaultyRejection(skips_repeated=True),
        "a repeated token was skipped without the update",
    ),
    "zeroed as if without": (FaultyRejection(zeroes=True), "q was zeroed"),
    "unchanged as if with": (FaultyRejection(WITHOUT), "q was left unchanged"),
    "residual after zeroing": (
        FaultyRejection(WITHOUT, zeroes_first=True),
        "the residual was computed after q was zeroed",
    ),
    "sorted": (
        FaultyRejection(WITHOUT, zeroes=True, sorts=True),
        "siblings were tested in the order of q",
    ),
}


@pytest.mark.parametrize("name", BIASED)
def test_a_biased_rule_is_caught_and_its_mistake_named(name: str) -> None:
    rule, mistake = BIASED[name]
    with pytest.raises(ConformanceError) as caught:
        check_acceptance_rule(rule)
    message = str(caught.value)
    assert f"FaultyRejection is not lossless for {rule.kind} children" in message
    assert mistake in message


def test_the_message_shows_the_smallest_case() -> None:
    rule = FaultyRejection(WITHOUT)  # right for one child and for equal laws
    with pytest.raises(ConformanceError) as caught:
        check_acceptance_rule(rule)
    lines = str(caught.value).splitlines()
    assert "has probability" in lines[0]
    assert "children by depth [2]" in lines[1]
    tree = "\n".join(
        lines[lines.index("without_replacement children, in draw order:") :]
    )
    assert "q " in tree
    assert "p " in tree
    assert "|- " in tree
    assert "`- " in tree


def test_a_rule_that_scores_top_k_children_as_sampled_is_caught() -> None:
    rule = ForAny(RejectionWithReplacement())
    with pytest.raises(ConformanceError, match="ForAny"):
        check_acceptance_rule(rule)


@dataclass(frozen=True, slots=True)
class Wrapped(AbstractAcceptanceRule):
    """A right rule in which a test puts something wrong."""

    rule: AbstractAcceptanceRule = SampleAndMatch()

    lossless = True
    greedy_only = False
    draws_like_autoregressive = False

    @property
    def proposals(self) -> Mapping[ProposalKind, int | None]:
        return self.rule.proposals

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        return self.rule.accept(tree, target_logits, sampling, chance)


class ForAny(Wrapped):
    """Claims any sampled proposal for a rule that takes one."""

    @property
    def proposals(self) -> Mapping[ProposalKind, int | None]:
        return MappingProxyType({WITH: None, WITHOUT: None})


class UnequalWidths(Wrapped):
    """Wrong below second siblings only: it never looks there."""

    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        if answer.node_ids and tree.host().ranks()[answer.node_ids[-1]] == 1:
            return replace(answer, next_token=int(target_logits[0].argmax()))
        return answer


class KeepsUniforms(Wrapped):
    """Draws its uniforms once and uses them in every step."""

    def __init__(self) -> None:
        object.__setattr__(self, "rule", SampleAndMatch())
        self.__dict__["kept"] = []

    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        kept = self.__dict__["kept"]
        if not kept:
            kept.append(chance.draw(torch.full((1, 64), 1 / 64, dtype=torch.float64)))
        law = sampling.probs(target_logits[0])
        token = int((law.cumsum(0) <= float(kept[0]) / 64).sum())
        has_children = tree.size > 1
        return Acceptance((), token, "recovered" if has_children else "bonus")


class UsesGlobalRandomness(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        torch.rand(1)
        return self.rule.accept(tree, target_logits, sampling, chance)


class UsesPythonsRandomness(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        random.random()
        return self.rule.accept(tree, target_logits, sampling, chance)


class WritesToLogits(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        target_logits.sub_(1)
        return self.rule.accept(tree, target_logits, sampling, chance)


class WritesToDraftProbs(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        if tree.draft_probs is not None:
            tree.draft_probs[0, 0] += 0.5
        return self.rule.accept(tree, target_logits, sampling, chance)


class AlwaysBonus(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        return replace(answer, next_kind="bonus")


class SkipsTheFirstNode(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        return replace(answer, node_ids=answer.node_ids[1:])


class ReturnsATensor(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        return replace(answer, next_token=torch.tensor(answer.next_token))


class IgnoresNaN(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        numbers = target_logits.nan_to_num(posinf=9.0)
        return self.rule.accept(tree, numbers, sampling, chance)


class NeedsDraftProbs(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        len(tree.draft_probs)
        return self.rule.accept(tree, target_logits, sampling, chance)


class DrawsTwice(Wrapped):
    draws_like_autoregressive = True

    def accept(self, tree, target_logits, sampling, chance):  # type: ignore[no-untyped-def]
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        chance.draw(torch.tensor([0.5, 0.5]))
        return answer if tree.size > 1 else answer


class Refuses(Wrapped):
    def check(self, proposal, max_children, sampling, policy_name):  # type: ignore[no-untyped-def]
        return None


BROKEN = [
    (UnequalWidths(), "is not lossless"),
    (KeepsUniforms(), "another question|same draws|changes its own object"),
    (UsesGlobalRandomness(), "global generator of torch"),
    (UsesPythonsRandomness(), "global generator of random"),
    (WritesToLogits(), "writes to target_logits"),
    (WritesToDraftProbs(), r"writes to tree\.draft_probs"),
    (AlwaysBonus(), "next_kind must be recovered"),
    (SkipsTheFirstNode(), "lead from the root down"),
    (ReturnsATensor(), "next_token must be an integer"),
    (IgnoresNaN(), "must raise NumericalError"),
    (NeedsDraftProbs(), "NeedsDraftProbs raised TypeError"),
    (DrawsTwice(), "says draws_like_autoregressive"),
    (Refuses(ChainSpeculative()), r"Refuses\.check must refuse"),
]


@pytest.mark.parametrize(("rule", "words"), BROKEN, ids=lambda x: type(x).__name__)
def test_a_broken_rule_is_caught_and_its_mistake_told(
    rule: AbstractAcceptanceRule, words: str
) -> None:
    with pytest.raises(ConformanceError, match=words):
        check_acceptance_rule(rule)
