"""The written-out forward: where it is used, and that it says what the module says."""

from copy import deepcopy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config

from tests.models.test_huggingface import PROMPT, SHAPE, made, tree_logits
from tests.oracles import CLOSE
from tests.scripts import random_tree
from tests.tiny import FAMILIES, Family, tiny_model
from treespec.models.fbgemm import has_fbgemm
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.joined import LinearPart, join_linear_layers
from treespec.models.llama import is_llama_like
from treespec.models.memory import weight_bytes
from treespec.models.packed_linear import pack_linear_layers
from treespec.models.quantize import quantize

TREE = random_tree(PROMPT[-1], 12, 4, vocab_size=32, seed=1)


def listened_to(module: PreTrainedModel) -> list[str]:
    """Hook a part whose forward is passed over; return what is heard of it."""
    heard: list[str] = []
    layer = module.get_submodule("model.layers.1.mlp")
    layer.register_forward_hook(lambda *_: heard.append("mlp"))
    return heard


@pytest.mark.parametrize("family", FAMILIES)
def test_llama_like_families_are_known_by_their_class(family: Family) -> None:
    assert is_llama_like(tiny_model(family, 1)) == (family in {"llama", "qwen2"})


def test_a_class_of_the_users_own_or_another_activation_keeps_its_forward() -> None:
    class Scaled(LlamaForCausalLM):
        pass

    assert not is_llama_like(Scaled(LlamaConfig(**SHAPE)))
    other = LlamaConfig(**SHAPE, hidden_act="gelu")
    assert not is_llama_like(LlamaForCausalLM(other))


@pytest.mark.parametrize(
    "config", [LlamaConfig(**SHAPE), Qwen3Config(**SHAPE, head_dim=8)]
)
def test_a_hook_is_heard_and_changes_no_logits(config: LlamaConfig) -> None:
    """A part that somebody listens to must be run, however slowly."""
    module = made(config)
    twin = deepcopy(module)
    heard = listened_to(twin)
    direct = tree_logits(HuggingFaceModel(module), PROMPT, TREE)
    assert not heard
    torch.testing.assert_close(
        tree_logits(HuggingFaceModel(twin), PROMPT, TREE), direct, **CLOSE
    )
    assert heard


def test_in_bfloat16_it_differs_from_the_module_by_rounding_only() -> None:
    module = made(LlamaConfig(**SHAPE)).to(torch.bfloat16)
    twin = deepcopy(module)
    listened_to(twin)
    exact = tree_logits(HuggingFaceModel(deepcopy(module).float()), PROMPT, TREE)
    direct = tree_logits(HuggingFaceModel(module), PROMPT, TREE).float()
    stock = tree_logits(HuggingFaceModel(twin), PROMPT, TREE).float()
    assert (direct - exact).norm() < 1.5 * (stock - exact).norm()


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SHAPE),
        LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
        Qwen3Config(**SHAPE, head_dim=8),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_joined_layers_say_what_they_said_one_by_one(
    config: LlamaConfig, is_packed: bool
) -> None:
    """Also to whoever runs the module itself, as a listener makes us do."""
    module = made(config)
    expected = tree_logits(HuggingFaceModel(deepcopy(module)), PROMPT, TREE)
    join_linear_layers(module)
    assert type(module.get_submodule("model.layers.0.self_attn.k_proj")) is LinearPart
    # A packed weight cannot be copied; other joined layers can, and stand alone then.
    twins = [module] if is_packed else [deepcopy(module), module]
    if is_packed:
        pack_linear_layers(module)
    for twin in twins:
        got = tree_logits(HuggingFaceModel(twin), PROMPT, TREE)
        torch.testing.assert_close(got, expected, **CLOSE)
        heard = listened_to(twin)
        got = tree_logits(HuggingFaceModel(twin), PROMPT, TREE)
        torch.testing.assert_close(got, expected, **CLOSE)
        assert heard


@pytest.mark.skipif(not has_fbgemm(), reason="FBGEMM is for x86")
def test_a_joined_layer_is_quantized_and_held_once() -> None:
    sizes, logits = [], []
    for joined in (False, True):
        module = made(LlamaConfig(**SHAPE))
        if joined:
            join_linear_layers(module)
        quantize(module, "int8", "pair.target")
        sizes.append(weight_bytes(module))
        logits.append(tree_logits(HuggingFaceModel(module), PROMPT, TREE))
    assert sizes[1] == sizes[0]
    assert torch.equal(logits[1], logits[0])
