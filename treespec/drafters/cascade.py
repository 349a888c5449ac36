"""Cheap drafters first: a better one is asked only where they are not sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from treespec.draft import AbstractDraft
from treespec.drafters.base import (
    AbstractDrafter,
    DraftSetting,
    Feedback,
    Frontier,
)
from treespec.drafters.routed import Route, RoutedDraft
from treespec.drafters.team import (
    AbstractTeam,
    AbstractTeamSession,
    Member,
    checked_members,
    per_member,
)
from treespec.errors import TreespecError
from treespec.tree import ROOT


@dataclass(frozen=True, slots=True)
class Cascade(AbstractTeam):
    """At every node the first drafter that is sure of its best candidate leads.

    The others are not asked about that node, so a frontier that a lookup serves costs
    no forward of a draft model. Routing looks at the draft alone: sampled proposals
    stay lossless, for a node's law is that of the drafter which leads there.

    Attributes:
        drafters: Cheapest first; the last one leads wherever no other does.
        min_confidence: For every drafter but the last: the least probability of its
            best candidate with which it leads.
    """

    drafters: tuple[AbstractDrafter, ...]
    min_confidence: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the members and the thresholds; lists become tuples."""
        drafters = checked_members(self.drafters)
        name = "drafter.min_confidence"
        least = per_member(
            name,
            self.min_confidence,
            len(drafters) - 1,
            "every drafter but the last",
        )
        if not all(0 <= value <= 1 for value in least):
            raise TreespecError(
                f"{name} must hold probabilities from 0 to 1, got {list(least)}"
            )
        object.__setattr__(self, "drafters", drafters)
        object.__setattr__(self, "min_confidence", least)

    def cold(self) -> Cascade:
        """Return the same cascade of cold drafters."""
        return replace(self, drafters=tuple(d.cold() for d in self.drafters))

    def start(self, setting: DraftSetting) -> CascadeSession:
        """Return a session of every member."""
        return CascadeSession(self, setting)


@dataclass(slots=True)
class _Search:
    """A frontier on its way through the cascade.

    Attributes:
        frontier: The frontier.
        nodes: Its nodes.
        parents: Parents in its tree.
        open_rows: Rows that no drafter leads yet.
        routes: Those that one does.
    """

    frontier: Frontier
    nodes: list[int]
    parents: list[int]
    open_rows: list[int]
    routes: list[Route] = field(default_factory=list)


class CascadeSession(AbstractTeamSession):
    """Asks the members in turn: one call each, for all requests together."""

    def __init__(self, cascade: Cascade, setting: DraftSetting) -> None:
        """Start every member."""
        super().__init__(cascade, setting)
        self._device = setting.device
        self._least = [
            math.log(value) if value else -math.inf for value in cascade.min_confidence
        ]
        # Nodes of a request's current tree that each member was asked about.
        self._asked: list[dict[int, set[int]]] = [{} for _ in self.members]

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return, row by row, what the first drafter says that is sure enough."""
        searches = [_begin(frontier) for frontier in frontiers]
        for place in range(len(self.members)):
            self._ask(place, [search for search in searches if search.open_rows])
        return [RoutedDraft(tuple(s.routes), len(s.nodes)) for s in searches]

    def commit(self, request: int, feedback: Feedback) -> None:
        """Tell every member; the tree is over."""
        super().commit(request, feedback)
        for asked in self._asked:
            asked.pop(request, None)

    def release(self, request: int) -> None:
        """End the request with every member."""
        super().release(request)
        for asked in self._asked:
            asked.pop(request, None)

    def _ask(self, place: int, searches: Sequence[_Search]) -> None:
        """Ask a member about all open rows, and let it lead where it is sure."""
        if not searches:
            return
        member = self.members[place]
        asked = [self._nodes_to_ask(place, search) for search in searches]
        drafts = member.session.expand(
            [self._question(*pair) for pair in zip(searches, asked, strict=True)]
        )
        for search, nodes, draft in zip(searches, asked, drafts, strict=True):
            row_of = {node: row for row, node in enumerate(nodes)}
            open_rows = search.open_rows
            led = {row_of[search.nodes[row]]: row for row in open_rows}
            if place < len(self._least):
                best = draft.top(1)
                sure = set(best.rows[best.logprobs >= self._least[place]].tolist())
                led = {own: row for own, row in led.items() if own in sure}
            if led:
                search.routes.append(self._route(member, draft, led))
            search.open_rows = sorted(set(open_rows) - set(led.values()))

    def _nodes_to_ask(self, place: int, search: _Search) -> list[int]:
        """Return the open nodes, and their ancestors that the member has not seen.

        A draft model reads a node only after its parents. The root is left out: every
        member knows it, as the end of the text.
        """
        request = search.frontier.request
        seen = self._asked[place].setdefault(request, {ROOT})
        nodes = [search.nodes[row] for row in search.open_rows]
        wanted = set(nodes)
        for node in nodes:
            above = search.parents[node]
            while above > ROOT and above not in seen and above not in wanted:
                wanted.add(above)
                above = search.parents[above]
        seen |= wanted
        return sorted(wanted)

    def _question(self, search: _Search, nodes: list[int]) -> Frontier:
        if nodes == search.nodes:
            return search.frontier
        return replace(search.frontier, nodes=self._ids(nodes))

    def _route(
        self, member: Member, draft: AbstractDraft, led: dict[int, int]
    ) -> Route:
        own_rows, rows = self._ids(list(led)), self._ids(list(led.values()))
        return Route(draft, own_rows, rows, member.first_source)

    def _ids(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)


def _begin(frontier: Frontier) -> _Search:
    """Return a search; waits for the device unless only the root is asked about."""
    if frontier.depth == 0:
        return _Search(frontier, [ROOT], [ROOT], [0])
    nodes, parents = frontier.nodes.tolist(), frontier.tree.parents.tolist()
    return _Search(frontier, nodes, parents, list(range(len(nodes))))
