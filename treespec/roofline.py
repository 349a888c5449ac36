"""The machine's limit for a forward: weights over bandwidth, operations over rate.

A forward reads the weights of its linear layers once, whatever its rows are, and
multiplies each of them once per row. So no forward is faster than the larger of the two
times. Keys and values are left out: behind short texts they are small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from treespec.models.base import AbstractLanguageModel
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.memory import weight_bytes
from treespec.stopwatch import Stopwatch

BANDWIDTH_BYTES = 2**28
"""What is summed up to measure bandwidth: more than a cache holds."""
MATMUL_SIZE = 1024
"""Rows and columns of the matrices that are multiplied to measure the rate."""
LAYER_ROWS = 256
"""Rows of the forward through one of the model's own layers, to the same end."""
LARGEST_LAYER = 2**24
"""Largest weight of such a layer, so that the measurement stays short."""
NUM_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Work:
    """What a forward of a model must do at least.

    Attributes:
        weight_bytes: Bytes of the linear layers' weights, as they are held.
        num_macs: Multiply-adds per row.
    """

    weight_bytes: int
    num_macs: int

    def __add__(self, other: Work) -> Work:
        """Return the work of both."""
        return Work(
            self.weight_bytes + other.weight_bytes, self.num_macs + other.num_macs
        )


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least seconds of a forward on this machine.

    Attributes:
        weight_bytes: Bytes that a forward reads.
        num_macs: Multiply-adds per row.
        bytes_per_s: Measured bandwidth of reading.
        macs_per_s: Measured rate of multiply-adds.
    """

    weight_bytes: int
    num_macs: int
    bytes_per_s: float
    macs_per_s: float

    def floor_s(self, num_rows: int) -> float:
        """Return the seconds below which no forward of so many rows can be."""
        read_s = self.weight_bytes / self.bytes_per_s
        return max(read_s, num_rows * self.num_macs / self.macs_per_s)

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def work_of(model: AbstractLanguageModel) -> Work | None:
    """Return the work of a model's forward; ``None`` if it has no linear layers.

    Packed and quantized layers count as they are held. An embedding is a lookup and
    costs nothing, unless it is the head as well.
    """
    layers = _linear_layers(model)
    if not layers:
        return None
    weights = (Work(weight_bytes(layer), _num_macs(layer)) for layer in layers)
    return sum(weights, Work(0, 0))


@torch.inference_mode()
def measure_roofline(models: list[AbstractLanguageModel]) -> Roofline | None:
    """Return the limit for models that run one after the other, measured here and now.

    Returns:
        ``None`` if one of them has no linear layers that can be found, or if the clock
        gives no seconds.
    """
    works = [work_of(model) for model in models]
    known = [work for work in works if work is not None]
    if not models or len(known) < len(models):
        return None
    total = sum(known, Work(0, 0))
    device = models[0].device
    bandwidth = _bandwidth(device)
    rate = max((_rate(model) for model in models), default=0.0)
    if bandwidth <= 0 or rate <= 0:
        return None
    return Roofline(total.weight_bytes, total.num_macs, bandwidth, rate)


def _bandwidth(device: torch.device) -> float:
    """Return bytes per second of reading a large block."""
    block = torch.ones(BANDWIDTH_BYTES // 4, device=device)
    seconds = _least_s(device, block.sum)
    return block.nbytes / seconds if seconds else 0.0


def _rate(model: AbstractLanguageModel) -> float:
    """Return multiply-adds per second: the best of plain products and an own layer.

    A layer in integers may multiply faster than any float product does.
    """
    device, dtype = model.device, _dtype(model)
    # A CPU may take seconds for products in a type that it has no instructions for.
    plain = dtype if device.type == "cuda" else torch.float32
    left = torch.ones(MATMUL_SIZE, MATMUL_SIZE, device=device, dtype=plain)
    macs_of_run: list[tuple[int, Callable[[], Tensor]]] = [
        (MATMUL_SIZE**3, lambda: left @ left)
    ]
    layer = _typical_layer(model)
    if layer is not None:
        rows = torch.ones(LAYER_ROWS, _shape(layer)[0], device=device, dtype=dtype)
        macs_of_run.append((LAYER_ROWS * _num_macs(layer), lambda: layer(rows)))
    rates = []
    for num_macs, run in macs_of_run:
        seconds = _least_s(device, run)
        rates.append(num_macs / seconds if seconds else 0.0)
    return max(rates)


def _least_s(device: torch.device, run: Callable[[], Tensor]) -> float | None:
    """Return the least seconds of several runs: a limit is what was reached once."""
    run()
    found = []
    for _ in range(NUM_REPEATS):
        watch = Stopwatch(device)
        run()
        found.append(watch.total())
    return min((seconds for seconds in found if seconds > 0), default=None)


def _linear_layers(model: AbstractLanguageModel) -> list[nn.Module]:
    if not isinstance(model, HuggingFaceModel):
        return []
    return [part for part in model.module.modules() if _is_linear(part)]


def _is_linear(part: nn.Module) -> bool:
    """Return whether a module is a linear layer: torch's, packed, or GPT-2's own."""
    is_known = hasattr(part, "in_features") or type(part).__name__ == "Conv1D"
    return is_known and not list(part.children())


def _shape(layer: Any) -> tuple[int, int]:
    """Return the inputs and outputs of a linear layer."""
    if hasattr(layer, "in_features"):
        return int(layer.in_features), int(layer.out_features)
    num_in, num_out = layer.weight.shape
    return int(num_in), int(num_out)


def _num_macs(layer: nn.Module) -> int:
    num_in, num_out = _shape(layer)
    return num_in * num_out


def _dtype(model: AbstractLanguageModel) -> torch.dtype:
    """Return the type of the rows that a model's layers read."""
    assert isinstance(model, HuggingFaceModel)
    weight: Tensor = model.module.get_input_embeddings().weight
    return weight.dtype


def _typical_layer(model: AbstractLanguageModel) -> nn.Module | None:
    layers = [x for x in _linear_layers(model) if _num_macs(x) <= LARGEST_LAYER]
    return max(layers, key=_num_macs, default=None)
