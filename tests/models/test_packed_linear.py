import pytest
import torch
from torch import nn

from tests.tiny import tiny_model
from treespec.models import packed_linear
from treespec.models.fbgemm import has_fbgemm
from treespec.models.packed_linear import (
    PackedHalfLinear,
    PackedLinear,
    TiedLinear,
    pack_linear_layers,
)

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build has no oneDNN"
)
needs_fbgemm = pytest.mark.skipif(not has_fbgemm(), reason="FBGEMM is for x86")
HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture
def old_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without instructions for half precision, whatever this one has."""
    monkeypatch.setattr(packed_linear, "_lacks_instructions", lambda d: d in HALVES)


@needs_onednn
@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_model_gives_the_same_logits_up_to_rounding(tied: bool) -> None:
    plain, packed = (tiny_model("llama", 1, tied=tied) for _ in range(2))
    pack_linear_layers(packed)
    tokens = torch.arange(3, 12)[None]
    with torch.inference_mode():
        expected, got = plain(tokens).logits, packed(tokens).logits
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@needs_onednn
def test_a_head_that_shares_its_weight_with_the_embedding_is_not_copied() -> None:
    model = tiny_model("llama", 1, tied=True)
    pack_linear_layers(model)
    assert type(model.lm_head) is TiedLinear
    assert model.lm_head.weight is model.get_input_embeddings().weight


@needs_onednn
@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_a_tied_head_says_what_the_linear_layer_says(num_rows: int) -> None:
    """One row is multiplied twice over, which must not be seen."""
    linear = torch.nn.Linear(16, 40).requires_grad_(False)
    rows = torch.randn(3, num_rows, 16, generator=torch.Generator().manual_seed(1))
    for some in (rows[0], rows, rows[0, 0]):
        got = TiedLinear(linear)(some)
        torch.testing.assert_close(got, linear(some))
        assert got.is_contiguous()


def test_every_other_linear_layer_is_packed_with_its_bias() -> None:
    model = tiny_model("qwen2", 1)
    assert pack_linear_layers(model) == 4 * 7 + 1
    assert type(model.model.layers[0].self_attn.q_proj) is PackedLinear
    assert model.model.layers[0].self_attn.q_proj.bias is not None
    assert not [m for m in model.modules() if type(m) is nn.Linear]


@needs_fbgemm
@pytest.mark.usefixtures("old_cpu")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_packed_half_layers_are_no_further_from_float32_than_stock_ones(
    tied: bool, dtype: torch.dtype
) -> None:
    exact, stock, packed = (tiny_model("qwen2", 1, tied=tied) for _ in range(3))
    stock.to(dtype)
    exact.load_state_dict(stock.state_dict())
    packed.to(dtype)
    assert pack_linear_layers(packed) == 4 * 7 + 1
    assert not [m for m in packed.modules() if type(m) is nn.Linear]
    tokens = torch.arange(3, 30)[None]
    with torch.inference_mode():
        expected, before, got = (m(tokens).logits for m in (exact, stock, packed))
    assert got.dtype == dtype
    errors = [(logits.float() - expected).norm() for logits in (before, got)]
    assert errors[1] < 1.2 * errors[0]


@needs_fbgemm
def test_a_packed_half_layer_rounds_once() -> None:
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(48, 24, dtype=torch.bfloat16).requires_grad_(False)
    linear.weight.copy_(torch.randn(24, 48, generator=generator))
    rows = torch.randn(2, 5, 48, generator=generator).bfloat16()
    expected = nn.functional.linear(
        rows.double(), linear.weight.double(), linear.bias.double()
    )
    got = PackedHalfLinear(linear)(rows)
    assert got.shape == (2, 5, 24)
    # Half of a bfloat16's last place, and what float32 sums may add to it.
    assert ((got.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-5).all()


@needs_fbgemm
@pytest.mark.usefixtures("old_cpu")
def test_a_weight_beyond_float16_stays_as_it_is() -> None:
    """1e5 is an ordinary bfloat16 number, and infinite in float16."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).bfloat16()
    model[0].weight.data[0, 0] = 1e5
    assert pack_linear_layers(model) == 1
    assert type(model[0]) is nn.Linear


@needs_fbgemm
@pytest.mark.usefixtures("old_cpu")
def test_packing_leaves_the_settings_of_the_process_alone() -> None:
    before = torch.backends.quantized.engine
    for engine in ("onednn", "fbgemm"):
        torch.backends.quantized.engine = engine
        try:
            pack_linear_layers(tiny_model("llama", 1, num_layers=1).bfloat16())
            assert torch.backends.quantized.engine == engine
        finally:
            torch.backends.quantized.engine = before


def test_layers_of_other_types_and_dtypes_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.LayerNorm(4))
    assert pack_linear_layers(model) == 0
    assert type(model[0]) is nn.Linear


def test_half_precision_stays_stock_where_the_cpu_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed_linear, "_lacks_instructions", lambda dtype: False)
    assert pack_linear_layers(nn.Sequential(nn.Linear(4, 4).bfloat16())) == 0
