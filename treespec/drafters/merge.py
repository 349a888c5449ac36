"""The candidates of several drafters in one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treespec.draft import AbstractDraft, Children, SparseDraft, listed
from treespec.drafters.base import AbstractDrafter, DraftSetting, Frontier
from treespec.drafters.team import (
    AbstractTeam,
    AbstractTeamSession,
    checked_members,
    host_frontier,
    per_member,
)
from treespec.errors import TreespecError
from treespec.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Merge(AbstractTeam):
    """Mixes what its drafters say, so that a token which several propose counts more.

    The probability of a token is the weighted mean of what the drafters give it. Where
    one knows nothing, its weight goes to the others, and where no forward is allowed,
    drafters that run a model are not asked. So the law is a law again, which
    children can be drawn from, and the same token from two drafters is one candidate.
    Its source is the drafter that adds most to it.

    Attributes:
        drafters: Every one that may be is asked about every node.
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
    """Asks every member that may be asked about every node."""

    def __init__(self, merge: Merge, setting: DraftSetting) -> None:
        """Start every member."""
        super().__init__(merge, setting)
        self._vocab_size, self._device = setting.vocab_size, setting.device
        weights = merge.weights or (1.0,) * len(self.members)
        # Only their ratios count; the largest of float64 are none of float32.
        self._weights = tuple(weight / max(weights) for weight in weights)

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return the mixture of what all members say that may be asked."""
        answers = [self._ask(place, frontiers) for place in range(len(self.members))]
        return [self._mixture(frontier, answers) for frontier in frontiers]

    def _ask(
        self, place: int, frontiers: Sequence[Frontier]
    ) -> dict[int, AbstractDraft]:
        """Return what a member says, by request."""
        member = self.members[place]
        asked = [frontier for frontier in frontiers if self.may_ask(place, frontier)]
        if not asked:
            return {}
        requests = [frontier.request for frontier in asked]
        if not member.drafter.runs_model:  # it is asked about every node
            return dict(zip(requests, member.session.expand(asked), strict=True))
        wholes = [host_frontier(frontier) for frontier in asked]
        questions = [self.question(place, w, range(len(w.nodes))) for w in wholes]
        answers = member.session.expand([question.asked for question in questions])
        pairs = zip(questions, answers, strict=True)
        parts = [question.rows_of_all(answer) for question, answer in pairs]
        return dict(zip(requests, parts, strict=True))

    def _mixture(
        self, frontier: Frontier, answers: Sequence[dict[int, AbstractDraft]]
    ) -> AbstractDraft:
        said = [place for place, by in enumerate(answers) if frontier.request in by]
        if not said:
            return listed([()] * frontier.nodes.shape[0], self._device)
        return MergedDraft(
            drafts=tuple(answers[place][frontier.request] for place in said),
            weights=tuple(self._weights[place] for place in said),
            first_sources=tuple(self.members[place].first_source for place in said),
            vocab_size=self._vocab_size,
        )


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
        if all(isinstance(draft, SparseDraft) for draft in self.drafts):
            return self._named().top(k)
        probs = [draft.probs(self.vocab_size) for draft in self.drafts]
        best = self._mixed(probs).topk(min(k, self.vocab_size), dim=-1)
        places = (best.values > 0).nonzero(as_tuple=True)
        rows, tokens = places[0], best.indices[places]
        given = torch.stack([prob[rows, tokens] for prob in probs])
        giver = (self._shares()[:, rows] * given).argmax(dim=0)
        return Children(
            rows=rows,
            tokens=tokens,
            logprobs=best.values[places].log(),
            sources=self._sources()[giver, rows],
        )

    def law(self, sampling: Sampling, vocab_size: int) -> Tensor:
        """Return the mixture of the drafts' sampling laws."""
        return self._mixed([d.law(sampling, vocab_size) for d in self.drafts])

    def probs(self, vocab_size: int) -> Tensor:
        """Return the mixture of what the drafts say of every token."""
        return self._mixed([draft.probs(vocab_size) for draft in self.drafts])

    def known_rows(self) -> Tensor:  # [R]
        """Return the rows that any draft knows."""
        known = torch.cat([draft.known_rows() for draft in self.drafts])
        rows: Tensor = torch.unique(known)
        return rows

    def row_sources(self) -> Tensor:  # [F]
        """Return the source of each row's best candidate."""
        best, sources = self.top(1), torch.zeros_like(self._sources()[0])
        return sources.index_copy(0, best.rows, best.sources)

    def _named(self) -> SparseDraft:
        """Return all candidates of drafts that name a few, without a whole law."""
        found = [draft.top(self.vocab_size) for draft in self.drafts]
        keys = [part.rows * self.vocab_size + part.tokens for part in found]
        pool: Tensor = torch.unique(torch.cat(keys))
        rows, tokens = pool // self.vocab_size, pool % self.vocab_size
        probs = torch.zeros(len(found), pool.shape[0], device=pool.device)
        for place, (part, key) in enumerate(zip(found, keys, strict=True)):
            probs[place, torch.searchsorted(pool, key)] = part.logprobs.exp()
        given = self._shares()[:, rows] * probs
        total = given.sum(dim=0)
        children = Children(
            rows, tokens, total.log(), self._sources()[given.argmax(dim=0), rows]
        )
        order = total.argsort(descending=True)
        order = order[rows[order].argsort(stable=True)]
        return SparseDraft(children.select(order), self._sources().shape[1])

    def _mixed(self, values: Sequence[Tensor]) -> Tensor:  # [F, V]
        """Return the weighted mean of what every draft has per token."""
        (first, *others), shares = values, self._shares()[:, :, None]
        mixed = shares[0] * first
        for share, value in zip(shares[1:], others, strict=True):
            mixed = mixed + share * value
        return mixed

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
