"""What drafters that ask other drafters have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treespec.draft import AbstractDraft
from treespec.drafters.base import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
)
from treespec.drafters.routed import Route, RoutedDraft
from treespec.errors import TreespecError
from treespec.tree import ROOT


class AbstractTeam(AbstractDrafter):
    """Several drafters for one tree.

    Every member is told what the step committed, and gets of the target's hidden states
    and successors what it asked for; its sources are counted on from those of the
    members before it.

    Attributes:
        drafters: The members: a field of every team.
    """

    drafters: tuple[AbstractDrafter, ...]

    @property
    def source_names(self) -> tuple[str, ...]:
        """The members' sources; a name that was taken gets a number."""
        names: list[str] = []
        for name in (name for d in self.drafters for name in d.source_names):
            numbered = (f"{name}_{i}" for i in range(2, len(names) + 3))
            names.append(next(n for n in (name, *numbered) if n not in names))
        return tuple(names)

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """All layers that a member wants, in ascending order."""
        return tuple(sorted({i for d in self.drafters for i in d.hidden_layers}))

    @property
    def runs_model(self) -> bool:
        """Whether a member does."""
        return any(drafter.runs_model for drafter in self.drafters)

    @property
    def num_successors(self) -> int:
        """The most that a member wants."""
        return max(drafter.num_successors for drafter in self.drafters)


def checked_members(drafters: object) -> tuple[AbstractDrafter, ...]:
    """Return the members of a team as a tuple.

    Raises:
        TreespecError: There is none, or one is no drafter.
    """
    if not isinstance(drafters, Sequence) or not drafters:
        raise TreespecError(
            f"drafter.drafters must be a list of at least one drafter, got {drafters!r}"
        )
    for place, drafter in enumerate(drafters):
        if not isinstance(drafter, AbstractDrafter):
            raise TreespecError(
                f"drafter.drafters[{place}] must be a drafter, got {drafter!r}; give a "
                "_target_ such as treespec.drafters.PromptLookup"
            )
    return tuple(drafters)


def per_member(name: str, values: object, count: int, whom: str) -> tuple[float, ...]:
    """Return one number per member.

    Raises:
        TreespecError: They are not numbers, or not so many.
    """
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    numbers = tuple(values) if isinstance(values, Sequence) else ()
    are_numbers = all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in numbers
    )
    if not is_list or not are_numbers or len(numbers) != count:
        raise TreespecError(
            f"{name} must be a list of numbers, one for {whom} ({count} in all), got "
            f"{values!r}"
        )
    return numbers


@dataclass(frozen=True, slots=True)
class Member:
    """One drafter of a team, at work.

    Attributes:
        drafter: The drafter.
        session: Its session.
        first_source: What its sources count from.
    """

    drafter: AbstractDrafter
    session: AbstractDraftSession
    first_source: int

    def share(self, feedback: Feedback, layers: tuple[int, ...]) -> Feedback:
        """Return of a team's feedback what this member asked for.

        Args:
            feedback: What the team was told.
            layers: The layers of its hidden states.
        """
        wanted, most = self.drafter.hidden_layers, self.drafter.num_successors
        hidden: Tensor | None = None
        if feedback.hidden is not None and wanted:
            hidden = feedback.hidden[:, [layers.index(layer) for layer in wanted]]
        successors = feedback.successors if most else None
        if successors is not None:
            successors = replace(
                successors,
                tokens=successors.tokens[:, :most],
                logprobs=successors.logprobs[:, :most],
            )
        return replace(feedback, hidden=hidden, successors=successors)


@dataclass(frozen=True, slots=True)
class HostFrontier:
    """A frontier, with what a team looks up in it as numbers of the host.

    Attributes:
        frontier: The frontier.
        nodes: Its nodes.
        parents: Parents in its tree.
    """

    frontier: Frontier
    nodes: list[int]
    parents: list[int]


def host_frontier(frontier: Frontier) -> HostFrontier:
    """Copy a frontier; waits for the device unless only the root is asked about."""
    if frontier.depth == 0:
        return HostFrontier(frontier, [ROOT], [ROOT])
    nodes, parents = frontier.nodes.tolist(), frontier.tree.parents.tolist()
    return HostFrontier(frontier, nodes, parents)


@dataclass(frozen=True, slots=True)
class Question:
    """What one member is asked about some rows of a frontier.

    Attributes:
        asked: What it is asked: the rows' nodes, and ancestors that it has not seen.
        nodes: The nodes of that, as numbers of the host.
        whole: The frontier of the team.
    """

    asked: Frontier
    nodes: list[int]
    whole: HostFrontier

    def row_of(self) -> dict[int, int]:
        """Return the row of the answer that each node has."""
        return {node: row for row, node in enumerate(self.nodes)}

    def rows_of_all(self, answer: AbstractDraft) -> AbstractDraft:
        """Return of the answer what is about the frontier of the team, row by row."""
        if self.asked is self.whole.frontier:
            return answer
        row_of, wanted = self.row_of(), self.whole.nodes
        rows = self.asked.nodes.new_tensor([row_of[node] for node in wanted])
        places = torch.arange(len(wanted), device=rows.device)
        return RoutedDraft((Route(answer, rows, places),), len(wanted))


class AbstractTeamSession(AbstractDraftSession):
    """A session of every member; how they are asked is up to the team.

    A member need not be asked about every frontier. A draft model reads a node only
    after its parents, so whoever asks a member says so with ``question``.

    Attributes:
        members: The members.
    """

    def __init__(self, team: AbstractTeam, setting: DraftSetting) -> None:
        """Start every member."""
        self.members: list[Member] = []
        self._hidden_layers = team.hidden_layers
        # Nodes of a request's current tree that each member was asked about.
        self._seen: list[dict[int, set[int]]] = [{} for _ in team.drafters]
        first_source = 0
        for drafter in team.drafters:
            self.members.append(Member(drafter, drafter.start(setting), first_source))
            first_source += len(drafter.source_names)

    @property
    def num_forwards(self) -> int:
        """Forwards of all members."""
        return sum(member.session.num_forwards for member in self.members)

    def admit(self, request: int, prompt: Sequence[int], num_slots: int) -> None:
        """Start the request with every member."""
        for member in self.members:
            member.session.admit(request, prompt, num_slots)

    def num_unread(self, request: int) -> int:
        """Return the most that a member has not read."""
        return max(member.session.num_unread(request) for member in self.members)

    def commit(self, request: int, feedback: Feedback) -> None:
        """Tell every member; they know the nodes by their ids in the whole tree."""
        for member in self.members:
            own = member.share(feedback, self._hidden_layers)
            member.session.commit(request, own)
        self._end_tree(request)

    def release(self, request: int) -> None:
        """End the request with every member."""
        for member in self.members:
            member.session.release(request)
        self._end_tree(request)

    def may_ask(self, place: int, frontier: Frontier) -> bool:
        """Return whether a member may be asked: not for a forward that must not be."""
        return frontier.may_forward or not self.members[place].drafter.runs_model

    def question(
        self, place: int, whole: HostFrontier, rows: Sequence[int]
    ) -> Question:
        """Return what to ask a member about rows of a frontier, and note that it was.

        The root is left out of what it has missed: every member knows it, as the end
        of the text.

        Args:
            place: Which member.
            whole: The frontier.
            rows: Its rows that the member is wanted for.
        """
        frontier = whole.frontier
        seen = self._seen[place].setdefault(frontier.request, {ROOT})
        nodes = [whole.nodes[row] for row in rows]
        wanted = set(nodes)
        for node in nodes:
            above = whole.parents[node]
            while above > ROOT and above not in seen and above not in wanted:
                wanted.add(above)
                above = whole.parents[above]
        seen |= wanted
        ordered = sorted(wanted)
        if ordered == whole.nodes:
            return Question(frontier, ordered, whole)
        ids = frontier.nodes.new_tensor(ordered)
        return Question(replace(frontier, nodes=ids), ordered, whole)

    def _end_tree(self, request: int) -> None:
        for seen in self._seen:
            seen.pop(request, None)
