"""The candidates of several drafters in one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treespec.draft import AbstractDraft, Children
from treespec.drafters.base import AbstractDrafter, DraftSetting, Frontier
from treespec.drafters.team import (
    AbstractTeam,
    AbstractTeamSession,
    checked_members,
    per_member,
)
from treespec.errors import TreespecError
from treespec.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Merge(AbstractTeam):
    """Mixes what its drafters say, so that a token which several propose counts more.

    The probability of a token is the weighted mean of what the drafters give it. Where
    one knows nothing, its weight goes to the others. So the law is a law again, which
    children can be drawn from, and the same token from two drafters is one candidate.
    Its source is the drafter that adds most to it.

    Attributes:
        drafters: Every one is asked about every node.
        weights: How much each counts, any positive numbers; ``None``: all the same.
    """

    drafters: tuple[AbstractDrafter, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check the members and the weights; lists become tuples."""
        drafters = checked_members(self.drafters)
        weights = self.weights
        if weights is not None:
            weights = per_member(
                "drafter.weights", weights, len(drafters), "every drafter"
            )
            if not all(0 < value < float("inf") for value in weights):
                raise TreespecError(
                    "drafter.weights must hold finite numbers above 0, got "
                    f"{list(weights)}; leave out a drafter that is not to count"
                )
        object.__setattr__(self, "drafters", drafters)
        object.__setattr__(self, "weights", weights)

    def cold(self) -> Merge:
        """Return the same mixture of cold drafters."""
        return replace(self, drafters=tuple(d.cold() for d in self.drafters))

    def start(self, setting: DraftSetting) -> MergeSession:
        """Return a session of every member."""
        return MergeSession(self, setting)


class MergeSession(AbstractTeamSession):
    """Asks every member about every node."""

    def __init__(self, merge: Merge, setting: DraftSetting) -> None:
        """Start every member."""
        super().__init__(merge, setting)
        self._vocab_size = setting.vocab_size
        self._weights = merge.weights or (1.0,) * len(self.members)

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return the mixture of what all members say."""
        answers = [member.session.expand(frontiers) for member in self.members]
        first_sources = tuple(member.first_source for member in self.members)
        return [
            MergedDraft(drafts, self._weights, first_sources, self._vocab_size)
            for drafts in zip(*answers, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class MergedDraft(AbstractDraft):
    """A weighted mean of D drafts.

    Attributes:
        drafts: The drafts.
        weights: Their weights.
        first_sources: What the sources of each count from.
        vocab_size: V, the target's.
    """

    drafts: tuple[AbstractDraft, ...]
    weights: tuple[float, ...]
    first_sources: tuple[int, ...]
    vocab_size: int

    def top(self, k: int) -> Children:
        """Return at most ``k`` children of every node, best of the mixture first."""
        given = self._given()
        best = given.sum(dim=0).topk(min(k, self.vocab_size), dim=-1)
        places = (best.values > 0).nonzero(as_tuple=True)
        rows, tokens = places[0], best.indices[places]
        giver = given[:, rows, tokens].argmax(dim=0)
        return Children(
            rows=rows,
            tokens=tokens,
            logprobs=best.values[places].log(),
            sources=self._sources()[giver, rows],
        )

    def law(self, sampling: Sampling, vocab_size: int) -> Tensor:
        """Return the mixture of the drafts' sampling laws."""
        laws = torch.stack([d.law(sampling, vocab_size) for d in self.drafts])
        mixed: Tensor = (self._shares()[:, :, None] * laws).sum(dim=0)
        return mixed

    def probs(self, vocab_size: int) -> Tensor:
        """Return the mixture of what the drafts say of every token."""
        return self._given().sum(dim=0)

    def known_rows(self) -> Tensor:  # [R]
        """Return the rows that any draft knows."""
        known = torch.cat([draft.known_rows() for draft in self.drafts])
        rows: Tensor = torch.unique(known)
        return rows

    def row_sources(self) -> Tensor:  # [F]
        """Return the source of each row's best candidate."""
        best, sources = self.top(1), torch.zeros_like(self._sources()[0])
        return sources.index_copy(0, best.rows, best.sources)

    def _given(self) -> Tensor:  # [D, F, V]
        """Return what every draft adds to the probability of every token."""
        probs = torch.stack([draft.probs(self.vocab_size) for draft in self.drafts])
        return self._shares()[:, :, None] * probs

    def _shares(self) -> Tensor:  # [D, F]
        """Return the weight of every draft at every node; they sum to one there."""
        shares = torch.zeros(self._sources().shape, device=self._sources().device)
        for place, draft in enumerate(self.drafts):
            shares[place, draft.known_rows()] = self.weights[place]
        total = shares.sum(dim=0)
        return shares / torch.where(total > 0, total, 1.0)

    def _sources(self) -> Tensor:  # [D, F]
        """Return the source of every draft at every node."""
        rows = [draft.row_sources() for draft in self.drafts]
        first = rows[0].new_tensor(self.first_sources)
        return torch.stack(rows) + first[:, None]
