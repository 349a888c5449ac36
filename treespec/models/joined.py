"""Linear layers that read the same rows, joined into one.

On a CPU a call of a matrix kernel takes 10 to 30 microseconds before it multiplies
anything, and a small draft model makes 170 of them per forward. Queries, keys and
values can be one product, and so can gate and up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

GROUPS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Name of a joined layer -> the layers that it is made of, as Llama names them."""


class LinearPart(nn.Module):
    """Some outputs of a joined layer, for whoever asks for the layer that it was."""

    def __init__(self, parent: nn.Module, name: str, outputs: range) -> None:
        """Stand for ``outputs`` of the layer ``name`` of ``parent``."""
        super().__init__()
        # In a tuple, so that the joined layer has one place in the tree of modules.
        self._parent, self._name, self._outputs = (parent,), name, outputs
        self.out_features = len(outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Return its outputs for some rows; [..., I] -> [..., O]."""
        whole: Tensor = getattr(self._parent[0], self._name)(rows)
        return whole[..., self._outputs.start : self._outputs.stop]


class Projections:
    """Several linear layers of the same rows, joined or not."""

    def __init__(self, parent: nn.Module, name: str) -> None:
        """Take the layers of ``parent`` that ``GROUPS`` lists under ``name``."""
        self._parts = [getattr(parent, part) for part in GROUPS[name]]
        self._whole: Callable[[Tensor], Tensor] | None = getattr(parent, name, None)
        self._sizes = [part.out_features for part in self._parts if self._whole]

    def __call__(self, rows: Tensor) -> Sequence[Tensor]:  # [T, I] -> [T, O] each
        """Return what each layer says of the rows."""
        if self._whole is not None:
            return torch.split(self._whole(rows), self._sizes, dim=-1)
        return [part(rows) for part in self._parts]


def join_linear_layers(module: nn.Module) -> None:
    """Join the layers of ``GROUPS`` wherever one module of a model has all of them.

    Each keeps its name, as a part of the joined one. To be done before layers are
    quantized or packed, one module after the other, so that little is held twice.
    """
    for parent in list(module.modules()):
        for name, parts in GROUPS.items():
            layers = [getattr(parent, part, None) for part in parts]
            if all(type(layer) is nn.Linear for layer in layers):
                _join(parent, name, parts)


def _join(parent: nn.Module, name: str, parts: Sequence[str]) -> None:
    layers: list[nn.Linear] = [getattr(parent, part) for part in parts]
    sizes = [layer.out_features for layer in layers]
    weight = torch.cat([layer.weight for layer in layers])
    has_bias = layers[0].bias is not None
    whole = nn.Linear(layers[0].in_features, sum(sizes), has_bias, device="meta")
    whole.weight = nn.Parameter(weight, requires_grad=False)
    if has_bias:
        bias = torch.cat([layer.bias for layer in layers])
        whole.bias = nn.Parameter(bias, requires_grad=False)
    setattr(parent, name, whole.train(parent.training))
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        outputs = range(start, start + size)
        setattr(parent, part, LinearPart(parent, name, outputs).train(parent.training))
        start += size
