"""Linear layers in the layout of the CPU's own kernels.

On a CPU a forward of a few rows waits for memory, so that checking a tree should cost
about as much as one token. With weights as PyTorch stores them it does not: float32
forwards of 2 to 8 rows took 1.5 to 1.8 times as long as one row where this was measured
(``benchmarks/packed_linear.py``). With oneDNN's inner product over weights that were
reordered once they took 0.9 to 1.3 times as long. The layout is what
``torch.compile`` uses when it freezes a model; results differ from ``nn.Linear`` by
rounding only.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """A float32 linear layer on the CPU with a reordered weight, for inference only."""

    def __init__(self, linear: nn.Linear) -> None:
        """Reorder the weight of ``linear``; the original is not kept."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = linear.bias

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``rows @ weight.T + bias``; [..., I] -> [..., O]."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._packed, self.bias, "none", [], ""
        )
        return output


class TiedLinear(nn.Module):
    """A float32 linear layer on the CPU whose weight another module reads as well.

    A reordered weight would be a second copy, so the product is turned around instead:
    W x^T reads the weight in its own order, which for a few rows is the faster way.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Share the weight of ``linear``."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``rows @ weight.T + bias``; [..., I] -> [..., O]."""
        flat = rows.reshape(-1, rows.shape[-1])
        output = (self.weight @ flat.T).T.contiguous()
        if self.bias is not None:
            output += self.bias
        return output.reshape(*rows.shape[:-1], -1)


def pack_linear_layers(module: nn.Module) -> int:
    """Replace the float32 CPU linear layers of ``module`` in place.

    Returns:
        How many layers were replaced; 0 where the CPU or the build has no oneDNN.
    """
    if not torch._C._has_mkldnn:
        return 0
    uses: dict[int, int] = {}
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if _fits(child):
                is_tied = uses[id(child.weight)] > 1
                replacement = TiedLinear if is_tied else PackedLinear
                setattr(parent, name, replacement(child))
                count += 1
    return count


def _fits(child: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is exactly a float32 ``nn.Linear`` on the CPU."""
    if type(child) is not nn.Linear:
        return False
    return child.weight.dtype == torch.float32 and child.weight.device.type == "cpu"
