import pytest
import torch
from torch import nn

from tests.tiny import tiny_model
from treespec.models.packed_linear import PackedLinear, TiedLinear, pack_linear_layers

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build has no oneDNN"
)


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
def test_every_other_linear_layer_is_packed_with_its_bias() -> None:
    model = tiny_model("qwen2", 1)
    assert pack_linear_layers(model) == 4 * 7 + 1
    assert type(model.model.layers[0].self_attn.q_proj) is PackedLinear
    assert model.model.layers[0].self_attn.q_proj.bias is not None
    assert not [m for m in model.modules() if type(m) is nn.Linear]


def test_layers_of_other_types_and_dtypes_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.bfloat16), nn.LayerNorm(4))
    assert pack_linear_layers(model) == 0
    assert type(model[0]) is nn.Linear
