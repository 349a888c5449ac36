"""The best acceptance probability that any rule can have at one node.

A rule that keeps the target's law p, and whose K drafts follow a known joint law,
accepts one of them with a probability of at most

    1 + min over token sets H of p(H) - P(all drafts lie in H)

and an optimal transport of the drafts to p attains it (2502.18779, 2511.15898). That is
the minimum of p(H) + P(some draft lies outside of H), which is what is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from treespec.acceptance.base import draft_law
from treespec.errors import TreespecError, require_integer, unknown_name
from treespec.siblings import PAIR
from treespec.tree import HostTree, TokenTree
from treespec.types import ProposalKind

_CHUNK = 1 << 18
"""Most numbers in one matrix of a quadrature."""


def optimal_acceptance(
    target_probs: Tensor, draft_probs: Tensor, num_drafts: int, proposal: ProposalKind
) -> float:
    """Return the best probability of accepting one of a node's children.

    Rules that look at a whole path before they decide (block, traversal) are bound by
    it at depth 1 only.

    Args:
        target_probs: The target's law at the node, of any mass.  # [V]
        draft_probs: The law that the children were drawn from, of any mass.  # [V]
        num_drafts: K, how many children were drawn; with more than there are tokens
            of positive probability, all of these were.
        proposal: How they were drawn. ``deterministic`` children do not follow from
            ``draft_probs``: for them the optimum is the target's mass of the set.

    Raises:
        TreespecError: The proposal is ``deterministic`` or none, there is no draft, a
            law is empty, or the two are not over the same tokens.
    """
    require_integer("num_drafts", num_drafts, 1)
    if proposal not in list(ProposalKind):
        raise unknown_name("proposal", str(proposal), ProposalKind)
    for name, law in (("target_probs", target_probs), ("draft_probs", draft_probs)):
        if not isinstance(law, Tensor) or law.dim() != 1:
            raise TreespecError(f"{name} must be a tensor of shape [V], got {law!r}")
        if not bool(law.sum() > 0):
            raise TreespecError(f"{name} must be a law, but its mass is not above 0")
    if target_probs.shape != draft_probs.shape:
        raise TreespecError(
            "target_probs and draft_probs must be laws over the same tokens, got "
            f"{target_probs.shape[0]} and {draft_probs.shape[0]}"
        )
    target, draft = _normalised(target_probs), _normalised(draft_probs)
    match proposal:
        case ProposalKind.DETERMINISTIC:
            raise TreespecError(
                "proposal must be one whose children are drawn from draft_probs, got "
                "'deterministic'; its optimum is the sum of target_probs over the "
                "different children"
            )
        case _ if num_drafts == 1:
            optimum = torch.minimum(target, draft).sum()
        case ProposalKind.WITH_REPLACEMENT:
            optimum = _with_replacement(target, draft, num_drafts)
        case ProposalKind.WITHOUT_REPLACEMENT:
            optimum = _without_replacement(target, draft, num_drafts)
        case ProposalKind.GREEDY_PLUS_RANDOM:
            num_likeliest = min(num_drafts, draft.shape[0]) - 1
            # Ties must fall as they fell when the children were drawn.
            likeliest = draft_probs.topk(num_likeliest).indices
            optimum = _certain_plus_random(target, draft, likeliest)
        case ProposalKind.ARGMAX_PAIR:
            if num_drafts > PAIR:
                raise TreespecError(
                    f"num_drafts of {proposal} is at most {PAIR}, got {num_drafts}; "
                    "use greedy_plus_random for more"
                )
            likeliest = draft_probs.argmax(dim=-1, keepdim=True)
            optimum = _certain_plus_random(target, draft, likeliest)
    return min(1.0, float(optimum))


def optimal_node_acceptance(
    tree: TokenTree, host: HostTree, node: int, target_probs: Tensor
) -> float:
    """Return the best probability of accepting one of the children of a tree's node.

    Of deterministic children it is the target's mass of the different ones.

    Args:
        tree: The drafted tree.
        host: Its structure.
        node: A node that has children.
        target_probs: The target's law there.  # [V]
    """
    tokens = [host.tokens[child] for child in host.children()[node]]
    if tree.proposal is ProposalKind.DETERMINISTIC:
        return min(1.0, float(target_probs[sorted(set(tokens))].sum()))
    draft_probs = draft_law(tree, host, node)
    return optimal_acceptance(target_probs, draft_probs, len(tokens), tree.proposal)


def _normalised(law: Tensor) -> Tensor:
    return law.double() / law.double().sum()


def _with_replacement(target: Tensor, draft: Tensor, num_drafts: int) -> Tensor:
    """The optimum for independent draws: all lie in H with probability q(H)^K."""
    target, draft = _by_ratio(target, draft)
    # log1p keeps the digits of what lies outside where almost everything is inside.
    some_outside = -torch.expm1(num_drafts * torch.log1p(-_mass_after(draft)))
    return _least(target, some_outside)


def _without_replacement(target: Tensor, draft: Tensor, num_drafts: int) -> Tensor:
    """The optimum for successive draws of different tokens."""
    target, draft = _by_ratio(target, draft)
    if num_drafts >= draft.shape[0]:
        return target.sum()
    return _least(target, _some_draw_outside(draft, num_drafts))


def _certain_plus_random(target: Tensor, draft: Tensor, certain: Tensor) -> Tensor:
    """The optimum for a fixed set and one draw from the others (2502.18779).

    Args:
        target: The target's law.  # [V]
        draft: The law of which the others' share is drawn from.  # [V]
        certain: The tokens of the set.  # [C]
    """
    others = draft.scatter(-1, certain, 0.0)
    mass = others.sum()
    drawn = torch.where(mass > 0, others / mass, 0.0)
    # Where the law ran out early, the set holds tokens that were never drafted.
    drafted = certain[draft[certain] > 0]
    rest = target.scatter(-1, certain, 0.0)
    return target[drafted].sum() + torch.minimum(rest, drawn).sum()


def _by_ratio(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """Return both laws where a draft may fall, tokens in ascending order of p/q.

    For both ways of drawing the best set H is one of the prefixes.
    """
    support = draft > 0
    target, draft = target[support], draft[support]
    order = (target / draft).argsort()
    return target[order], draft[order]


def _least(target: Tensor, some_outside: Tensor) -> Tensor:
    """Return the least p(H) + P(some draft lies outside of H) over all prefixes H.

    Args:
        target: p, in the order of the prefixes.  # [S]
        some_outside: The probability for the prefix of each length.  # [S + 1]
    """
    return (_sums_before(target) + some_outside).amin()


def _sums_before(values: Tensor) -> Tensor:  # [..., S] -> [..., S + 1]
    """Return the sum of the first 0, 1, ... S values."""
    return F.pad(values.cumsum(dim=-1), (1, 0))


def _mass_after(law: Tensor) -> Tensor:  # [S] -> [S + 1]
    """Return the mass that lies outside of each prefix; at most 1."""
    return _sums_before(law.flip(-1)).flip(-1).clamp(max=1.0)


def _some_draw_outside(law: Tensor, num_draws: int) -> Tensor:  # [S] -> [S + 1]
    """Return for each prefix H the probability that not all K draws lie in it.

    Successive draws are the order in which exponential clocks of rates q ring. Let T
    be the first ring outside of H, which has the rate r = 1 - q(H): some draw lies
    outside iff fewer than K clocks of H ring before T. Of these, j have rung by t with
    probability exp(-q(H) t) e_j, where e_j is the j-th elementary symmetric polynomial
    of exp(q_i t) - 1 over i in H. So the probability is

        r * integral over t of exp(-t) (e_0 + ... + e_(K-1)),

    and a polynomial for all prefixes is a cumulated sum. The K-1 likeliest clocks ring
    long before the others, perhaps so early that their factors overflow: they enter as
    1 + (exp(q t) - 1) z, times exp(-q t), apart from the others.
    """
    heavy = law.topk(num_draws - 1).indices.sort().values
    light = law.scatter(-1, heavy, 0.0)
    mass = light.sum()
    integral = law.new_zeros(num_draws, law.shape[0] + 1)
    for times, weights in _quadrature(mass, num_draws, _CHUNK // law.shape[0]):
        at_most = _at_most_rung(law[heavy], times) * weights  # [K, K, M]
        rung = torch.expm1(light * times[:, None])  # [M, S]
        polynomial = torch.exp(-mass * times)[:, None].expand_as(rung)
        integral += at_most[:, -1] @ polynomial[:, :1]
        terms = law.new_zeros(num_draws, law.shape[0])
        for degree in range(1, num_draws):
            increments = rung * polynomial
            terms += at_most[:, num_draws - 1 - degree] @ increments
            if degree < num_draws - 1:
                polynomial = _sums_before(increments)[:, :-1]
        integral += _sums_before(terms)
    places = torch.arange(law.shape[0] + 1, device=law.device)
    num_heavy = torch.searchsorted(heavy, places)  # in each prefix
    return _mass_after(law) * integral.gather(0, num_heavy[None])[0]


def _at_most_rung(rates: Tensor, times: Tensor) -> Tensor:
    """Return the probability that few clocks of a set have rung, and no others.

    Args:
        rates: Rates of K-1 clocks.  # [K - 1]
        times: When to look.  # [M]

    Returns:
        For the first s clocks and a number a: at most a of them have rung by then,
        and none of the clocks after them.  # [K, K, M] over s, a, m
    """
    silent = torch.exp(-rates[:, None] * times)  # [K - 1, M]
    num_clocks = rates.shape[0]
    exactly = times.new_zeros(num_clocks + 1, num_clocks + 1, times.shape[0])
    exactly[0, 0] = 1.0
    for s in range(num_clocks):
        exactly[s + 1] = exactly[s] * silent[s]
        exactly[s + 1, 1:] += exactly[s, :-1] * (1 - silent[s])
    for s in range(num_clocks):
        exactly[s] *= silent[s:].prod(dim=0)
    return exactly.cumsum(dim=1)


def _quadrature(
    mass: Tensor, num_draws: int, chunk: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield times and weights for integrals over t in [0, inf), a few at a time.

    Trapezoids in x, where t = exp(x - exp(-x)). The integrands are analytic for all t
    of positive real part, whatever the scales of a law, so that the error falls like
    exp(-pi^2 / width); K draws multiply it by about (2 pi / width)^(K-1) / (K-1)!.

    Args:
        mass: What the law has without its K-1 likeliest tokens. The K-th ring comes no
            later than the K-th event of a Poisson process of this rate, which bounds
            the times that matter.
        num_draws: K.
        chunk: How many at a time, at least one.
    """
    width = 1 / (3.6 + 0.2 * num_draws)
    last = math.log((40 + 4 * num_draws) / float(mass))
    x = torch.arange(-3.5, last, width, dtype=mass.dtype, device=mass.device)
    times = torch.exp(x - torch.exp(-x))
    weights = width * times * (1 + torch.exp(-x))
    size = max(chunk, 1)
    for start in range(0, x.shape[0], size):
        yield times[start : start + size], weights[start : start + size]
