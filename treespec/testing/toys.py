"""Toy models: functions from the text so far to next-token logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from treespec.models.table import TableModel

Text = tuple[int, ...]
Model = Callable[[Text], Tensor]
"""From the token ids so far to the next-token logits, float64.  # -> [V]"""


def random_model(vocab_size: int, seed: int, spread: float = 1.5) -> Model:
    """Return a model with unrelated random logits after every text."""

    @cache
    def logits(text: Text) -> Tensor:
        number = seed
        for token in text:
            number = (number * 1_000_003 + token + 1) % (1 << 61)
        generator = torch.Generator().manual_seed(number)
        return spread * torch.randn(vocab_size, generator=generator).double()

    return logits


def constant_model(*probs: float) -> Model:
    """Return a model with one law after every text."""
    logits = torch.tensor(probs, dtype=torch.float64).log()
    return lambda text: logits


def single(model: Model) -> Model:
    """Return a model with its logits in float32, as real targets and drafts have."""
    return lambda text: model(text).float()


def table_model(model: Model, vocab_size: int) -> TableModel:
    """Return the toy as a language model that a decoder can run."""
    return TableModel(lambda text: model(text).tolist(), vocab_size)
