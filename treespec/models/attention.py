"""Attention over slots: each request's rows read the slots that they may see.

The query heads of a group are folded into rows, so that grouped keys and values are
never expanded. The kernel accumulates and normalises in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from treespec.models.base import ForwardRows

_MOST_ROWS_ALONE = 64
"""Rows of a request up to which exact attention goes row by row; more are a prefill,
which plain decoding does alike."""


@dataclass(slots=True)
class AttentionCall:
    """What attention needs of the forward it belongs to.

    Attributes:
        rows: The forward's rows.
        windows: Sliding window per layer, ``None`` for full attention.
        alone: Whether every row attends by itself.
        layers: The layers that have attended, in order.
    """

    rows: ForwardRows
    windows: tuple[int | None, ...]
    alone: bool
    layers: list[int] = field(default_factory=list)


def attend(
    call: AttentionCall,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attend, request by request, to the slots that its rows may see.

    Args:
        call: The forward's rows and the layers' windows.
        layer: Which layer this is.
        query: Queries of all rows.  # [1, Hq, T, D]
        key: The pool's keys.  # [1, H, S, D]
        value: The pool's values.  # [1, H, S, Dv]
        scaling: Factor on the scores; ``None`` for 1 / sqrt(D).
        softcap: Bound of a tanh on the scores, if the model has one.

    Returns:
        Attention output.  # [1, Hq, T, Dv]
    """
    call.layers.append(layer)
    window = call.windows[layer]
    num_heads, head_dim = query.shape[1], query.shape[3]
    groups = num_heads // key.shape[1]
    outputs = []
    for segment in call.rows.segments:
        rows = slice(segment.row_start, segment.row_stop)
        slots = slice(segment.slot_start, segment.slot_stop)
        seen = key[:, :, slots], value[:, :, slots]
        by_row = call.alone and segment.num_rows <= _MOST_ROWS_ALONE
        if by_row and segment.visible is not None and softcap is None:
            lines = segment.lines(window)
            outputs.append(_row_by_row(query[:, :, rows], *seen, lines, scaling))
            continue
        folded = query[:, :, rows].reshape(
            1, key.shape[1], groups * segment.num_rows, head_dim
        )
        bias = segment.bias(window, groups, query.dtype)
        if softcap is None:
            output = F.scaled_dot_product_attention(
                folded, *seen, attn_mask=bias, scale=scaling
            )
        else:
            output = _capped(folded, *seen, bias, scaling, softcap)
        outputs.append(output.reshape(1, num_heads, segment.num_rows, -1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def _row_by_row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lines: list[Tensor],
    scale: float | None,
) -> Tensor:  # [1, Hq, R, Dv]
    """Attend row by row to slots in the order of the text, as plain decoding does.

    Sums in one order give the same bits whatever slots a text lies in and whatever
    else is in the forward.
    """
    heads = query.shape[1], key.shape[1]
    outputs = []
    for row, line in enumerate(lines):
        folded = query[:, :, row].reshape(1, heads[1], heads[0] // heads[1], -1)
        output = F.scaled_dot_product_attention(
            folded, key.index_select(2, line), value.index_select(2, line), scale=scale
        )
        outputs.append(output.reshape(1, heads[0], 1, -1))
    return torch.cat(outputs, dim=2)


def _capped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    scale: float | None,
    softcap: float,
) -> Tensor:
    """Attend with soft-capped scores, which no fused kernel computes (2408.00118)."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query @ key.transpose(-1, -2)).float() * scale
    scores = torch.tanh(scores / softcap) * softcap
    if attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(dim=-1).to(value.dtype) @ value
