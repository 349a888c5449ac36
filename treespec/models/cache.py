"""The pool of key/value slots, and the regions that requests own in it.

One slot holds the keys and values of one token in every layer. A request owns a
contiguous *region*, a view and never a gather, sized when it is admitted. Committing
a path is bookkeeping: nothing is copied, because attention does not care about slot
order, keys carry their rotation, and the mask hides the holes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

UNSEEN = 2**40
"""Position of a slot that holds no committed token: later than every row."""


@dataclass(slots=True)
class Region:
    """The slots of one request: ``start <= slot < stop``.

    The lowest free slot is always taken first, so the live part stays short.

    Attributes:
        start: First slot.
        stop: One past the last slot.
        high: One past the highest live slot.
        holes: Free slots below ``high``, ascending.
    """

    start: int
    stop: int
    high: int = field(init=False)
    holes: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Begin empty."""
        self.high = self.start

    @property
    def num_live(self) -> int:
        """Number of slots in use."""
        return self.high - self.start - len(self.holes)

    @property
    def num_free(self) -> int:
        """Number of slots not in use."""
        return self.stop - self.start - self.num_live

    def take(self, count: int) -> list[int]:
        """Return the ``count`` lowest free slots and mark them live."""
        assert count <= self.num_free, f"region of {self.stop - self.start} is full"
        slots, self.holes = self.holes[:count], self.holes[count:]
        rest = count - len(slots)
        slots.extend(range(self.high, self.high + rest))
        self.high += rest
        return slots

    def give_back(self, slots: Sequence[int]) -> None:
        """Mark live slots free."""
        for slot in slots:
            insort(self.holes, slot)
        while self.holes and self.holes[-1] == self.high - 1:
            self.holes.pop()
            self.high -= 1


class SlotCache:
    """A preallocated pool of key/value slots, one per token, in every layer.

    Attributes:
        capacity: Number of slots.
        positions: Position of the committed token in each slot, or ``UNSEEN``. # [S]
        keys: Keys per layer, allocated at the layer's first write.  # [H, S, D]
        values: Values per layer.  # [H, S, D]
    """

    def __init__(self, num_layers: int, capacity: int, device: torch.device) -> None:
        """Make an empty pool.

        Args:
            num_layers: Layers of the model.
            capacity: Number of slots.
            device: Where keys and values live.
        """
        self.capacity = capacity
        self.positions = torch.full((capacity,), UNSEEN, device=device)
        self.keys: list[Tensor | None] = [None] * num_layers
        self.values: list[Tensor | None] = [None] * num_layers
        self._regions: list[Region] = []

    @property
    def num_live(self) -> int:
        """Number of slots that hold a token."""
        return sum(region.num_live for region in self._regions)

    @property
    def num_free(self) -> int:
        """Number of slots that hold nothing, in regions and outside of them."""
        owned = sum(region.stop - region.start for region in self._regions)
        free = sum(region.num_free for region in self._regions)
        return self.capacity - owned + free

    def admit(self, size: int) -> Region | None:
        """Return a new region of ``size`` slots, or ``None`` if there is no room."""
        start = 0
        for index, region in enumerate([*self._regions, None]):
            stop = self.capacity if region is None else region.start
            if stop - start >= size:
                fresh = Region(start, start + size)
                self._regions.insert(index, fresh)
                return fresh
            if region is not None:
                start = region.stop
        return None

    def release(self, region: Region) -> None:
        """Give a region back to the pool."""
        self._regions.remove(region)
        self.positions[region.start : region.stop] = UNSEEN

    def place(self, slots: Sequence[int], positions: Sequence[int]) -> None:
        """Note that ``slots`` hold the committed tokens at ``positions``."""
        device = self.positions.device
        self.positions[torch.tensor(slots, device=device)] = torch.tensor(
            positions, device=device
        )

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values of new rows.

        Args:
            layer: Layer index.
            slots: Where the rows go.  # [T]
            keys: Keys.  # [H, T, D]
            values: Values.  # [H, T, D]
        """
        # Zeros, not empty: an unseen slot is multiplied by 0, and 0 * NaN is NaN.
        for pool, rows in ((self.keys, keys), (self.values, values)):
            stored = pool[layer]
            if stored is None:
                stored = rows.new_zeros(rows.shape[0], self.capacity, rows.shape[2])
                pool[layer] = stored
            stored.index_copy_(1, slots, rows)

    def layer(self, index: int) -> LayerView:
        """Return the stored keys and values of a layer that was written to."""
        keys, values = self.keys[index], self.values[index]
        assert keys is not None, f"layer {index} was never written"
        assert values is not None
        return LayerView(keys, values)


@dataclass(frozen=True, slots=True)
class LayerView:
    """The pool's keys and values in one layer.

    Attributes:
        keys: Keys.  # [H, S, D]
        values: Values.  # [H, S, D]
    """

    keys: Tensor
    values: Tensor
