"""How close was the call? The least numerical noise that explains a chosen token.

*Noise* of size d means that every logit may be off by up to d, each by itself. The
*margin* of a token is twice the least noise under which it could have been chosen, so
that a token is within noise d where its margin is at most 2 d. It is in logits at any
temperature:

- Greedy, it is the best logit minus the token's: both may move.
- Sampled, a draw looks its uniform u up in the cumulated law. Under noise d the mass C
  before or after a token moves by at most 2 d / T in log-odds, log(C / (1 - C)): the
  extreme is all logits before it up, all after it down. The token could have been
  chosen if its stretch can reach u so.
- Top-k and top-p cut by a least logit. Under noise d a token that is within 2 d of
  being cut is *unsure*, and top-p itself may lie anywhere within 2 d / T of its
  log-odds. Unsure tokens count on whichever side helps the token in question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treespec.outcome import FAR
from treespec.sampling import Sampling

_LEAST, _MOST = -40.0, 10.0  # powers of 2 between which noise is searched
_HALVINGS = 14


def margin(sampling: Sampling, logits: Tensor, token: int, mark: float) -> float:
    """Return how far ``token`` was from being chosen, in logits; 0 if it was.

    Args:
        sampling: How tokens are chosen.
        logits: The target's, after ``Sampling.apply_history``.  # [V]
        token: The token in question.
        mark: The uniform of the draw; not read at temperature 0.
    """
    if sampling.greedy:
        return min(float(logits.max() - logits[token]), FAR)
    if explains(sampling, logits, token, mark, 0.0):
        return 0.0
    low, high = _LEAST, _MOST
    if not explains(sampling, logits, token, mark, 2.0**high):
        return FAR
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if explains(sampling, logits, token, mark, 2.0**middle):
            high = middle
        else:
            low = middle
    return float(2.0 ** (high + 1))


def explains(
    sampling: Sampling, logits: Tensor, token: int, mark: float, noise: float
) -> bool:
    """Return whether ``token`` could be drawn if logits are off by up to ``noise``."""
    kept = _kept(sampling, logits, noise)
    if not kept.perhaps[token]:
        return False
    law = replace(sampling, top_k=0, top_p=1.0).probs(logits).double()
    perhaps, surely = law * kept.perhaps, law * kept.surely
    # Log-odds that move by 2 d / T are one side's mass shrunk by this factor.
    shrink = math.exp(-2 * noise / sampling.temperature)
    before, rest = shrink * surely[:token].sum(), perhaps[token:].sum()
    until, after = perhaps[: token + 1].sum(), shrink * surely[token + 1 :].sum()
    starts_by_then = before <= mark * (before + rest)
    ends_later = mark * (until + after) < until
    return bool(starts_by_then & ends_later)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Which tokens top-k and top-p keep under noise.

    Attributes:
        surely: Kept whatever the noise does.  # [V] bool
        perhaps: Kept under some noise.  # [V] bool
    """

    surely: Tensor
    perhaps: Tensor


def _kept(sampling: Sampling, logits: Tensor, noise: float) -> _Kept:
    if noise == 0:
        kept = sampling.probs(logits) > 0
        return _Kept(kept, kept)
    by_k = _kept_by_top_k(sampling, logits, 2 * noise)
    return _kept_by_top_p(sampling, logits, by_k, 2 * noise)


def _kept_by_top_k(sampling: Sampling, logits: Tensor, slack: float) -> _Kept:
    everything = logits > -torch.inf
    if not 0 < sampling.top_k < logits.shape[-1]:
        return _Kept(everything, everything)
    last_in, first_out = logits.topk(sampling.top_k + 1).values[-2:].double()
    scores = logits.double()
    inside = everything & (scores >= last_in)
    return _Kept(
        surely=inside & (scores - slack > first_out),
        perhaps=everything & (scores >= last_in - slack),
    )


def _kept_by_top_p(
    sampling: Sampling, logits: Tensor, by_k: _Kept, slack: float
) -> _Kept:
    if sampling.top_p >= 1:
        return by_k
    shift, scores = slack / sampling.temperature, logits.double()
    widest = _nucleus(sampling, logits, by_k.perhaps, shift)
    narrowest = _nucleus(sampling, logits, by_k.surely, -shift)
    best_out = scores.masked_fill(narrowest, -torch.inf).max()
    return _Kept(
        surely=narrowest & (scores - slack > best_out),
        perhaps=by_k.perhaps & (scores >= scores[widest].min() - slack),
    )


def _nucleus(
    sampling: Sampling, logits: Tensor, among: Tensor, shift: float
) -> Tensor:  # [V] bool
    """Return what top-p keeps of some tokens if its own log-odds were shifted."""
    if not among.any():
        return among
    odds = math.log(sampling.top_p) - math.log1p(-sampling.top_p) + shift
    shifted = 1 / (1 + math.exp(-min(max(odds, -500.0), 500.0)))
    nucleus = replace(sampling, top_k=0, top_p=shifted)
    return nucleus.probs(logits.masked_fill(~among, -torch.inf)) > 0
