"""How much memory a model's weights and caches take."""

from __future__ import annotations

from typing import Any

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


def cache_bytes_per_token(module: nn.Module) -> int:
    """Return the bytes of one token's keys and values in all layers of a model.

    Layers with a sliding window are counted whole: they forget, but not by the token.
    """
    config: Any = getattr(module, "config")  # noqa: B009 (no attribute to mypy)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or (
        text.hidden_size // text.num_attention_heads
    )
    itemsize = next(module.parameters()).dtype.itemsize
    return int(2 * text.num_hidden_layers * heads * size * itemsize)


def _num_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor; one of torchao's is made of several."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.nbytes
    names, _ = tensor.__tensor_flatten__()
    return sum(_num_bytes(getattr(tensor, name)) for name in names)
