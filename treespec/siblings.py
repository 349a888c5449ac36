"""How the children of a node are drawn, for every kind of sampled proposal.

A kind is a joint law of the K children of a node, given the draft's law there. Draft
policies draw from it; acceptance rules are lossless for it, and for no other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treespec.chance import NO_TOKEN, AbstractChance
from treespec.errors import TreespecError
from treespec.types import ProposalKind

PAIR = 2
"""Children of a node whose kind is ``argmax_pair``."""


def draw_siblings(
    proposal: ProposalKind, laws: Tensor, num_children: int, chance: AbstractChance
) -> Tensor:
    """Draw the children of R nodes, in draw order.

    One child is a draw from the law, whatever the kind. Where a law has too few tokens
    for K different children there are fewer: what is then drawn has the joint law of
    that smaller number.

    Args:
        proposal: The kind; not ``deterministic``, which is not drawn.
        laws: The draft's law at every node; none is empty.  # [R, V]
        num_children: K; at most 2 for ``argmax_pair``.
        chance: Where all randomness comes from.

    Returns:
        Token ids, ``NO_TOKEN`` where there is none.  # [R, K]
    """
    match proposal:
        case ProposalKind.WITH_REPLACEMENT:
            draws = [chance.draw(laws) for _ in range(num_children)]
            return torch.stack(draws, dim=-1)
        case ProposalKind.WITHOUT_REPLACEMENT:
            return chance.draw_without_replacement(laws, num_children)
        case ProposalKind.GREEDY_PLUS_RANDOM:
            return _greedy_plus_random(laws, num_children, chance)
        case ProposalKind.ARGMAX_PAIR:
            assert num_children <= PAIR
            return _argmax_pair(laws, num_children, chance)
        case ProposalKind.DETERMINISTIC:
            raise TreespecError(
                "deterministic children are not drawn; use one of "
                "with_replacement, without_replacement, greedy_plus_random, argmax_pair"
            )


def _greedy_plus_random(
    laws: Tensor, num_children: int, chance: AbstractChance
) -> Tensor:
    """The K-1 likeliest tokens, then one draw from the others (2502.18779)."""
    num_likeliest = min(num_children, laws.shape[-1]) - 1
    likeliest = laws.topk(num_likeliest, dim=-1)
    tokens = likeliest.indices.masked_fill(likeliest.values <= 0, NO_TOKEN)
    others = laws.scatter(-1, likeliest.indices, 0.0)
    num_drawn = num_children - num_likeliest  # more than 1 in a tiny vocabulary only
    drawn = chance.draw_without_replacement(others, num_drawn)
    return torch.cat((tokens, drawn), dim=-1)


def _argmax_pair(laws: Tensor, num_children: int, chance: AbstractChance) -> Tensor:
    """A draw and the likeliest token, or that one and a draw of the others."""
    first = chance.draw(laws)[:, None]
    if num_children < PAIR:
        return first
    likeliest = laws.argmax(dim=-1, keepdim=True)
    others = laws.scatter(-1, likeliest, 0.0)
    second = chance.draw_without_replacement(others, 1)
    second = torch.where(first == likeliest, second, likeliest)
    return torch.cat((first, second), dim=-1)
