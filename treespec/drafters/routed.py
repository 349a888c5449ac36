"""Answers put together from the rows of other answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treespec.draft import AbstractDraft, Children
from treespec.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Route:
    """Rows of one draft that speak for rows of a frontier.

    Attributes:
        draft: The draft; it may have further rows, which are left out.
        draft_rows: Its rows, as often as they are needed.  # [R]
        rows: The frontier's row that each of them is for.  # [R]
        first_source: What its sources count from.
        is_whole: Whether it speaks for all rows of the frontier, with all of its own,
            in order: known on the host, so that nothing has to be looked up.
    """

    draft: AbstractDraft
    draft_rows: Tensor
    rows: Tensor
    first_source: int = 0
    is_whole: bool = False

    def top(self, k: int) -> Children:
        """Return the best children of its rows."""
        found = self.draft.top(k)
        if self.is_whole:
            return replace(found, sources=found.sources + self.first_source)
        place, child = (self.draft_rows[:, None] == found.rows).nonzero(as_tuple=True)
        found = found.select(child)
        return Children(
            rows=self.rows[place],
            tokens=found.tokens,
            logprobs=found.logprobs,
            sources=self.first_source + found.sources,
        )

    def known(self) -> Tensor:  # [R] bool
        """Return which of its rows are known."""
        return torch.isin(self.draft_rows, self.draft.known_rows())


@dataclass(frozen=True, slots=True)
class RoutedDraft(AbstractDraft):
    """Every row from the draft that leads there.

    Attributes:
        routes: At least one; no row of the frontier is in two of them.
        num_rows: F, the number of frontier nodes.
    """

    routes: tuple[Route, ...]
    num_rows: int

    def top(self, k: int) -> Children:
        """Return at most ``k`` candidates of every node."""
        parts = [route.top(k) for route in self.routes]
        if self.routes[0].is_whole:
            return parts[0]
        found = Children(
            rows=torch.cat([part.rows for part in parts]),
            tokens=torch.cat([part.tokens for part in parts]),
            logprobs=torch.cat([part.logprobs for part in parts]),
            sources=torch.cat([part.sources for part in parts]),
        )
        return found.select(found.rows.argsort(stable=True))

    def law(self, sampling: Sampling, vocab_size: int) -> Tensor:
        """Return the sampling law of every node, from the draft that leads there."""
        return self._gather([r.draft.law(sampling, vocab_size) for r in self.routes])

    def probs(self, vocab_size: int) -> Tensor:
        """Return what the draft that leads says of every token."""
        return self._gather([r.draft.probs(vocab_size) for r in self.routes])

    def known_rows(self) -> Tensor:  # [R]
        """Return the rows that their draft knows."""
        known = [route.rows[route.known()] for route in self.routes]
        return torch.cat(known).sort().values

    def row_sources(self) -> Tensor:  # [F]
        """Return the source that their draft names."""
        return self._placed(
            [
                torch.where(
                    route.known(),
                    route.draft.row_sources()[route.draft_rows] + route.first_source,
                    0,
                )
                for route in self.routes
            ]
        )

    def _gather(self, values: Sequence[Tensor]) -> Tensor:  # [F, V]
        """Return the frontier's rows of what each draft has per row of its own."""
        pairs = zip(self.routes, values, strict=True)
        return self._placed([value[route.draft_rows] for route, value in pairs])

    def _placed(self, parts: Sequence[Tensor]) -> Tensor:  # [F, ...]
        """Return what the routes bring, each row in its place in the frontier."""
        joined = torch.cat(list(parts))
        placed = joined.new_zeros(self.num_rows, *joined.shape[1:])
        placed[torch.cat([route.rows for route in self.routes])] = joined
        return placed
