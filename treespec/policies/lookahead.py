"""What a tree is worth, and whether one more draft forward would pay.

All worths are in tokens: seconds are bought at a rate of tokens a second. A plan with
A expected accepted tokens that takes t seconds is worth ``A - rate * t``. With the rate
that is attained in the long run, the plan that is worth most is the one that raises it
most (Dinkelbach's form of the ratio of tokens and seconds).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from treespec.costs import Costs

FORWARDS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Forwards that are looked ahead."""
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Nodes of a forward that are weighed against each other."""
SIBLINGS = 0.02
"""Least value of a node that is looked at when guessing ahead."""
RUNNER_UP = 0.3
"""A second-best child's chance is no larger share of the best one's."""


ASSUMED = Costs.through(
    {1: 1.0, 16: 1.0, 32: 2.0}, {1: 0.2, 16: 0.2, 32: 0.4}, step_s=0.02
)
"""Costs where nobody has measured any, in units of a target forward.

A draft forward takes a fifth of it, sixteen rows as long as one, more in proportion.
"""


@dataclass(frozen=True, slots=True)
class Prices:
    """What rows cost a request, in seconds and in tokens.

    Attributes:
        costs: Seconds of forwards.
        rate: Tokens a second, at which seconds are bought.
        length: Committed tokens.
        load: Requests that share a forward, each with as many rows; the request pays
            an equal share.
        others: Rows of a target forward that are there without this request's.
    """

    costs: Costs
    rate: float
    length: int
    load: int = 1
    others: int = 0

    def target_s(self, num_nodes: int) -> float:
        """Return seconds of verifying so many nodes and the root."""
        num_rows = self.load * (1 + num_nodes) + self.others
        return self.costs.target(num_rows, self.length) / (self.load + self.others)

    def draft_s(self, num_rows: int) -> float:
        """Return seconds of a draft forward of so many rows."""
        num_rows = max(num_rows, 1) * (self.load + self.others)
        return self.costs.draft(num_rows, self.length) / (self.load + self.others)

    def target(self, most: int) -> list[float]:
        """Return the prices of verifying 0, 1, ... nodes, beyond the root alone."""
        seconds = _target_seconds(self.costs, self.length, self.load, self.others, most)
        return [self.rate * max(more - seconds[0], 0.0) for more in seconds]

    def draft(self, num_rows: int) -> float:
        """Return the price of a draft forward."""
        return self.rate * self.draft_s(num_rows)


@lru_cache(maxsize=64)
def _target_seconds(
    costs: Costs, length: int, load: int, others: int, most: int
) -> list[float]:
    """Return seconds of verifying 0, 1, ... nodes: asked for several times a step."""
    prices = Prices(costs, 0.0, length, load, others)
    return [prices.target_s(nodes) for nodes in range(most + 1)]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The most valuable nodes that are worth verifying.

    Attributes:
        worth: Expected accepted tokens less the price of verifying them.
        accepted: The expected accepted tokens.
        size: Number of nodes.
    """

    worth: float
    accepted: float
    size: int


def best_prefix(values: Sequence[float], prices: Sequence[float]) -> Prefix:
    """Return how many of the best nodes to verify.

    Args:
        values: Chances that a node is reached and accepted, best first.
        prices: Of verifying 0, 1, ... nodes: as many as may be verified, at most.
    """
    size, total, accepted, worth = 0, 0.0, 0.0, 0.0
    for number, (value, price) in enumerate(zip(values, prices[1:], strict=False), 1):
        total += value
        if total - price > worth:
            worth, accepted, size = total - price, total, number
    return Prefix(worth, accepted, size)


@dataclass(frozen=True, slots=True)
class OpenNode:
    """A node that may be expanded, as a guess of what is below it.

    Attributes:
        value: Chance that it is reached and accepted.
        child: Chance of its best child, once it is.
    """

    value: float
    child: float


@dataclass(frozen=True, slots=True)
class Prospects:
    """What is guessed of answers that are not known yet.

    Attributes:
        deep: Chance of the best child of a node that is not known yet either.
        second: Chance of a second-best child.
        max_forwards: Forwards that depth allows.
        max_width: Nodes that one forward may expand.
    """

    deep: float
    second: float
    max_forwards: int
    max_width: int


@dataclass(frozen=True, slots=True)
class Option:
    """The best way to go on drafting.

    Attributes:
        gain: Tokens that it is worth more than to verify what is there; not above 0
            if nothing pays.
        width: Best nodes to expand now.
        num_forwards: Forwards that it looked ahead.
        accepted: Accepted tokens that it expects of the whole tree.
    """

    gain: float
    width: int
    num_forwards: int
    accepted: float


def best_option(
    values: Sequence[float],
    nodes: Sequence[OpenNode],
    prices: Sequence[float],
    forward_price: ForwardPrice,
    prospects: Prospects,
) -> Option:
    """Return how to go on: how many nodes to expand, and for how many forwards.

    Looking ahead one forward only would stop too early: the first token may not pay
    for its forward where verifying four costs as much as verifying one.

    Args:
        values: Of the candidates so far, best first.
        nodes: That may be expanded, best first.
        prices: Of verifying 0, 1, ... nodes.
        forward_price: Of a forward.
        prospects: What is guessed of its answers.
    """
    now = best_prefix(values, prices)
    best = Option(0.0, 0, 0, now.accepted)
    known = [value for value in values if value > SIBLINGS]
    most = len(prices) - 1
    for width in _widths(min(len(nodes), prospects.max_width)):
        if width > 1 and nodes[width - 1].value < SIBLINGS:
            break
        if 0 < best.width < width // 2:
            break  # Twice as wide was worth less already.
        lines = [node.value for node in nodes[:width]]
        later = forward_price(width, False)
        guessed: list[float] = []
        spent = 0.0
        for number in range(1, prospects.max_forwards + 1):
            spent += later if number > 1 else forward_price(width, True)
            chances = [
                node.child if number == 1 else prospects.deep for node in nodes[:width]
            ]
            for value, chance in zip(lines, chances, strict=True):
                second = min(prospects.second, RUNNER_UP * chance)
                if value * second > SIBLINGS:
                    guessed.append(value * second)
            lines = [v * chance for v, chance in zip(lines, chances, strict=True)]
            guessed += lines
            if number > 1 and sum(lines) * 2 < max(later, SIBLINGS):
                break  # What is further down is worth less still.
            if number not in FORWARDS and number != prospects.max_forwards:
                continue
            ranked = sorted(known + guessed, reverse=True)[:most]
            then = best_prefix(ranked, prices)
            gain = then.worth - now.worth - spent
            if gain > best.gain:
                best = Option(gain, width, number, then.accepted)
    return best


class ForwardPrice(Protocol):
    """Says what a draft forward costs, in tokens."""

    def __call__(self, width: int, is_next: bool, /) -> float:
        """Return the price of a forward of so many nodes: the next one, or a later."""


def _widths(most: int) -> list[int]:
    return [width for width in WIDTHS if width <= most] or [most] * (most > 0)
