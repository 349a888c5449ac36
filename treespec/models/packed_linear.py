"""Linear layers in the layout of the CPU's own kernels.

On a CPU a forward of a few rows waits for memory, so that checking a tree should cost
about as much as one token. With weights as PyTorch stores them it does not
(``benchmarks/model_forward.py`` measures it):

- float32 forwards of 2 to 8 rows took 1.5 to 1.8 times as long as one row; with
  oneDNN's inner product over weights that were reordered once, 0.9 to 1.3 times. The
  layout is what ``torch.compile`` uses when it freezes a model.
- bfloat16 and float16 on a CPU without instructions for them took time by the row.
  FBGEMM's kernel reads float16 weights and multiplies in float32.

Results differ from ``nn.Linear`` by rounding only.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from treespec.models.fbgemm import fbgemm_packing, has_fbgemm

_MAX_HALF = torch.finfo(torch.float16).max


class PackedLinear(nn.Module):
    """A float32 linear layer on the CPU with a reordered weight, for inference only."""

    def __init__(self, linear: nn.Linear) -> None:
        """Reorder the weight of ``linear``; the original is not kept."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed_bytes = linear.weight.nbytes
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
    W x^T reads the weight in its own order, which for a few rows is the faster way. A
    product with one column is left to one core, so one row is multiplied twice.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Share the weight of ``linear``."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``rows @ weight.T + bias``; [..., I] -> [..., O]."""
        flat = rows.reshape(-1, rows.shape[-1])
        several = flat if flat.shape[0] > 1 else flat.repeat(2, 1)
        output = (self.weight @ several.T).T[: flat.shape[0]].contiguous()
        if self.bias is not None:
            output += self.bias
        return output.reshape(*rows.shape[:-1], -1)


class PackedHalfLinear(nn.Module):
    """A bfloat16 or float16 linear layer for a CPU without instructions for the type.

    The weight is kept in float16, rows are multiplied in float32, and the result is
    rounded to their type once, as the stock kernel does. Every bfloat16 weight is
    exact in float16 except those below 6.1e-5, which move by at most 3e-8.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Pack the weight of ``linear``, whose magnitudes float16 can hold.

        The original is not kept. A weight that another module reads as well, an
        embedding, is a second copy from here on.
        """
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed_bytes = linear.weight.nbytes
        bias = None if linear.bias is None else linear.bias.detach().float()
        with fbgemm_packing():
            self._packed = torch.ops.quantized.linear_prepack_fp16(
                linear.weight.detach().float(), bias
            )

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``rows @ weight.T + bias``; [..., I] -> [..., O]."""
        output: Tensor = torch.ops.quantized.linear_dynamic_fp16(
            rows.float(), self._packed
        )
        return output.to(rows.dtype)


def pack_linear_layers(module: nn.Module) -> int:
    """Replace the CPU linear layers of ``module`` for which there is a faster kernel.

    Returns:
        How many layers were replaced.
    """
    uses = Counter(
        id(parameter)
        for part in module.modules()
        for parameter in part.parameters(recurse=False)
    )
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or child.weight.device.type != "cpu":
                continue
            kind = _faster_kind(child, is_tied=uses[id(child.weight)] > 1)
            if kind is not None:
                setattr(parent, name, kind(child))
                count += 1
    return count


def _faster_kind(
    linear: nn.Linear, *, is_tied: bool
) -> type[PackedLinear | TiedLinear | PackedHalfLinear] | None:
    """Return what a linear layer on the CPU is to be replaced by, if anything."""
    weight = linear.weight
    if weight.dtype == torch.float32:
        if not torch._C._has_mkldnn:
            return None
        return TiedLinear if is_tied else PackedLinear
    if not _lacks_instructions(weight.dtype) or not has_fbgemm():
        return None
    return PackedHalfLinear if weight.abs().max() <= _MAX_HALF else None


def _lacks_instructions(dtype: torch.dtype) -> bool:
    """Return whether oneDNN has no kernel of this half type for this CPU."""
    if not torch._C._has_mkldnn:
        return False
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype in supported and not supported[dtype]()
