"""Cheap drafters first: a better one is asked only where they are not sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from treespec.draft import AbstractDraft, listed
from treespec.drafters.base import (
    AbstractDrafter,
    DraftSetting,
    Frontier,
)
from treespec.drafters.routed import Route, RoutedDraft
from treespec.drafters.team import (
    AbstractTeam,
    AbstractTeamSession,
    HostFrontier,
    Question,
    checked_members,
    host_frontier,
    per_member,
)
from treespec.errors import TreespecError


@dataclass(frozen=True, slots=True)
class Cascade(AbstractTeam):
    """At every node the first drafter that is sure of its best candidate leads.

    The others are not asked about that node, so a frontier that a lookup serves costs
    no forward of a draft model. Where no forward is allowed, those that run a model are
    passed over, and the last of the others leads wherever none is sure. Routing looks
    at the draft alone: sampled proposals stay lossless, for a node's law is that of the
    drafter which leads there.

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
        whole: The frontier.
        open_rows: Rows that no drafter leads yet.
        routes: Those that one does.
    """

    whole: HostFrontier
    open_rows: list[int]
    routes: list[Route] = field(default_factory=list)

    @property
    def frontier(self) -> Frontier:
        """The frontier."""
        return self.whole.frontier


class CascadeSession(AbstractTeamSession):
    """Asks the members in turn: one call each, for all requests together."""

    def __init__(self, cascade: Cascade, setting: DraftSetting) -> None:
        """Start every member."""
        super().__init__(cascade, setting)
        self._device = setting.device
        # Rounded as log-probabilities are, so that what is just enough is enough.
        least = torch.tensor(cascade.min_confidence, dtype=torch.float64).log()
        self._least = least.float().tolist()

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return, row by row, what the first drafter says that is sure enough."""
        searches = [_begin(frontier) for frontier in frontiers]
        for place in range(len(self.members)):
            able = [s for s in searches if self.may_ask(place, s.frontier)]
            self._ask(place, [search for search in able if search.open_rows])
        return [self._answer(search) for search in searches]

    def _answer(self, search: _Search) -> AbstractDraft:
        num_rows = len(search.whole.nodes)
        if not search.routes:  # no member could be asked
            return listed([()] * num_rows, self._device)
        return RoutedDraft(tuple(search.routes), num_rows)

    def _ask(self, place: int, searches: Sequence[_Search]) -> None:
        """Ask a member about all open rows, and let it lead where it is sure."""
        if not searches:
            return
        questions = [self.question(place, s.whole, s.open_rows) for s in searches]
        drafts = self.members[place].session.expand([q.asked for q in questions])
        for search, question, draft in zip(searches, questions, drafts, strict=True):
            led = self._led(place, search, question, draft)
            if led:
                search.routes.append(self._route(place, question, draft, led))
            search.open_rows = sorted(set(search.open_rows) - set(led.values()))

    def _led(
        self, place: int, search: _Search, question: Question, draft: AbstractDraft
    ) -> dict[int, int]:
        """Return the rows that a member leads: its own, and which they are for."""
        row_of = question.row_of()
        led = {row_of[search.whole.nodes[row]]: row for row in search.open_rows}
        if place == self._last(search.frontier):
            return led
        best = draft.top(1)
        rows, logprobs = best.rows.tolist(), best.logprobs.tolist()
        sure = {
            r for r, p in zip(rows, logprobs, strict=True) if p >= self._least[place]
        }
        return {own: row for own, row in led.items() if own in sure}

    def _last(self, frontier: Frontier) -> int:
        """Return the place of the last member that may be asked: there is one."""
        places = range(len(self.members))
        return max(place for place in places if self.may_ask(place, frontier))

    def _route(
        self, place: int, question: Question, draft: AbstractDraft, led: dict[int, int]
    ) -> Route:
        numbers = (list(led), list(led.values()))
        own_rows, rows = torch.tensor(numbers, device=self._device)
        # Row by row the frontier, that is: in another order it has as many rows.
        is_own = question.asked is question.whole.frontier
        is_whole = is_own and len(led) == len(question.nodes)
        first_source = self.members[place].first_source
        return Route(draft, own_rows, rows, first_source, is_whole)


def _begin(frontier: Frontier) -> _Search:
    whole = host_frontier(frontier)
    return _Search(whole, list(range(len(whole.nodes))))
