"""How much memory a model's weights take, in whatever layout they are held."""

from __future__ import annotations

from torch import Tensor, nn


def weight_bytes(module: nn.Module) -> int:
    """Return the bytes of all weights and buffers, those that are shared once.

    A packed layer holds its weight where PyTorch does not list it, and states its size
    as ``packed_bytes``.
    """
    listed = sum(_num_bytes(tensor) for tensor in module.parameters())
    buffers = sum(_num_bytes(tensor) for tensor in module.buffers())
    packed = sum(getattr(part, "packed_bytes", 0) for part in module.modules())
    return listed + buffers + int(packed)


def _num_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor; one of torchao's is made of several."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.nbytes
    names, _ = tensor.__tensor_flatten__()
    return sum(_num_bytes(getattr(tensor, name)) for name in names)
