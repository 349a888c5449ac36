"""What drafters that ask other drafters have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from treespec.drafters.base import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
)
from treespec.errors import TreespecError


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


class AbstractTeamSession(AbstractDraftSession):
    """A session of every member; how they are asked is up to the team.

    Attributes:
        members: The members.
    """

    def __init__(self, team: AbstractTeam, setting: DraftSetting) -> None:
        """Start every member."""
        self.members: list[Member] = []
        self._hidden_layers = team.hidden_layers
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

    def release(self, request: int) -> None:
        """End the request with every member."""
        for member in self.members:
            member.session.release(request)
