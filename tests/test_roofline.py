"""The machine's limit: what a forward must read and multiply."""

import pytest
import torch

from tests.tiny import tiny_model
from treespec import roofline
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.packed_linear import pack_linear_layers
from treespec.models.quantize import quantize
from treespec.roofline import Roofline, Work, measure_roofline, work_of
from treespec.testing.toys import constant_model, table_model

LINEAR = 4 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64) + 32 * 32
"""Weights of the tiny Llama's four layers and of its head."""


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    monkeypatch.setattr(roofline, "BANDWIDTH_BYTES", 2**16)
    monkeypatch.setattr(roofline, "MATMUL_SIZE", 32)
    monkeypatch.setattr(roofline, "NUM_REPEATS", 1)


def test_a_forward_waits_for_memory_or_for_arithmetic() -> None:
    limit = Roofline(
        weight_bytes=10**9, num_macs=5 * 10**8, bytes_per_s=1e10, macs_per_s=4e10
    )
    assert limit.floor_s(1) == pytest.approx(0.1)  # 1 GB at 10 GB/s
    assert limit.floor_s(8) == pytest.approx(0.1)  # 8 rows: exactly both
    assert limit.floor_s(16) == pytest.approx(0.2)  # 16 x 0.5 / 40


@pytest.mark.parametrize("tied", [False, True])
def test_every_linear_layer_is_read_once_and_multiplied_once_per_row(tied) -> None:
    """An embedding is a lookup, unless it is the head as well."""
    work = work_of(HuggingFaceModel(tiny_model("llama", 1, tied=tied)))
    assert work == Work(4 * LINEAR, LINEAR)


def test_layers_count_as_they_are_held() -> None:
    packed, int8 = tiny_model("llama", 1), tiny_model("llama", 1)
    pack_linear_layers(packed)
    assert work_of(HuggingFaceModel(packed)) == Work(4 * LINEAR, LINEAR)
    quantize(int8, "int8", "pair.draft")
    num_outputs = 4 * (2 * 32 + 2 * 16 + 2 * 64 + 32) + 32
    work = work_of(HuggingFaceModel(int8))
    assert work == Work(LINEAR + 4 * num_outputs, LINEAR)


def test_gpt2s_transposed_layers_are_found() -> None:
    work = work_of(HuggingFaceModel(tiny_model("gpt2", 1)))
    assert work is not None
    assert work.num_macs == 4 * (32 * 96 + 32 * 32 + 2 * 32 * 128) + 32 * 32


def test_lower_layers_are_less_work() -> None:
    model = HuggingFaceModel(tiny_model("llama", 1))
    lower = work_of(model.lower_layers(1))
    assert lower is not None
    assert lower.num_macs == (LINEAR - 32 * 32) // 4 + 32 * 32


def test_models_in_a_row_add_up_and_unknown_ones_have_no_limit() -> None:
    model = HuggingFaceModel(tiny_model("llama", 1))
    limit = measure_roofline([model, model])
    assert limit is not None
    assert (limit.weight_bytes, limit.num_macs) == (8 * LINEAR, 2 * LINEAR)
    assert limit.bytes_per_s > 1e6
    assert limit.macs_per_s > 1e4
    table = table_model(constant_model(0.5, 0.5), 2)
    assert measure_roofline([model, table]) is None
    assert measure_roofline([]) is None


def test_a_clock_that_stands_gives_no_limit(monkeypatch) -> None:
    class Standing:
        def __init__(self, device: torch.device) -> None:
            pass

        def total(self) -> float:
            return 0.0

    monkeypatch.setattr(roofline, "Stopwatch", Standing)
    assert measure_roofline([HuggingFaceModel(tiny_model("llama", 1))]) is None
