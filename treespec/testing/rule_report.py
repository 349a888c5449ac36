"""What the kit found out about an acceptance rule that passed."""

from __future__ import annotations

from dataclasses import dataclass

from treespec.testing.drawing import table
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class NodeAcceptance:
    """How often one of a node's children is accepted, on the vectors of the report.

    Attributes:
        proposal: How the children are drawn.
        num_children: How many there are.
        accepted: Probability that one of them is accepted.
        optimum: The most that any lossless rule accepts; a lossy one may exceed it.
    """

    proposal: ProposalKind
    num_children: int
    accepted: float
    optimum: float


@dataclass(frozen=True, slots=True)
class RuleReport:
    """An acceptance rule's results; ``str`` makes them a small table.

    Attributes:
        rule: The rule's name.
        lossless: What the rule claims; it is proved on the cases if true.
        greedy_only: Whether the cases, and ``acceptance``, are at temperature 0.
        num_cases: Toys whose law was enumerated.
        most_children, most_depth, most_tokens: The largest of them; a fault that needs
            more is not seen.
        largest_deviation: Largest error of any probability of any text: the rounding
            of float64 for a lossless rule, the bias on these toys for another.
        accepts_equal_laws: Whether a sampled first child is always accepted where
            draft and target agree.
        takes_early_ends: Whether it stays lossless when a policy decides by the tokens
            drawn so far whether a node gets one more sibling; proved where the rule
            takes several siblings that are drawn in turn.
        acceptance: How often children are accepted where the target's law is
            (.5, .3, .2, 0) and the draft's (.1, .2, .3, .4).
    """

    rule: str
    lossless: bool
    greedy_only: bool
    num_cases: int
    most_children: int
    most_depth: int
    most_tokens: int
    largest_deviation: float
    accepts_equal_laws: bool
    takes_early_ends: bool
    acceptance: tuple[NodeAcceptance, ...]

    def __str__(self) -> str:
        claim = "lossless" if self.lossless else "lossy, as it says"
        children = "child" if self.most_children == 1 else "children"
        facts = [
            f"{self.rule}: {claim}; {self.num_cases} toys, largest deviation "
            f"{self.largest_deviation:.1e}",
            f"tried with up to {self.most_children} {children} per node, depth "
            f"{self.most_depth}, {self.most_tokens} tokens",
            f"accepts every first child where draft and target agree: "
            f"{_yes(self.accepts_equal_laws)}",
        ]
        if self.lossless:
            facts.append(
                "lossless if siblings end early by what was drawn: "
                f"{_yes(self.takes_early_ends)}"
            )
        if self.greedy_only:
            facts.append("acceptance at temperature 0:")
        optimum = "optimum" if self.lossless else "optimum of lossless rules"
        rows = [("proposal", "children", "accepted", optimum)]
        rows += [
            (
                str(row.proposal),
                str(row.num_children),
                f"{row.accepted:.4f}",
                f"{row.optimum:.4f}",
            )
            for row in self.acceptance
        ]
        return "\n".join([*facts, table(rows)])


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
