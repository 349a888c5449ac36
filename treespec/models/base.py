"""What a language model is to treespec: a forward over rows of nodes.

A forward reads any set of nodes of any number of requests in one row: no padding, no
batch dimension, no special first step. Each request's rows form one ``Segment`` that
says which slots of the key/value pool they may see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from treespec.models.cache import SlotCache


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one request in a forward, and the slots that they may see.

    Attributes:
        row_start: First row.
        row_stop: One past the last row.
        slot_start: First slot of the request's live region.
        slot_stop: One past the last slot.
        visible: Whether a row may see a slot; ``None``: every row sees every
            slot.  # [R, S] bool
        distance: Position of the row minus position of the slot, for visible slots;
            ``None`` if every row sees every slot.  # [R, S]
    """

    row_start: int
    row_stop: int
    slot_start: int
    slot_stop: int
    visible: Tensor | None
    distance: Tensor | None
    _biases: dict[tuple[int | None, int, torch.dtype], Tensor] = field(
        default_factory=dict, repr=False
    )

    _lines: dict[int | None, list[Tensor]] = field(default_factory=dict, repr=False)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.row_stop - self.row_start

    @property
    def num_slots(self) -> int:
        """Number of slots that the rows read."""
        return self.slot_stop - self.slot_start

    def sees(self, window: int | None) -> Tensor | None:
        """Return which slots the rows see in a layer with this sliding window.

        Args:
            window: How many positions back a row sees, itself included; ``None`` for
                full attention.

        Returns:
            A mask, or ``None`` where everything is visible.  # [R, S] bool
        """
        if window is None or self.visible is None or self.distance is None:
            return self.visible
        return self.visible & (self.distance < window)

    def bias(
        self, window: int | None, groups: int, dtype: torch.dtype
    ) -> Tensor | None:
        """Return ``sees`` as an additive bias, repeated for each head of a group.

        Built once per forward and reused by every layer of the same kind.

        Returns:
            0 where a slot is seen, -inf elsewhere.  # [1, 1, groups * R, S]
        """
        sees = self.sees(window)
        if sees is None:
            return None
        key = (window, groups, dtype)
        if key not in self._biases:
            bias = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
            bias.masked_fill_(~sees, -torch.inf)
            self._biases[key] = bias.repeat(groups, 1)[None, None]
        return self._biases[key]

    def lines(self, window: int | None) -> list[Tensor]:
        """Return each row's visible slots in the order of the text, its own last.

        Built once per forward and reused by every layer of the same kind.

        Returns:
            Places from ``slot_start`` on, per row.  # R x [L]
        """
        if window not in self._lines:
            sees = self.sees(window)
            assert sees is not None
            assert self.distance is not None
            far = torch.where(sees, self.distance, -1)
            order = far.argsort(dim=-1, descending=True)
            counts = sees.sum(dim=-1).tolist()
            self._lines[window] = [
                row[:count] for row, count in zip(order, counts, strict=True)
            ]
        return self._lines[window]


@dataclass(frozen=True, slots=True)
class ForwardRows:
    """Everything that one forward reads.

    Attributes:
        tokens: Token ids.  # [T]
        positions: Positions in their texts.  # [T]
        slots: Where each row's keys and values go.  # [T]
        segments: One per request, covering all rows in order.
        logit_rows: Rows whose next-token logits are wanted.  # [R]
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    segments: tuple[Segment, ...]
    logit_rows: Tensor


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What one forward returns.

    Attributes:
        logits: Next-token logits of the wanted rows.  # [R, V]
        hidden: Hidden states of the wanted rows after the asked-for layers; ``None``
            if none were asked for.  # [R, L, H]
    """

    logits: Tensor
    hidden: Tensor | None


class AbstractLanguageModel(ABC):
    """A decoder-only language model whose attention is a mask over slots."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Width of the logits."""

    @property
    @abstractmethod
    def max_positions(self) -> int:
        """Longest text, in tokens."""

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """Number of transformer layers."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where rows and logits live."""

    @property
    @abstractmethod
    def windows(self) -> frozenset[int]:
        """Sliding-window lengths of the layers that have one."""

    @abstractmethod
    def lower_layers(self, num_layers: int) -> AbstractLanguageModel:
        """Return the first layers with the final norm and head, sharing all weights.

        Args:
            num_layers: From 1 to ``self.num_layers``.
        """

    @abstractmethod
    def new_cache(self, capacity: int) -> SlotCache:
        """Return an empty pool of ``capacity`` slots for this model."""

    @abstractmethod
    def forward(
        self, rows: ForwardRows, cache: SlotCache, hidden_layers: tuple[int, ...] = ()
    ) -> ModelOutput:
        """Write the rows' keys and values into ``cache`` and return their logits.

        Args:
            rows: What to read.
            cache: The pool that the segments refer to.
            hidden_layers: Layers whose outputs are wanted; 0 is the embedding.
        """
