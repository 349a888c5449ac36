"""The dynamic tree that rules for sampled children may verify: DySpec."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.errors import TreespecError, require_number
from treespec.policies.base import AbstractDraftPolicy, Growth
from treespec.tree import NOT_EXPANDED, Layer
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class SampledBestFirst(AbstractDraftPolicy):
    """Draws the next token where it is most likely to help (DySpec, 2410.11744).

    Every node with a law has one open *slot*, its next child. A slot's value is the
    guessed probability that the text gets there: that the node is accepted and all its
    children so far are not. Tokens are drawn one after the other, each in the best
    slot, without replacement. Which slot comes next depends on what was drawn, but
    nothing drawn is ever dropped, reordered or replaced, so that rules for children
    drawn without replacement stay lossless.

    DySpec's search asks the draft after every node. Here a draft forward waits for all
    that is worth one: siblings are drawn and nodes expanded if their value is at least
    ``threshold`` shares of the budget that is left. The share grows as the budget
    shrinks, so a sure draft spends it on depth and an unsure one on width, and nothing
    is expanded that could not have a child. When no node is worth an expansion, the
    rest of the budget goes to siblings, best first.

    Attributes:
        power: A token that had probability q when it was drawn is guessed to be
            accepted with probability q ** power. 1 is DySpec's guess, which is low: a
            draft that is right about the law is accepted however flat that is.
        threshold: In units of 1 / (nodes left), > 0; more asks the draft less often.
    """

    proposal = ProposalKind.WITHOUT_REPLACEMENT
    max_children = None
    ends_siblings_early = True

    power: float = 0.25
    threshold: float = 0.25

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name in ("power", "threshold"):
            value = getattr(self, name)
            require_number(f"policy.{name}", value)
            if not 0 < value < math.inf:
                raise TreespecError(f"policy.{name} must be > 0, got {value}")

    def grow(self, growth: Growth) -> Layer | None:
        """Return a child of every known node, and siblings where they are worth it."""
        search = _Search(growth, self.power)
        search.draw_first_children()
        while search.has_room and search.best * search.num_left >= self.threshold:
            search.draw_next_sibling()
        expand = search.unexpanded(self.threshold)
        if growth.depth == growth.budget.max_depth or not expand:
            while search.has_room and search.best > 0:
                search.draw_next_sibling()
        return search.layer(expand)


class _Search:
    """One expansion at work: what is known of the nodes, and a queue of open slots.

    A node with a law always has a first child, for the draft is asked only if there
    will be room for one. So the nodes that have children are those that have a slot.

    Attributes:
        growth: The tree before.
        laws: The frontier's laws.  # [F, V]
        values: Guessed probability that a node is reached and accepted, for every node;
            those drawn now come last.
        slots: The same for its next child's place.
        left: Mass of the tokens that were not drawn below every node.
        drawn: Tokens below every node, in draw order.
        source_below: Source of the law of every node that has children.
        new: Parent, token and probability of every node drawn now.
        queue: Open slots, best first: negated value and node.
    """

    def __init__(self, growth: Growth, power: float) -> None:
        """Read the tree; waits for the device."""
        self.growth, self._power = growth, power
        self.laws = growth.draft.law(growth.sampling, growth.vocab_size)
        self.values, self.slots, self.left = [1.0], [1.0], [1.0]
        self.drawn: list[list[int]] = [[]]
        self.source_below: dict[int, int] = {}
        self.new: list[tuple[int, int, float]] = []
        self.queue: list[tuple[float, int]] = []
        self._rows = {node: row for row, node in enumerate(growth.frontier.tolist())}
        self._host = host = growth.tree.host()
        probs = growth.tree.draft_logprobs.double().exp().tolist()
        for node, parent in enumerate(host.parents[1:], start=1):
            self._hang(parent, host.tokens[node], probs[node])
            self.source_below[parent] = host.sources[node]
        for node in self.source_below:
            self._open_slot(node)

    @property
    def best(self) -> float:
        """Value of the best slot; 0 if there is none."""
        return -self.queue[0][0] if self.queue else 0.0

    @property
    def has_room(self) -> bool:
        """Whether the layer may have one more node."""
        return len(self.new) < self.growth.room

    @property
    def num_left(self) -> int:
        """Nodes that the budget still allows."""
        num_drafted = self.growth.tree.num_drafted + len(self.new)
        return self.growth.budget.max_nodes - num_drafted

    def draw_first_children(self) -> None:
        """Draw a child of every frontier node whose law is known."""
        growth, known = self.growth, self.growth.draft.known_rows()
        if known.shape[0] == 0:
            return
        laws = self.laws[known]
        tokens = growth.chance.draw(laws)
        probs = laws.gather(-1, tokens[:, None])[:, 0].tolist()
        nodes = growth.frontier[known].tolist()
        sources = growth.draft.row_sources()[known].tolist()
        self.source_below |= dict(zip(nodes, sources, strict=True))
        for drawn in zip(nodes, tokens.tolist(), probs, strict=True):
            self._add(*drawn)

    def draw_next_sibling(self) -> None:
        """Draw one more child in the best slot, or close it if no token is left."""
        _, node = heapq.heappop(self.queue)
        law = self._law(node)
        drawn = torch.tensor(self.drawn[node], device=law.device)
        rest = law.index_fill(0, drawn, 0.0)
        if float(rest.sum()) > 0:
            token = int(self.growth.chance.draw(rest))
            self._add(node, token, float(law[token]))

    def unexpanded(self, threshold: float) -> list[int]:
        """Return the nodes worth an expansion, as many as could have a child.

        Args:
            threshold: Least value, in shares of what is left to spend.
        """
        rows = self._host.draft_rows + [NOT_EXPANDED] * len(self.new)
        worthy = [
            node
            for node, value in enumerate(self.values)
            if rows[node] == NOT_EXPANDED
            and node not in self._rows
            and value * self.num_left >= threshold
        ]
        worthy.sort(key=lambda node: -self.values[node])
        return sorted(worthy[: min(self.num_left, self.growth.budget.max_width)])

    def layer(self, expand: list[int]) -> Layer | None:
        """Return the nodes drawn now; ``None`` if there is nothing left to do."""
        if not self.new and not expand:
            return None
        parents, tokens, probs = zip(*self.new, strict=True) if self.new else ((),) * 3
        like = self.growth.tree.tokens
        return Layer(
            parents=like.new_tensor(parents),
            tokens=like.new_tensor(tokens),
            draft_logprobs=self.laws.new_tensor(probs).log(),
            sources=like.new_tensor([self.source_below[node] for node in parents]),
            draft_probs=self.laws,
            expand=like.new_tensor(expand),
        )

    def _add(self, parent: int, token: int, prob: float) -> None:
        """Add a node that was drawn now."""
        self.new.append((parent, token, prob))
        self._hang(parent, token, prob)
        self._open_slot(parent)

    def _hang(self, parent: int, token: int, prob: float) -> None:
        """Hang the next node below its parent, with its guessed acceptance."""
        # Of the mass that was left; rounding may have left too little.
        guess = (prob / max(self.left[parent], prob)) ** self._power
        value = self.slots[parent] * guess
        self.slots[parent] -= value
        self.left[parent] -= prob
        self.drawn[parent].append(token)
        self.values.append(value)
        self.slots.append(value)
        self.left.append(1.0)
        self.drawn.append([])

    def _open_slot(self, node: int) -> None:
        if self.slots[node] > 0:
            heapq.heappush(self.queue, (-self.slots[node], node))

    def _law(self, node: int) -> Tensor:  # [V]
        """Return the law of a node's children."""
        if node in self._rows:
            return self.laws[self._rows[node]]
        laws = self.growth.tree.draft_probs
        assert laws is not None
        return laws[self._host.draft_rows[node]]
