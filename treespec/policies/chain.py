"""One guess after the other: the classic of speculative decoding."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from treespec.errors import TreespecError, require_number
from treespec.policies.base import AbstractDraftPolicy, Growth, as_layer, drawn_layer
from treespec.tree import Layer, path_logprobs
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class Chain(AbstractDraftPolicy):
    """Drafts a line of likeliest tokens; its length is the budget's depth.

    Attributes:
        min_confidence: Stop once the probability of the whole line is below this; the
            token that brought it there is kept. 0 never stops. Waits for the device
            once per token if it is above 0.
    """

    proposal = ProposalKind.DETERMINISTIC
    max_children = 1

    min_confidence: float = 0.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        _require_probability(self.min_confidence)

    def grow(self, growth: Growth) -> Layer | None:
        """Return the likeliest child of the last node."""
        layer = as_layer(growth, growth.draft.top(1))
        return _stopped(growth, layer, self.min_confidence)


@dataclass(frozen=True, slots=True)
class SampledChain(AbstractDraftPolicy):
    """Drafts a line of tokens drawn from the draft's law (2211.17192, 2302.01318).

    Attributes:
        min_confidence: As of ``Chain``. The token that was drawn last is kept, however
            unlikely: to drop it for that would bias the output.
    """

    proposal = ProposalKind.WITH_REPLACEMENT
    max_children = 1

    min_confidence: float = 0.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        _require_probability(self.min_confidence)

    def grow(self, growth: Growth) -> Layer | None:
        """Return a child of the last node, drawn from the draft's law."""
        layer = drawn_layer(growth, self.proposal, 1)
        return _stopped(growth, layer, self.min_confidence)


def _require_probability(min_confidence: float) -> None:
    require_number("policy.min_confidence", min_confidence)
    if not 0 <= min_confidence <= 1:
        raise TreespecError(
            f"policy.min_confidence must be in [0, 1], got {min_confidence}; 0 turns "
            "it off"
        )


def _stopped(
    growth: Growth, layer: Layer | None, min_confidence: float
) -> Layer | None:
    """Return the layer, not to be expanded if its path has become too unlikely."""
    if layer is None or not min_confidence:
        return layer
    paths = path_logprobs(growth.tree)[layer.parents] + layer.draft_logprobs
    is_sure = paths >= math.log(min_confidence)
    return replace(layer, expand=growth.tree.size + is_sure.nonzero().flatten())
