"""int8: close to the weights it came from, and the same for a row in any company."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.models.folder import save_folder
from tests.models.gguf_file import write_gguf
from tests.scripts import make_tree
from tests.tiny import FAMILIES, Family, perturbed, tiny_model
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftModel
from treespec.environment import describe_model
from treespec.errors import TreespecError
from treespec.models import quantize as quantizing
from treespec.models.fbgemm import has_fbgemm
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.loading import inspect, load_module, locate
from treespec.models.memory import weight_bytes
from treespec.models.quantize import Int8Linear, LooseInt8Linear, quantize
from treespec.models.session import Feed, ModelSession
from treespec.models.source import ModelSource, check_source
from treespec.policies import TopKTree
from treespec.tree import NO_PARENT
from treespec.verifiers import TreeAttention

KEY = "pair.draft"
TEXTS = torch.randint(3, 32, (8, 40), generator=torch.Generator().manual_seed(0))
PROMPTS = ([1, 5, 6, 7, 8, 5, 6, 7, 5], [3], [1, *range(9, 21), 9, 10])

needs_fbgemm = pytest.mark.skipif(not has_fbgemm(), reason="FBGEMM is for x86")


def random_rows(num_rows: int, num_features: int) -> torch.Tensor:
    """Rows of magnitudes from 1e-6 to 1e6."""
    generator = torch.Generator().manual_seed(1)
    sizes = 10 ** (12 * torch.rand(num_rows, 1, generator=generator) - 6)
    return sizes * torch.randn(num_rows, num_features, generator=generator)


def random_linear(seed: int = 2) -> nn.Linear:
    linear = nn.Linear(96, 40).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    linear.weight.copy_(torch.randn(40, 96, generator=generator))
    linear.bias.copy_(torch.randn(40, generator=generator))
    return linear


@needs_fbgemm
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_row_gives_the_same_bits_alone_and_among_any_others(with_bias: bool) -> None:
    """Regression story: PyTorch's dynamic kernel has one scale for a whole call, so a
    tree's widest node used to coarsen all its other nodes."""
    linear = random_linear()
    layer = Int8Linear(linear.weight, linear.bias if with_bias else None)
    rows = random_rows(24, 96)
    together = layer(rows)
    for size in (1, 2, 3, 5, 7, 16):
        for first in (0, 8):
            part = slice(first, first + size)
            assert torch.equal(layer(rows[part]), together[part])
    assert torch.equal(layer(rows.reshape(2, 12, 96)), together.reshape(2, 12, 40))


@needs_fbgemm
def test_every_row_is_as_exact_as_8_bits_allow_whatever_its_magnitude() -> None:
    linear = random_linear()
    linear.bias.zero_()
    rows = random_rows(24, 96)
    expected = linear(rows)
    error = (Int8Linear(linear.weight, linear.bias)(rows) - expected).norm(dim=-1)
    assert (error < 0.03 * expected.norm(dim=-1)).all()


@needs_fbgemm
def test_a_draft_s_layer_is_as_close_to_its_weights_for_rows_of_one_magnitude() -> None:
    linear, rows = random_linear(), random_rows(24, 96)
    rows = rows / rows.norm(dim=-1, keepdim=True)
    expected = linear(rows)
    errors = [
        (kind(linear.weight, linear.bias)(rows) - expected).norm()
        for kind in (Int8Linear, LooseInt8Linear)
    ]
    assert 0 < errors[1] < 3 * errors[0] < 0.1 * expected.norm()


@needs_fbgemm
def test_only_what_need_not_repeat_its_bits_is_quantized_loosely() -> None:
    kinds = {}
    for exact in (True, False):
        module = tiny_model("qwen2", 1, num_layers=1)
        quantize(module, "int8", KEY, exact=exact)
        kinds[exact] = {type(part) for part in module.modules()}
    assert Int8Linear in kinds[True] - kinds[False]
    assert LooseInt8Linear in kinds[False] - kinds[True]


@needs_fbgemm
def test_a_row_of_zeros_gives_the_bias() -> None:
    linear = random_linear()
    layer = Int8Linear(linear.weight, linear.bias)
    assert torch.equal(layer(torch.zeros(2, 96)), linear.bias.expand(2, 40))


@needs_fbgemm
def test_a_row_that_is_not_a_number_stays_so_and_harms_no_other() -> None:
    linear = random_linear()
    layer = Int8Linear(linear.weight, linear.bias)
    rows = random_rows(4, 96)
    expected = layer(rows)
    rows[2, 5] = torch.nan
    got = layer(rows)
    assert got[2].isnan().all()
    assert torch.equal(got[[0, 1, 3]], expected[[0, 1, 3]])


@needs_fbgemm
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_stay_close_to_those_of_the_weights(
    family: Family, tied: bool, dtype: torch.dtype
) -> None:
    plain, quantized = (
        tiny_model(family, 1, num_layers=1, tied=tied).to(dtype) for _ in range(2)
    )
    quantize(quantized, "int8", KEY)
    plain.float()
    expected, got = plain(TEXTS).logits, quantized(TEXTS).logits
    assert got.dtype == torch.float32
    assert {weight.dtype for weight in quantized.parameters()} == {torch.float32}
    assert 0 < (got - expected).norm() < 0.15 * expected.norm()
    assert type(quantized.get_output_embeddings()) is Int8Linear


@needs_fbgemm
def test_the_original_weights_are_gone() -> None:
    model = tiny_model("qwen2", 1)
    before = weight_bytes(model)
    linears = [part for part in model.modules() if type(part) is nn.Linear]
    kept = [weakref.ref(linear.weight) for linear in linears]
    num_weights = sum(linear.weight.numel() for linear in linears)
    num_outputs = sum(linear.out_features for linear in linears)
    del linears
    quantize(model, "int8", KEY)
    gc.collect()
    assert not [ref for ref in kept if ref() is not None]
    assert before - weight_bytes(model) == 3 * num_weights - 4 * num_outputs


@needs_fbgemm
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_gives_the_bits_of_plain_decoding(family: Family) -> None:
    """Regression story: a sum in another order made one value round to the next
    integer, and from there on logits of a real model were off by 1 to 2."""
    module = tiny_model(family, 1)
    quantize(module, "int8", KEY)
    model = HuggingFaceModel(module)
    text = torch.randint(3, 32, (50,), generator=torch.Generator().manual_seed(3))
    tokens = text.tolist()
    plain = ModelSession(model, 64)
    alone = plain.admit(tokens[:10], 64)
    bushy = ModelSession(model, 128)
    among = bushy.admit(tokens[:10], 128)
    assert alone is not None
    assert among is not None
    with torch.inference_mode():
        plain.run([Feed(alone)])
        bushy.run([Feed(among)])
        for first in range(10, 50, 4):
            block = tokens[first : first + 4]
            # Every token of the text is the last of three siblings.
            drafted = [x for token in block for x in (token - 1, token - 2, token)]
            parents = [max(3 * (i // 3), 0) for i in range(12)]
            tree = make_tree([tokens[first - 1], *drafted], [NO_PARENT, *parents])
            output = bushy.run([Feed(among, tree, torch.arange(1, 13))])[0]
            bushy.commit(among, (3, 6, 9, 12), block)
            for place, token in enumerate(block):
                plain.commit(alone, (), (token,))
                logits = plain.run([Feed(alone)])[0].logits[-1]
                assert torch.equal(output.logits[3 * place - 10], logits)


@needs_fbgemm
@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantized_target_verifies_trees_as_it_decodes_alone(family: Family) -> None:
    """In float32 text would part at near ties only; one scale per call parts often."""
    module = tiny_model(family, 1, num_layers=2)
    draft = perturbed(module, 0.05, seed=2)
    for part in (module, draft):
        quantize(part, "int8", KEY)
    speculative = SpeculativeDecoder(
        HuggingFaceModel(module),
        DraftModel(HuggingFaceModel(draft)),
        TopKTree(3),
        Greedy(),
        TreeAttention(),
        Constant(3, 3, 9),
    )
    plain = speculative.autoregressive()
    expected = plain.generate(PROMPTS, max_new_tokens=32)
    for count in (1, 3):
        got = speculative.generate(PROMPTS[:count], max_new_tokens=32)
        assert [r.tokens for r in got] == [r.tokens for r in expected[:count]]
        assert any(record.num_accepted for result in got for record in result.steps)


@needs_fbgemm
def test_folders_and_gguf_files_can_be_quantized(tmp_path: Path) -> None:
    model = tiny_model("llama", 1, num_layers=1)
    write_gguf(tmp_path / "tiny.gguf", model)
    save_folder(tmp_path / "folder", model)
    expected = model(TEXTS).logits
    for name in ("tiny.gguf", "folder"):
        source = ModelSource(path=str(tmp_path / name), quantization="int8")
        located = locate(source, KEY, progress=False)
        module = load_module(located, KEY)
        assert not [m for m in module.modules() if type(m) is nn.Linear]
        got = module(TEXTS).logits
        assert (got - expected).norm() < 0.1 * expected.norm()
        described = describe_model(located, inspect(located, KEY), module)
        assert described["quantization"] == "int8"
        assert described["dtype"] == "float32"
        assert described["weight_bytes"] == weight_bytes(module) < weight_bytes(model)


@needs_fbgemm
def test_quantizing_leaves_the_settings_of_the_process_alone() -> None:
    before = torch.backends.quantized.engine
    quantize(tiny_model("llama", 1, num_layers=1), "int8", KEY)
    assert torch.backends.quantized.engine == before


def refusal(source: ModelSource) -> str:
    with pytest.raises(TreespecError) as caught:
        check_source(source, KEY)
    assert "\n" not in str(caught.value)
    return str(caught.value)


SOURCE = ModelSource(path="a", device="cpu", quantization="int8")


def test_an_unknown_quantization_is_refused() -> None:
    message = refusal(replace(SOURCE, quantization="int9"))
    expected = "pair.draft.quantization: must be null or one of int8, got 'int9'"
    assert message == expected


def test_a_cpu_without_the_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantizing, "has_fbgemm", lambda: False)
    assert "needs an x86 CPU" in refusal(SOURCE)


def test_cuda_without_torchao_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(quantizing, "find_spec", lambda name: None)
    message = refusal(replace(SOURCE, device="cuda"))
    assert "pip install 'treespec[quantization]'" in message
