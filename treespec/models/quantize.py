"""Linear layers in 8-bit integers: half of bfloat16's bytes, a quarter of float32's.

A forward of a few rows takes as long as reading the weights does, so a quantized draft
proposes faster. As a target it is a model of its own: what is decoded is the text of
the quantized weights.

On the CPU weights have one scale per output and activations one per row (dynamic
quantization). PyTorch's kernel takes one scale for all rows of a call, which would let
a row's result depend on its neighbours: the same token would get other logits in a tree
than alone. So each row is divided by its own largest magnitude, and that magnitude
travels along as two more features, with zero weights, that become 1 and -1: every
call then has the same range, hence the same scale. The sums are of integers, so a
layer's output for a row is the same bit by bit, whatever else is in the forward. That
is not enough by itself: where a value lies between two integers, the last bit of a sum
in attention decides, and a few layers later logits differ by as much as quantization
costs. So ``HuggingFaceModel(exact=True)`` fixes the order of those sums as well.

A draft need not repeat its bits: whatever it proposes is checked. ``LooseInt8Linear``
is PyTorch's kernel as it is, one operator instead of nine.

On CUDA weights are in int8 and activations keep their type (weight only, by torchao).
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from treespec.errors import TreespecError
from treespec.models.fbgemm import fbgemm_packing, has_fbgemm

QUANTIZATIONS = ("int8",)
"""What linear layers can be held in, besides the type of the other weights."""

_MAX_INT8 = 127
_TINY = torch.finfo(torch.float32).tiny


class Int8Linear(nn.Module):
    """A linear layer with int8 weights on the CPU, for inference in float32 only."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Quantize and pack a weight; the original is not kept.

        Args:
            weight: Any float type.  # [O, I]
            bias: Kept in float32.  # [O]
        """
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed_bytes = weight.numel() + 4 * weight.shape[0]
        self._packed = _pack(nn.functional.pad(weight.float(), (0, 2)), None)
        self.bias = None if bias is None else nn.Parameter(bias.float(), False)

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``rows @ weight.T + bias``; [..., I] -> [..., O]."""
        scale = rows.abs().amax(dim=-1, keepdim=True).clamp_min_(_TINY)
        scaled = torch.cat((rows, scale, -scale), dim=-1).div_(scale)
        # With 7 bits for activations, pairs of products fit the kernel's 16 bits.
        output: Tensor = torch.ops.quantized.linear_dynamic(
            scaled, self._packed, reduce_range=True
        )
        if self.bias is None:
            return output.mul_(scale)
        return torch.addcmul(self.bias, output, scale)


class LooseInt8Linear(nn.Module):
    """The same with one scale for the activations of a call: for drafts.

    A row's result depends on its neighbours, by less than quantization costs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Quantize and pack a weight; arguments as of ``Int8Linear``."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed_bytes = weight.numel() + 4 * weight.shape[0]
        self._packed = _pack(weight.float(), None if bias is None else bias.float())

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``rows @ weight.T + bias``; [..., I] -> [..., O]."""
        output: Tensor = torch.ops.quantized.linear_dynamic(
            rows, self._packed, reduce_range=True
        )
        return output


def check_quantization(quantization: str | None, device: str, key: str) -> None:
    """Raise ``TreespecError`` if a quantization is unknown, or cannot be done here.

    Args:
        quantization: What the user asked for.
        device: Kind of the model's device, ``cpu`` or ``cuda``.
        key: Place in the configuration, for messages (``pair.target``).
    """
    if quantization is None:
        return
    if quantization not in QUANTIZATIONS:
        raise TreespecError(
            f"{key}.quantization: must be null or one of {', '.join(QUANTIZATIONS)}, "
            f"got {quantization!r}"
        )
    if device == "cpu" and not (
        has_fbgemm() and hasattr(torch, "quantize_per_channel")
    ):
        raise TreespecError(
            f"{key}.quantization: int8 on the CPU needs an x86 CPU and a PyTorch with "
            f"FBGEMM, which {torch.__version__} here is not; drop it"
        )
    if device != "cpu" and find_spec("torchao") is None:
        raise TreespecError(
            f"{key}.quantization: int8 on CUDA needs torchao, which is not installed; "
            "run pip install 'treespec[quantization]', or drop it"
        )


def quantize(
    module: nn.Module, quantization: str, key: str, *, exact: bool = True
) -> None:
    """Quantize all linear layers of a loaded model in place, the head included.

    On the CPU everything else becomes float32, which is what the kernel reads and
    writes; on CUDA it keeps its type.

    Args:
        module: The model, on its device.
        quantization: ``int8``.
        key: Place in the configuration, for messages.
        exact: Whether a row is to give the same bits in any company, on the CPU.
    """
    device = next(module.parameters()).device.type
    check_quantization(quantization, device, key)
    if device == "cpu":
        _quantize_on_cpu(module, Int8Linear if exact else LooseInt8Linear)
    else:
        _quantize_by_torchao(module, key)


def _quantize_on_cpu(
    module: nn.Module, kind: type[Int8Linear | LooseInt8Linear]
) -> None:
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, kind(child.weight, child.bias))
            elif isinstance(child, Conv1D):  # GPT-2's linear layer, transposed
                setattr(parent, name, kind(child.weight.T, child.bias))
    module.float()


def _quantize_by_torchao(module: nn.Module, key: str) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_  # noqa: PLC0415

    if any(isinstance(part, Conv1D) for part in module.modules()):
        raise TreespecError(
            f"{key}.quantization: torchao does not quantize the Conv1D layers of "
            f"{type(module).__name__}; drop it, or use {key}.device=cpu"
        )
    quantize_(module, Int8WeightOnlyConfig())


def _pack(weight: Tensor, bias: Tensor | None) -> torch.ScriptObject:
    """Return a float32 weight packed as int8, with one scale per output."""
    scales = weight.abs().amax(dim=1).clamp_min(_TINY).double() / _MAX_INT8
    zeros = torch.zeros_like(scales, dtype=torch.int64)
    with warnings.catch_warnings(), fbgemm_packing():
        # Quantized tensors are to leave PyTorch; nothing else feeds this kernel.
        warnings.filterwarnings("ignore", ".*quantize_per_channel.*deprecated")
        quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, bias)
    return packed
