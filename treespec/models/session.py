"""One model, its slot pool, and the requests that are being decoded with it.

Everything that a model is asked to read comes through ``ModelSession.run``: prefill,
decoding, catching up after an accepted draft, drafting and verification are one case.
A request's committed tokens that have no slot yet are *pending*; every forward feeds
what is pending first, then the wanted nodes of the request's tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from treespec.models.base import (
    AbstractLanguageModel,
    ForwardRows,
    ModelOutput,
    Segment,
)
from treespec.models.cache import UNSEEN, Region, SlotCache
from treespec.tree import TokenTree, ancestor_mask, node_depths

PREFILL_CHUNK = 512
"""Most pending tokens of a request in one forward: bounds the memory of a prefill."""


@dataclass(slots=True)
class CachedSequence:
    """One request as one model's cache sees it.

    Attributes:
        region: The slots it owns.
        tokens: The committed text, as far as this model was told.
        line: Slot of each committed token that has one, in text order.
        fed_nodes: Ids of the current tree's nodes that have a slot.  # [M]
        fed_slots: Their slots, in the same order.
    """

    region: Region
    tokens: list[int]
    line: list[int] = field(default_factory=list)
    fed_nodes: Tensor | None = None
    fed_slots: list[int] = field(default_factory=list)

    @property
    def num_pending(self) -> int:
        """Committed tokens without a slot."""
        return len(self.tokens) - len(self.line)


@dataclass(frozen=True, slots=True)
class Feed:
    """What one request wants from a forward, besides what is pending.

    Attributes:
        sequence: The request.
        tree: Its token tree; ``None`` to feed only what is pending.
        nodes: Ids of the nodes to feed; their parents were fed, or are the root. # [M]
    """

    sequence: CachedSequence
    tree: TokenTree | None = None
    nodes: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Rows:
    """One feed, laid out: the pieces of ``ForwardRows`` that belong to it."""

    tokens: Tensor  # [T]
    positions: Tensor  # [T]
    slots: list[int]
    segment: Segment
    logit_rows: range


class ModelSession:
    """A model with a slot pool of its own.

    Attributes:
        model: The model.
        cache: Its pool.
        num_forwards: Times that it was run; a long reading in chunks counts once.
    """

    def __init__(self, model: AbstractLanguageModel, capacity: int) -> None:
        """Make a session with ``capacity`` slots."""
        self.model = model
        self.cache: SlotCache = model.new_cache(capacity)
        self.num_forwards = 0

    def admit(self, tokens: Sequence[int], num_slots: int) -> CachedSequence | None:
        """Start a request, or return ``None`` if its slots do not fit now.

        Args:
            tokens: Its prompt; everything is pending.
            num_slots: Most slots it will need at any time.
        """
        region = self.cache.admit(num_slots)
        return None if region is None else CachedSequence(region, list(tokens))

    def release(self, sequence: CachedSequence) -> None:
        """End a request and give its slots back."""
        self.cache.release(sequence.region)

    def run(
        self, feeds: Sequence[Feed], hidden_layers: tuple[int, ...] = ()
    ) -> list[ModelOutput]:
        """Feed pending tokens and tree nodes of any number of requests in one row.

        Returns:
            Per feed: a row for the last committed token, if it was pending, then a row
            for each node.  # logits [1 + M, V] or [M, V]
        """
        self._prefill(feeds)
        self.num_forwards += 1
        return self._forward(
            [self._lay_out(feed, feed.sequence.num_pending) for feed in feeds],
            hidden_layers,
        )

    def commit(
        self, sequence: CachedSequence, node_ids: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Append committed tokens; keep the slots of accepted nodes, free the others.

        Args:
            sequence: The request.
            node_ids: Accepted nodes from depth 1 downwards; the first tokens are
                theirs.
            tokens: All tokens that the step committed.
        """
        fed = [] if sequence.fed_nodes is None else sequence.fed_nodes.tolist()
        slots = dict(zip(fed, sequence.fed_slots, strict=True))
        kept: list[int] = []
        if not sequence.num_pending:
            for node in node_ids:
                if node not in slots:
                    break
                kept.append(slots.pop(node))
        if kept:
            first = len(sequence.tokens)
            self.cache.place(kept, range(first, first + len(kept)))
        sequence.line.extend(kept)
        sequence.tokens.extend(tokens)
        self._drop_tree(sequence, list(slots.values()))

    def rewind(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Forget the text after its first ``num_tokens`` tokens, and free its slots."""
        dropped = sequence.line[num_tokens:]
        if dropped:
            self.cache.place(dropped, [UNSEEN] * len(dropped))
        sequence.region.give_back(dropped)
        del sequence.line[num_tokens:]
        del sequence.tokens[num_tokens:]

    def skip(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Take the next pending tokens as read, without a forward: for timings only.

        What the model then says is worth nothing; its time is that of any text.
        """
        first, slots = len(sequence.line), sequence.region.take(num_tokens)
        if slots:
            self.cache.place(slots, range(first, first + num_tokens))
            sequence.line.extend(slots)

    def restart(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Forget the text's first ``num_tokens`` tokens, and whatever was read of it.

        The rest is pending, at positions from 0.
        """
        rest = sequence.tokens[num_tokens:]
        self.rewind(sequence, 0)
        sequence.tokens.extend(rest)

    def _drop_tree(self, sequence: CachedSequence, slots: Sequence[int]) -> None:
        sequence.region.give_back(slots)
        sequence.fed_nodes = None
        sequence.fed_slots = []

    def _prefill(self, feeds: Sequence[Feed]) -> None:
        """Feed long pending chains chunk by chunk until one chunk or less is left."""
        while long := [f for f in feeds if f.sequence.num_pending > PREFILL_CHUNK]:
            chunk = Feed(long[0].sequence)
            self._forward([self._lay_out(chunk, PREFILL_CHUNK)], ())

    def _lay_out(self, feed: Feed, num_pending: int) -> _Rows:
        """Give a feed its slots, positions and mask."""
        sequence, region, device = (
            feed.sequence,
            feed.sequence.region,
            self.model.device,
        )
        first = len(sequence.line)
        pending = sequence.tokens[first : first + num_pending]
        slots = region.take(num_pending)
        positions = torch.arange(first, first + num_pending, device=device)
        if slots:
            self.cache.place(slots, range(first, first + num_pending))
            sequence.line.extend(slots)
        tokens = torch.tensor(pending, device=device, dtype=torch.int64)
        if feed.tree is None or feed.nodes is None:
            segment = self._segment(sequence, positions, None)
            wanted = range(num_pending - 1, num_pending)
            return _Rows(tokens, positions, slots, segment, wanted)

        reach = ancestor_mask(feed.tree.parents)
        node_slots = region.take(feed.nodes.shape[0])
        fed = sequence.fed_nodes
        fed = feed.nodes if fed is None else torch.cat((fed, feed.nodes))
        sequence.fed_nodes = fed
        sequence.fed_slots.extend(node_slots)
        depths = node_depths(feed.tree.parents)
        root = len(sequence.tokens) - 1
        positions = torch.cat((positions, root + depths[feed.nodes]))
        family = _Family(
            reach=reach[feed.nodes][:, fed],
            distance=depths[feed.nodes][:, None] - depths[fed],
        )
        return _Rows(
            tokens=torch.cat((tokens, feed.tree.tokens[feed.nodes])),
            positions=positions,
            slots=slots + node_slots,
            segment=self._segment(sequence, positions, family),
            logit_rows=range(max(num_pending - 1, 0), positions.shape[0]),
        )

    def _segment(
        self, sequence: CachedSequence, positions: Tensor, family: _Family | None
    ) -> Segment:
        """Return which slots of the region the rows see; row numbers start at 0."""
        region = sequence.region
        start, stop = region.start, region.high
        num_rows = positions.shape[0]
        windows = self.model.windows
        dense = num_rows == 1 and family is None and not region.holes
        dense = dense and sequence.line == list(range(start, stop))
        if dense and (not windows or stop - start <= min(windows)):
            return Segment(0, num_rows, start, stop, None, None)
        distance = positions[:, None] - self.cache.positions[start:stop]
        visible = distance >= 0
        if family is not None:
            slots = positions.new_tensor(sequence.fed_slots) - start
            first = num_rows - family.reach.shape[0]
            visible[first:, slots] = family.reach
            distance[first:, slots] = family.distance
        return Segment(0, num_rows, start, stop, visible, distance)

    def _forward(
        self, parts: Sequence[_Rows], hidden_layers: tuple[int, ...]
    ) -> list[ModelOutput]:
        """Join the parts into one row, run the model, split what it returns."""
        segments: list[Segment] = []
        wanted: list[int] = []
        slots: list[int] = []
        start = 0
        for part in parts:
            size = part.tokens.shape[0]
            segments.append(_shifted(part.segment, start))
            wanted.extend(start + row for row in part.logit_rows)
            slots.extend(part.slots)
            start += size
        device = self.model.device
        rows = ForwardRows(
            tokens=torch.cat([part.tokens for part in parts]),
            positions=torch.cat([part.positions for part in parts]),
            slots=torch.tensor(slots, device=device),
            segments=tuple(segments),
            logit_rows=torch.tensor(wanted, device=device),
        )
        output = self.model.forward(rows, self.cache, hidden_layers)
        counts = [len(part.logit_rows) for part in parts]
        hidden: Sequence[Tensor | None] = [None] * len(parts)
        if output.hidden is not None:
            hidden = torch.split(output.hidden, counts)
        logits = torch.split(output.logits, counts)
        return [ModelOutput(*pair) for pair in zip(logits, hidden, strict=True)]


@dataclass(frozen=True, slots=True)
class _Family:
    """How the fed nodes of a tree relate to the rows' nodes."""

    reach: Tensor  # [R, M] bool: the fed node is the row's node or its ancestor
    distance: Tensor  # [R, M] difference of depths


def _shifted(segment: Segment, rows: int) -> Segment:
    """Return the segment moved down by ``rows`` rows."""
    return Segment(
        segment.row_start + rows,
        segment.row_stop + rows,
        segment.slot_start,
        segment.slot_stop,
        segment.visible,
        segment.distance,
    )
