"""The toys on which an acceptance rule is tried, from the smallest to the largest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from treespec.acceptance import AbstractAcceptanceRule
from treespec.sampling import Sampling
from treespec.siblings import PAIR
from treespec.testing.laws import PLAIN, Limit, Setting, no_limit
from treespec.testing.layouts import as_grown, scattered
from treespec.testing.toys import Text, constant_model, random_model, single
from treespec.tree import HostTree
from treespec.types import ProposalKind

GREEDY = Sampling()
EXACT, SINGLE = 1e-12, 1e-6
"""Largest deviation of a probability that is rounding, in float64 and float32."""
PROCESSED = Sampling(0.7, top_k=3, top_p=0.9, repetition_penalty=1.4)
TOP_K, TOP_P = Sampling(1.0, top_k=3), Sampling(1.0, top_p=0.7)
MOST_CHILDREN = 3
"""Children per node that are tried where a rule takes any number."""
SPREAD = 1.0
"""Of random logits: laws that differ, and not so much that only one token counts."""
VECTORS = constant_model(0.5, 0.3, 0.2, 0.0), constant_model(0.1, 0.2, 0.3, 0.4)

SEQUENTIAL = (ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT)
"""Kinds whose siblings are drawn one after the other, so that they can end early."""

TIED = "the likeliest tokens are tied, at temperature 0"


FOR_RARE_FAULTS = (
    "the target is nearly certain",
    "the draft is nearly certain",
    "both are nearly certain",
    "the laws differ by a rounding error",
)
"""Pairs that come last: all but a few faults show better elsewhere."""
PAIRS = {
    "the draft is the target": (constant_model(0.4, 0.3, 0.2, 0.1),) * 2,
    "the laws have no token in common": (
        constant_model(0.6, 0.4, 0, 0),
        constant_model(0, 0, 0.3, 0.7),
    ),
    "the target is certain": (constant_model(0, 1, 0, 0), VECTORS[1]),
    "the draft is certain": (VECTORS[0], constant_model(0, 1, 0, 0)),
    "both are certain": (constant_model(0, 1, 0, 0),) * 2,
    "the target is nearly certain": (
        constant_model(0.9995, 0.0003, 0.0002),
        constant_model(0.2, 0.3, 0.5),
    ),
    "the draft is nearly certain": (
        constant_model(0.5, 0.3, 0.2),
        constant_model(0.0003, 0.9995, 0.0002),
    ),
    "both are nearly certain": (
        constant_model(0.9993, 0.0004, 0.0003),
        constant_model(0.9998, 0.0001, 0.0001),
    ),
    "the draft knows two tokens": (
        constant_model(0.1, 0.2, 0.3, 0.4),
        constant_model(0.7, 0.3, 0, 0),
    ),
    "the laws differ by a rounding error": (
        constant_model(0.5 + 1e-9, 0.3, 0.2 - 1e-9),
        constant_model(0.5, 0.3, 0.2),
    ),
    "the fourth token is impossible": VECTORS,
    "close laws": (
        constant_model(0.4, 0.3, 0.2, 0.1),
        constant_model(0.1, 0.5, 0.2, 0.2),
    ),
    TIED: (
        constant_model(0.2, 0.3, 0.3, 0.2),
        constant_model(0.3, 0.1, 0.3, 0.3),
    ),
}
"""Context-free targets and drafts, by what is special about them."""

FEW_TOKENS = {"the draft knows two tokens", "the fourth token is impossible"}
"""Pairs that are tried with three children, too."""


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One toy, and how many tokens of its law are looked at.

    Attributes:
        name: What is special about it.
        setting: The toy.
        length: Tokens whose joint law is compared.
        rounds: Whether the rule writes all of them, in as many rounds as it takes; if
            not, one round is continued without speculation.
        text: The text so far.
        tolerance: Largest deviation of a probability that is rounding.
    """

    name: str
    setting: Setting
    length: int
    rounds: bool = False
    text: Text = (0,)
    tolerance: float = EXACT

    @property
    def size(self) -> tuple[int, bool, int, int, int]:
        """Sorts small cases first: by rounds, by nodes, then by vocabulary."""
        late = self.name in FOR_RARE_FAULTS
        num_nodes, layer = 0, 1
        for width in self.setting.widths:
            layer *= width
            num_nodes += layer
        return (
            1 + FOR_RARE_FAULTS.index(self.name) if late else 0,
            self.rounds,
            num_nodes,
            len(self.setting.widths),
            self.setting.vocab_size,
        )


def rule_cases(rule: AbstractAcceptanceRule) -> list[RuleCase]:
    """Return the cases that a rule's declared proposals call for, smallest first."""
    cases = [
        case
        for proposal, most in rule.proposals.items()
        for case in _cases(proposal, most_tried(proposal, most))
    ]
    if rule.takes_early_ends:
        cases += [
            case
            for proposal, most in rule.proposals.items()
            if proposal in SEQUENTIAL and most_tried(proposal, most) > 1
            for case in _early_ends(proposal)
        ]
    if rule.greedy_only:
        cases = [
            replace(case, setting=replace(case.setting, sampling=GREEDY))
            for case in cases
        ]
    return sorted(cases, key=lambda case: case.size)


def most_tried(proposal: ProposalKind, most: int | None) -> int:
    """Return how many children per node are tried where a rule takes ``most``."""
    tried = PAIR if proposal is ProposalKind.ARGMAX_PAIR else MOST_CHILDREN
    return tried if most is None else min(tried, most)


def random_setting(
    proposal: ProposalKind,
    widths: tuple[int, ...],
    vocab_size: int,
    sampling: Sampling = PLAIN,
    limit: Limit = no_limit,
) -> Setting:
    """Return a toy whose two laws are random and differ after every text."""
    target = random_model(vocab_size, seed=1, spread=SPREAD)
    draft = random_model(vocab_size, seed=2, spread=SPREAD)
    return Setting(target, draft, proposal, widths, sampling, limit=limit)


def cut_branch(host: HostTree, node: int) -> int:
    """Cut everything below second siblings."""
    return 0 if host.ranks()[node] == 1 else MOST_CHILDREN


def by_tokens(host: HostTree, node: int) -> int:
    """Give a node as many children as the tokens drawn so far say: 0, 1 or 2."""
    return (2 + sum(host.tokens[1:]) + node) % 3


def _cases(proposal: ProposalKind, most: int) -> Iterator[RuleCase]:
    for widths, vocab_size, limit in SHAPES:
        if max(widths, default=0) <= most:
            for sampling in _samplings(widths, vocab_size):
                setting = random_setting(proposal, widths, vocab_size, sampling, limit)
                layout = as_grown if limit is no_limit else scattered
                setting = replace(setting, layout=layout)
                name = f"random laws{LIMITS.get(limit, '')}"
                yield RuleCase(name, setting, len(widths) + 1)
    for widths, vocab_size, sampling in SEVERAL_ROUNDS:
        if max(widths, default=0) <= most:
            setting = random_setting(proposal, widths, vocab_size, sampling)
            yield RuleCase("random laws, several rounds", setting, 3, True, (0, 1, 1))
    setting = random_setting(proposal, (min(most, 2), 1), 3)
    setting = replace(
        setting, target=single(setting.target), draft=single(setting.draft)
    )
    yield RuleCase("random laws in float32", setting, 2, tolerance=SINGLE)
    for name, (target, draft) in PAIRS.items():
        for width in range(1, (most if name in FEW_TOKENS else min(most, 2)) + 1):
            sampling = GREEDY if name == TIED else PLAIN
            setting = Setting(target, draft, proposal, (width,), sampling)
            yield RuleCase(name, setting, 2)


def _early_ends(proposal: ProposalKind) -> Iterator[RuleCase]:
    """Yield toys whose nodes get no further sibling after certain tokens."""
    setting = Setting(*VECTORS, proposal, (2, 1), last_tokens=frozenset({0, 2}))
    name = "no further sibling after token 0 or 2"
    yield RuleCase(name, setting, 2)
    random = random_setting(proposal, (3,), 3)
    yield RuleCase(name, replace(random, last_tokens=frozenset({0, 2})), 2)


LIMITS: dict[Limit, str] = {
    cut_branch: ", nothing below second siblings, nodes scattered",
    by_tokens: ", as many children as the tokens drawn say, nodes scattered",
}
SHAPES: tuple[tuple[tuple[int, ...], int, Limit], ...] = (
    ((), 5, no_limit),
    ((1,), 5, no_limit),
    ((1, 1), 3, no_limit),
    ((1, 1, 1), 3, no_limit),
    ((1, 1, 1), 2, by_tokens),
    ((2,), 4, no_limit),
    ((2, 1), 3, no_limit),
    ((1, 2), 3, no_limit),
    ((2, 2), 2, no_limit),
    ((2, 2), 3, cut_branch),
    ((2, 2), 2, by_tokens),
    ((2, 2, 1), 2, cut_branch),
    ((3,), 3, no_limit),
    ((3, 1), 2, no_limit),
)
"""Children by depth, the vocabulary, and what narrows the tree."""
SEVERAL_ROUNDS = (
    ((1,), 3, PROCESSED),
    ((1, 1), 2, PLAIN),
    ((2,), 2, PLAIN),
    ((2, 1), 2, PLAIN),
)
"""Small trees whose law is followed over several rounds."""


def _samplings(widths: tuple[int, ...], vocab_size: int) -> tuple[Sampling, ...]:
    """Return what a shape is tried with: enumeration allows all for small ones."""
    if widths == (1,):
        return (PLAIN, GREEDY, PROCESSED, TOP_K, TOP_P)
    if widths in {(1, 1), (2,), (2, 1)}:
        return (PLAIN, GREEDY, PROCESSED)
    return (PLAIN,)
