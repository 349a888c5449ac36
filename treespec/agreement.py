"""How well does the draft model follow the target on a text? One forward of each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.models.base import AbstractLanguageModel
from treespec.rereading import Reader
from treespec.sampling import Sampling
from treespec.walk import Written

_ROWS = 64
"""Rows of logits that become laws at once: bounds the memory."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Both models on one text, a number per written token.

    Attributes:
        acceptance: Probability that the draft's token is accepted in its place: the
            overlap of both laws under the sampling; at temperature 0 whether the
            likeliest tokens are the same.  # [W]
        draft_entropy: Bits of the draft's own law, without temperature.  # [W]
        target_entropy: Bits of the target's own law.  # [W]
        is_target_choice: Whether the token is the one that the target finds likeliest.
            Where few are, the target would have written another text.  # [W]
    """

    acceptance: tuple[float, ...]
    draft_entropy: tuple[float, ...]
    target_entropy: tuple[float, ...]
    is_target_choice: tuple[bool, ...]


def read_both(
    target: AbstractLanguageModel,
    draft: AbstractLanguageModel,
    written: Written,
    sampling: Sampling,
) -> Agreement:
    """Let both models read a text, and compare their laws for every written token.

    Args:
        target: The target.
        draft: The draft model.
        written: The text; at least one token stands before the written ones.
        sampling: How tokens are chosen.
    """
    first, last = written.start - 1, len(written.tokens) - 2
    assert first >= 0, "a model needs a token to read before it can say anything"
    wanted, drafted = (
        Reader(model, sampling, written.tokens).logits(first, last)
        for model in (target, draft)
    )
    text = torch.tensor(written.tokens[written.start :])
    parts = [
        _compared(wanted[rows], drafted[rows], text[rows], sampling)
        for first_row in range(0, len(text), _ROWS)
        for rows in [slice(first_row, first_row + _ROWS)]
    ]
    columns = torch.cat(parts, dim=1).tolist()
    acceptance, draft_entropy, target_entropy, is_choice = map(tuple, columns)
    chosen = tuple(bool(value) for value in is_choice)
    return Agreement(acceptance, draft_entropy, target_entropy, chosen)


def _compared(
    wanted: Tensor, drafted: Tensor, text: Tensor, sampling: Sampling
) -> Tensor:  # [4, R]
    width = min(wanted.shape[-1], drafted.shape[-1])
    laws = [sampling.probs(rows.cpu())[:, :width] for rows in (wanted, drafted)]
    overlap = torch.minimum(*laws).sum(dim=-1)
    is_choice = wanted.cpu().argmax(dim=-1) == text
    columns = (overlap, _entropy(drafted), _entropy(wanted), is_choice)
    return torch.stack([column.double() for column in columns])


def _entropy(logits: Tensor) -> Tensor:  # [R, V] -> [R]
    logprobs = logits.cpu().float().log_softmax(dim=-1)
    return -(logprobs.exp() * logprobs).nansum(dim=-1) / math.log(2)
