"""The written-out forward: where it is used, and that it says what the module says."""

from copy import deepcopy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config

from tests.models.test_huggingface import PROMPT, SHAPE, made, tree_logits
from tests.oracles import CLOSE
from tests.scripts import random_tree
from tests.tiny import FAMILIES, Family, tiny_model
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.llama import is_llama_like

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
