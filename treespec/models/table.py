"""An exact toy: a language model whose logits come from a table.

It honours the slot interface to the letter: what it stores in a slot is the token and
its position, and a row's text is read back from the slots that its mask shows. So a
wrong mask, position or slot changes its answer at once. For tests and docs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from treespec.errors import TreespecError
from treespec.models.base import (
    AbstractLanguageModel,
    ForwardRows,
    ModelOutput,
    Segment,
)
from treespec.models.cache import SlotCache

Table = Callable[[tuple[int, ...]], Sequence[float]]
"""From a text (token ids) to the logits of its next token."""


class TableModel(AbstractLanguageModel):
    """A language model that looks its logits up by the whole text.

    Attributes:
        forwards: The rows of every forward so far, for tests that look at them.
    """

    def __init__(
        self,
        table: Table,
        vocab_size: int,
        max_positions: int = 4096,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """Make a model from a function of the text.

        Args:
            table: Returns ``vocab_size`` logits for any text.
            vocab_size: Number of tokens.
            max_positions: Longest text, in tokens.
            dtype: Type of the logits.
        """
        self._table, self._dtype = table, dtype
        self._vocab_size, self._max_positions = vocab_size, max_positions
        self.forwards: list[ForwardRows] = []

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self._vocab_size

    @property
    def max_positions(self) -> int:
        """Longest text, in tokens."""
        return self._max_positions

    @property
    def num_layers(self) -> int:
        """One: the lookup."""
        return 1

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def windows(self) -> frozenset[int]:
        """No layer has a sliding window."""
        return frozenset()

    def lower_layers(self, num_layers: int) -> TableModel:
        """Return the same table, with a list of forwards of its own."""
        assert num_layers == 1
        return TableModel(
            self._table, self._vocab_size, self._max_positions, self._dtype
        )

    def new_cache(self, capacity: int) -> SlotCache:
        """Return a pool with one layer: keys are tokens, values are positions."""
        return SlotCache(1, capacity, self.device)

    def forward(
        self, rows: ForwardRows, cache: SlotCache, hidden_layers: tuple[int, ...] = ()
    ) -> ModelOutput:
        """Store tokens and positions; look each wanted row's text up."""
        if hidden_layers:
            raise TreespecError("a table model has no hidden states")
        self.forwards.append(rows)
        cache.write(0, rows.slots, rows.tokens[None, :, None], _column(rows.positions))
        wanted = set(rows.logit_rows.tolist())
        logits = []
        for segment in rows.segments:
            for row in range(segment.row_start, segment.row_stop):
                if row in wanted:
                    text = _text(segment, row, cache)
                    logits.append(torch.as_tensor(self._table(text), dtype=self._dtype))
        return ModelOutput(torch.stack(logits), None)


def _column(positions: Tensor) -> Tensor:
    return positions[None, :, None]


def _text(segment: Segment, row: int, cache: SlotCache) -> tuple[int, ...]:
    """Return the tokens that a row sees, in the order of their positions."""
    view = cache.layer(0)
    slots = slice(segment.slot_start, segment.slot_stop)
    tokens, positions = view.keys[0, slots, 0], view.values[0, slots, 0]
    visible = segment.sees(None)
    if visible is not None:
        shown = visible[row - segment.row_start]
        tokens, positions = tokens[shown], positions[shown]
    order = positions.argsort()
    assert positions[order].tolist() == list(range(len(order))), "holes in the text"
    return tuple(tokens[order].tolist())
