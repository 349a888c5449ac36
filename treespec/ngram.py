"""How well does a text predict itself? Bits by an n-gram model that learns as it reads.

A text that repeats itself costs few bits, and what costs few bits is cheap to guess.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from treespec.errors import TreespecError, require_integer

ORDER = 6
"""Most symbols of the context."""


@dataclass(slots=True)
class _Seen:
    """What followed one context: how often at all, and each symbol."""

    total: int = 0
    counts: dict[Hashable, int] = field(default_factory=dict)


class NgramModel:
    """Counts what followed every context, and mixes long contexts with shorter ones.

    A context that was followed n times, by d different symbols, leaves d / (n + d) to
    the context that is one symbol shorter: the estimate of Witten and Bell, method C.
    The empty context leaves it to all symbols alike. So every symbol has a probability,
    and they sum to 1.

    Attributes:
        num_symbols: Size of the alphabet.
        order: Most symbols of a context.
    """

    def __init__(self, num_symbols: int, order: int = ORDER) -> None:
        """Begin without a text."""
        require_integer("num_symbols", num_symbols, 1)
        require_integer("order", order, 0)
        self.num_symbols, self.order = num_symbols, order
        self._history: tuple[Hashable, ...] = ()
        self._contexts: dict[tuple[Hashable, ...], _Seen] = {}

    def prob(self, symbol: Hashable) -> float:
        """Return the probability that a symbol comes next."""
        prob = 1 / self.num_symbols
        for length in range(len(self._history) + 1):
            seen = self._contexts.get(self._history[len(self._history) - length :])
            if seen is None:
                break
            num_kinds = len(seen.counts)
            count = seen.counts.get(symbol, 0)
            prob = (count + num_kinds * prob) / (seen.total + num_kinds)
        return prob

    def append(self, symbol: Hashable) -> None:
        """Learn that a symbol came next."""
        for length in range(len(self._history) + 1):
            context = self._history[len(self._history) - length :]
            seen = self._contexts.setdefault(context, _Seen())
            seen.total += 1
            seen.counts[symbol] = seen.counts.get(symbol, 0) + 1
        self._history = (*self._history, symbol)[-self.order :] if self.order else ()


def ngram_bits(
    symbols: Sequence[Hashable], num_symbols: int, first: int = 0, order: int = ORDER
) -> float:
    """Return the cross-entropy of a text under an n-gram model that reads it once.

    Each symbol is guessed from those before it alone, so this is the length of a code
    that could be sent.

    Args:
        symbols: The text, as bytes or token ids.
        num_symbols: Size of their alphabet.
        first: Symbols before this place are learned from, and not counted.
        order: Most symbols of a context.

    Returns:
        Bits per symbol, at least 0.

    Raises:
        TreespecError: No symbol is left to count, or a size is out of bounds.
    """
    if not 0 <= first < len(symbols):
        raise TreespecError(
            f"first must be a place in the text, 0 to {len(symbols) - 1}, got {first}"
        )
    model = NgramModel(num_symbols, order)
    bits = 0.0
    for place, symbol in enumerate(symbols):
        if place >= first:
            bits -= math.log2(model.prob(symbol))
        model.append(symbol)
    return bits / (len(symbols) - first)
