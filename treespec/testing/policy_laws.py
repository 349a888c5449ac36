"""Are a policy's children drawn as it says? And is the output law exact with them?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from treespec.acceptance import (
    AbstractAcceptanceRule,
    GreedyDraftTransport,
    RejectionWithoutReplacement,
    RejectionWithReplacement,
    SampleAndMatch,
    SpecHub,
)
from treespec.chance import NO_TOKEN, AbstractChance
from treespec.policies import AbstractDraftPolicy
from treespec.siblings import draw_siblings
from treespec.testing.drawing import digits, draw_tree, row
from treespec.testing.enumeration import outcomes
from treespec.testing.failure import ConformanceError
from treespec.testing.laws import (
    Law,
    Round,
    Setting,
    autoregressive_law,
    continued_law,
    distance,
    play_accept,
)
from treespec.testing.policy_cases import TEXT, GrownTree, PolicyCase
from treespec.testing.toys import Text, random_model
from treespec.tree import TokenTree
from treespec.types import ProposalKind

ROUNDED = 1e-6
"""What float32 laws may do to a probability."""
IN_TURN = (ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT)
REFERENCE: dict[ProposalKind, AbstractAcceptanceRule] = {
    ProposalKind.DETERMINISTIC: SampleAndMatch(),
    ProposalKind.WITH_REPLACEMENT: RejectionWithReplacement(),
    ProposalKind.WITHOUT_REPLACEMENT: RejectionWithoutReplacement(),
    ProposalKind.GREEDY_PLUS_RANDOM: GreedyDraftTransport(),
    ProposalKind.ARGMAX_PAIR: SpecHub(),
}
"""A rule for each kind that is lossless and sensitive to how children are drawn."""

Grown = list[tuple[float, GrownTree]]


@dataclass(slots=True)
class Draws:
    """All that was drawn in one situation: some children of one node of one tree.

    Attributes:
        tree: The likeliest tree of the situation.
        weight: Its probability.
        node: The node whose children they are.
        law: The law that they are said to be drawn from.  # [V]
        earlier: Children that are given.
        found: The law of what was drawn next.
    """

    tree: TokenTree
    node: int
    law: Tensor
    earlier: Text
    weight: float = 0.0
    found: defaultdict[Text, float] = field(default_factory=lambda: defaultdict(float))


def check_siblings(
    policy: AbstractDraftPolicy, case: PolicyCase, grown: Grown
) -> float:
    """Return how far the children's law is from what the declared kind prescribes.

    Raises:
        ConformanceError: By more than rounding; shows the smallest such tree.
    """
    largest = 0.0
    situations = _situations(policy.proposal, grown)
    for draws in sorted(situations, key=lambda draws: draws.tree.size):
        total = sum(draws.found.values())
        found = {tokens: prob / total for tokens, prob in draws.found.items()}
        num_tokens = len(next(iter(found)))
        wanted = _prescribed(policy.proposal, draws, num_tokens)
        deviation = distance(found, wanted)
        if deviation > ROUNDED:
            raise ConformanceError(_message(policy, case, draws, found, wanted))
        largest = max(largest, deviation)
    return largest


def _situations(proposal: ProposalKind, grown: Grown) -> list[Draws]:
    """Sort all draws by what was known before them: all that came in earlier layers.

    A search may come back to a node, and draw a sibling after children of its elders.

    Siblings drawn in turn are looked at one by one, given the earlier ones and that
    there is one more: that may depend on the earlier ones. Of the other kinds the
    joint law is looked at, given their number.
    """
    found: dict[object, Draws] = {}
    for family in _families(grown):
        tree, node = family.grown.tree, family.node
        for earlier, drawn in _events(proposal, family.tokens):
            number = len(earlier) if proposal in IN_TURN else len(family.tokens)
            before = family.drawn_before(family.children[len(earlier)])
            key = (before, node, earlier, number)
            if key not in found:
                found[key] = Draws(tree, node, _law(tree, node), earlier)
            draws = found[key]
            draws.found[drawn] += family.weight
            if family.weight > draws.weight:
                draws.tree, draws.weight = tree, family.weight
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Family:
    """The children of one node of one tree.

    Attributes:
        weight: Probability of the tree.
        grown: The tree.
        node: The node.
        children: Its children, in draw order; at least one.
        tokens: Their tokens.
    """

    weight: float
    grown: GrownTree
    node: int
    children: list[int]
    tokens: Text

    def drawn_before(self, child: int) -> object:
        """Return all that was drawn in earlier layers than a child."""
        tree, layers = self.grown.tree, self.grown.layers
        size = layers.index(layers[child])
        return tuple(tree.parents[:size].tolist()), tuple(tree.tokens[:size].tolist())


def _families(grown: Grown) -> Iterator[_Family]:
    for weight, one in grown:
        host = one.tree.host()
        for node, children in enumerate(host.children()):
            if children:
                tokens = tuple(host.tokens[child] for child in children)
                yield _Family(weight, one, node, children, tokens)


def check_ends(policy: AbstractDraftPolicy, case: PolicyCase, grown: Grown) -> None:
    """Check that siblings decide on the next one only if the policy says so.

    Raises:
        ConformanceError: They do, and it does not.
    """
    if policy.ends_siblings_early or policy.proposal not in IN_TURN:
        return
    for shares in _shares_of_more(grown):
        most = max(shares, key=shares.__getitem__)
        least = min(shares, key=shares.__getitem__)
        if shares[most] - shares[least] > ROUNDED:
            num_digits = digits(shares[most] - shares[least])
            raise ConformanceError(
                f"{type(policy).__name__} gives a node one more child after "
                f"{list(most)} with probability {shares[most]:.{num_digits}f}, after "
                f"{list(least)} with {shares[least]:.{num_digits}f}: siblings decide "
                "on the next one; say ends_siblings_early = True, for rules that must "
                f"know\n{case}"
            )


def _shares_of_more(grown: Grown) -> Iterator[dict[Text, float]]:
    """Yield, for all siblings that may be there, how probably there is one more."""
    reached: dict[object, defaultdict[Text, float]] = defaultdict(_zeros)
    followed: dict[object, defaultdict[Text, float]] = defaultdict(_zeros)
    for family in _families(grown):
        tokens = family.tokens
        before = family.drawn_before(family.children[0])
        for number in range(1, len(tokens) + 1):
            key = (before, family.node, number)
            reached[key][tokens[:number]] += family.weight
            if number < len(tokens):
                followed[key][tokens[:number]] += family.weight
    for same_number, weights in reached.items():
        more = followed[same_number]
        yield {x: more[x] / weight for x, weight in weights.items()}


def _zeros() -> defaultdict[Text, float]:
    return defaultdict(float)


def _events(proposal: ProposalKind, tokens: Text) -> Iterator[tuple[Text, Text]]:
    if proposal in IN_TURN:
        for place, token in enumerate(tokens):
            yield tokens[:place], (token,)
    elif tokens:
        yield (), tokens


def _law(tree: TokenTree, node: int) -> Tensor:
    assert tree.draft_probs is not None
    law: Tensor = tree.draft_probs[tree.draft_rows[node]].double()
    return law


def _prescribed(proposal: ProposalKind, draws: Draws, num_tokens: int) -> Law:
    law = draws.law.clone()
    if proposal is ProposalKind.WITHOUT_REPLACEMENT:
        law[list(draws.earlier)] = 0
    draw = partial(_draw, proposal, law / law.sum(), num_tokens)
    wanted: defaultdict[Text, float] = defaultdict(float)
    for weight, tokens in outcomes(draw):
        wanted[tokens] += weight
    return wanted


def _draw(
    proposal: ProposalKind, law: Tensor, num_tokens: int, chance: AbstractChance
) -> Text:
    drawn = draw_siblings(proposal, law[None], num_tokens, chance)[0].tolist()
    return tuple(token for token in drawn if token != NO_TOKEN)


def _message(
    policy: AbstractDraftPolicy,
    case: PolicyCase,
    draws: Draws,
    found: Law,
    wanted: Law,
) -> str:
    drawn = {*found, *wanted}
    worst = max(drawn, key=lambda x: abs(found.get(x, 0) - wanted.get(x, 0)))
    deviation = abs(found.get(worst, 0) - wanted.get(worst, 0))
    num_digits = digits(deviation)
    given = f" after {list(draws.earlier)}" if draws.earlier else ""
    shown = sorted(drawn, key=lambda x: (len(x), x))[:12]
    laws = [
        f"  {list(x)}: found {found.get(x, 0):.{num_digits}f}, prescribed "
        f"{wanted.get(x, 0):.{num_digits}f}"
        for x in shown
    ]
    return "\n".join(
        [
            f"{type(policy).__name__} declares {policy.proposal} children, but the "
            f"children of node {draws.node}{given} do not follow that law: "
            f"{list(worst)} has probability {found.get(worst, 0):.{num_digits}f}, "
            f"wanted {wanted.get(worst, 0):.{num_digits}f}, deviation "
            f"{deviation:.1e}; never drop, reorder, replace or rescore a "
            "token that was drawn, or declare it deterministic, without draft_probs",
            f"smallest case: {case}",
            f"declared law {row(draws.law.tolist(), num_digits)}",
            *laws,
            f"a tree of this case: {draw_tree(draws.tree)}",
        ]
    )


def check_output(policy: AbstractDraftPolicy, case: PolicyCase, grown: Grown) -> float:
    """Return how far the text's law is from the target's, under a lossless rule.

    Raises:
        ConformanceError: By more than rounding.
    """
    target = random_model(case.vocab_size, seed=1, spread=1.0)
    setting = Setting(target, case.draft, policy.proposal, (), case.sampling)
    rule = REFERENCE[policy.proposal]
    played: list[tuple[float, Round]] = []
    for draft_weight, one in grown:
        for weight, outcome in play_accept(rule, setting, TEXT, one.tree):
            played.append((draft_weight * weight, outcome))
    length = case.budget.max_depth + 1
    law = continued_law(setting, TEXT, played, length)
    wanted = autoregressive_law(setting, TEXT, length)
    deviation = distance(law, wanted)
    if deviation > ROUNDED:
        text = max(wanted, key=lambda x: abs(law.get(x, 0) - wanted[x]))
        tree = max(grown, key=lambda pair: pair[0])[1].tree
        num_digits = digits(deviation)
        raise ConformanceError(
            f"{type(policy).__name__} biases the output: under {rule.name}, which is "
            f"lossless for {policy.proposal} children, the tokens {list(text)} have "
            f"probability {law.get(text, 0):.{num_digits}f}, wanted "
            f"{wanted[text]:.{num_digits}f}, deviation {deviation:.1e}; never "
            "drop, reorder, replace or rescore a token that was drawn\n"
            f"smallest case: {case}\na tree of this case: {draw_tree(tree)}"
        )
    return deviation
