"""Does a chain pay? The article's closed form, (gamma D + T) / m.

gamma draft forwards of D seconds and one target forward of T seconds commit m tokens;
speculation pays if that is less than T per token. With tokens accepted independently
at a rate alpha, m = (1 - alpha^(gamma + 1)) / (1 - alpha) (2211.17192).
"""

from __future__ import annotations

import math

from treespec.costs import Costs
from treespec.errors import TreespecError, require_integer

_HALVINGS = 60


def tokens_per_forward(alpha: float, gamma: int) -> float:
    """Return m, the tokens that a step commits on average.

    Args:
        alpha: Rate at which a drafted token is accepted, in [0, 1].
        gamma: Tokens of the chain, at least 1.

    Raises:
        TreespecError: A number is out of bounds.
    """
    _require_gamma(gamma)
    if not 0 <= alpha <= 1:
        raise TreespecError(f"alpha must be in [0, 1], got {alpha!r}")
    return math.fsum(alpha**depth for depth in range(gamma + 1))


def token_s(costs: Costs, gamma: int, num_tokens: float, length: int = 0) -> float:
    """Return (gamma D + T) / m, the seconds per token of a chain.

    Args:
        costs: Where D and T come from: one row per draft forward, the chain and its
            root in the target's.
        gamma: Tokens of the chain, at least 1.
        num_tokens: m, tokens per target forward, at least 1.
        length: Committed tokens before the chain.

    Raises:
        TreespecError: A number is out of bounds.
    """
    if not 1 <= num_tokens < math.inf:
        raise TreespecError(f"num_tokens must be a number >= 1, got {num_tokens!r}")
    return _step_s(costs, gamma, length) / num_tokens


def break_even_tokens(costs: Costs, gamma: int, length: int = 0) -> float:
    """Return the m at which a chain is as fast as plain decoding.

    Above gamma + 1 no acceptance reaches it.

    Raises:
        TreespecError: gamma is below 1.
    """
    return _step_s(costs, gamma, length) / costs.target(1, length)


def break_even_acceptance(costs: Costs, gamma: int, length: int = 0) -> float | None:
    """Return the acceptance rate at which a chain is as fast as plain decoding.

    Returns:
        The rate, 0 if the chain costs nothing; ``None`` if it does not pay even when
        every token is accepted.

    Raises:
        TreespecError: gamma is below 1.
    """
    return acceptance_for(break_even_tokens(costs, gamma, length), gamma)


def acceptance_for(num_tokens: float, gamma: int) -> float | None:
    """Return the acceptance rate at which a chain commits so many tokens per forward.

    Args:
        num_tokens: m, tokens per target forward.
        gamma: Tokens of the chain, at least 1.

    Returns:
        The rate, 0 if one token is enough; ``None`` if gamma + 1 are too few.

    Raises:
        TreespecError: gamma is below 1.
    """
    _require_gamma(gamma)
    if num_tokens > gamma + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if tokens_per_forward(middle, gamma) < num_tokens:
            low = middle
        else:
            high = middle
    return high if num_tokens > 1 else 0.0


def _step_s(costs: Costs, gamma: int, length: int) -> float:
    _require_gamma(gamma)
    return gamma * costs.draft(1, length) + costs.target(1 + gamma, length)


def _require_gamma(gamma: int) -> None:
    require_integer("gamma", gamma, 1)
