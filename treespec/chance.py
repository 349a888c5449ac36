"""From a law to a token: every draw of the package, and where its luck comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

NO_TOKEN = -1
"""Stands where a law had no token left to draw."""


class AbstractChance(ABC):
    """The only three ways in which a request may be lucky.

    Drafting and acceptance take all their randomness from here, so that a test can put
    in its place an object that tries every outcome and adds up their exact weights.
    """

    @abstractmethod
    def accepts(self, probability: Tensor | float) -> bool:
        """Return true with the given probability; above 1 means 1.

        Waits for the device of a tensor.

        Args:
            probability: A scalar.  # []
        """

    @abstractmethod
    def draw(self, probs: Tensor) -> Tensor:
        """Draw one token per row, independently, without waiting for the device.

        Args:
            probs: Laws; each has some mass.  # [..., V]

        Returns:
            Token ids.  # [...] int64
        """

    @abstractmethod
    def draw_without_replacement(self, probs: Tensor, num_draws: int) -> Tensor:
        """Draw different tokens per row, one after the other, in the order drawn.

        Each draw is from the row's law without the tokens drawn before, renormalised.

        Args:
            probs: Laws, of any mass; a row may be empty.  # [R, V]
            num_draws: K, how many tokens per row.

        Returns:
            Token ids, ``NO_TOKEN`` where the law had run out.  # [R, K] int64
        """


@dataclass(frozen=True, slots=True)
class GeneratorChance(AbstractChance):
    """The randomness of one request, from its own generator.

    Attributes:
        generator: Advances with every call; lives on any device.
    """

    generator: torch.Generator

    def accepts(self, probability: Tensor | float) -> bool:
        """Return true with the given probability: never at 0, always at 1."""
        return float(uniforms((), self.generator)) < float(probability)

    def draw(self, probs: Tensor) -> Tensor:
        """Draw one token per row; see the function ``draw``."""
        return draw(probs, self.generator)

    def draw_without_replacement(self, probs: Tensor, num_draws: int) -> Tensor:
        """Draw different tokens; see the function ``draw_without_replacement``."""
        return draw_without_replacement(probs, num_draws, self.generator)


def draw(probs: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one token per row from a single uniform, without a device sync.

    The uniform is looked up in the cumulated law, both float64: among 150,000 tokens
    float32 would round the small ones away. A token of probability 0 is never drawn.

    Args:
        probs: Laws; each has some mass.  # [..., V]
        generator: Advances by one uniform per row.

    Returns:
        Token ids.  # [...] int64
    """
    marks = uniforms((*probs.shape[:-1], 1), generator).to(probs.device)
    return look_up(probs, marks)[..., 0]


def look_up(probs: Tensor, marks: Tensor) -> Tensor:  # [..., V], [..., M] -> [..., M]
    """Return the tokens in whose stretch of the cumulated law the marks in [0, 1) are.

    A token's stretch is from the mass of all tokens before it, included, to that mass
    plus its own, excluded.
    """
    cumulated = probs.double().cumsum(dim=-1)
    total = cumulated[..., -1:]
    # Rounding must not carry a mark to the end, where no token is.
    before_end = torch.nextafter(total, torch.zeros_like(total))
    marks = torch.minimum(marks * total, before_end)
    tokens = torch.searchsorted(cumulated, marks, right=True)
    return tokens.clamp(max=probs.shape[-1] - 1)  # a law of NaN has no place for a mark


def draw_without_replacement(
    probs: Tensor, num_draws: int, generator: torch.Generator
) -> Tensor:
    """Draw different tokens by a race of exponential clocks, without a device sync.

    The order in which the clocks ring is the order of successive draws; it is that of
    the Gumbel-top-k trick (1903.06059). Clocks are float64, because the first of
    150,000 rings so early that float32 would round it.

    Args:
        probs: Laws, of any mass; a row may be empty.  # [R, V]
        num_draws: K, how many tokens per row.
        generator: Advances by one uniform per probability.

    Returns:
        Token ids, ``NO_TOKEN`` where the law had run out.  # [R, K] int64
    """
    drawn = uniforms(probs.shape, generator)
    smallest = torch.finfo(drawn.dtype).tiny  # log(0) would stop every clock
    clocks = drawn.clamp_(min=smallest).log_().neg_().to(probs.device)
    first = (probs / clocks).topk(min(num_draws, probs.shape[-1]), dim=-1)
    tokens = first.indices.masked_fill(first.values <= 0, NO_TOKEN)
    return F.pad(tokens, (0, num_draws - tokens.shape[-1]), value=NO_TOKEN)


def uniforms(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return float64 uniforms in [0, 1) on the generator's device."""
    return torch.rand(
        tuple(shape),
        generator=generator,
        dtype=torch.float64,
        device=generator.device,
    )
