"""The adapter: attention over slots, in every precision and by every kernel."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    LlamaConfig,
    Mamba2Config,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    RecurrentGemmaConfig,
)

from tests.oracles import CLOSE, adapted, greedy_oracle, plain_logits, reference
from tests.scripts import make_tree, node_texts, random_tree
from tests.tiny import FAMILIES, Family, tiny_config, tiny_model
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftModel, PromptLookup
from treespec.errors import TreespecError
from treespec.models.huggingface import ATTENTION, HuggingFaceModel, layer_windows
from treespec.models.packed_linear import pack_linear_layers
from treespec.models.session import Feed, ModelSession
from treespec.policies import Chain, TopKTree
from treespec.tree import NO_PARENT, TokenTree
from treespec.verifiers import TreeAttention

PROMPT = [1, *range(4, 17)]
HALVES = (torch.bfloat16, torch.float16)
SHAPE: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
    "max_position_embeddings": 256,
}


def tree_logits(model: HuggingFaceModel, prompt: list[int], tree: TokenTree) -> Tensor:
    session = ModelSession(model, 48)
    sequence = session.admit(prompt, 40)
    other = session.admit([3, 3], 8)
    assert sequence is not None
    assert other is not None
    with torch.inference_mode():
        # Two forwards: a cache that is read, and a neighbour in the same row.
        session.run([Feed(sequence)])
        feeds = [Feed(other), Feed(sequence, tree, torch.arange(1, tree.size))]
        return session.run(feeds)[1].logits


def path_logits(module: PreTrainedModel, prompt: list[int], tree: TokenTree) -> Tensor:
    texts = node_texts(tree, prompt)[1:]
    return torch.stack([plain_logits(module, text)[-1] for text in texts])


def made(config: PreTrainedConfig, seed: int = 1) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return module.eval().requires_grad_(False)


@pytest.mark.parametrize("attention", ["sdpa", "eager", ATTENTION])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_attention_function_says_what_a_plain_forward_says(
    family: Family, attention: str
) -> None:
    tree = random_tree(PROMPT[-1], 12, 4, vocab_size=32, seed=1)
    model = HuggingFaceModel(tiny_model(family, 1, num_layers=2), attention)
    logits = tree_logits(model, PROMPT, tree)
    expected = path_logits(reference(family, 1), PROMPT, tree)
    torch.testing.assert_close(logits, expected, **CLOSE)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager", ATTENTION])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_stays_close_to_a_plain_forward(
    family: Family, attention: str, dtype: torch.dtype
) -> None:
    tree = random_tree(PROMPT[-1], 12, 4, vocab_size=32, seed=1)
    module = tiny_model(family, 1, num_layers=2).to(dtype)
    logits = tree_logits(HuggingFaceModel(module, attention), PROMPT, tree)
    assert logits.dtype == dtype
    exact = path_logits(reference(family, 1), PROMPT, tree)
    # A leak between siblings moves logits by their own size.
    error = (logits.float() - exact).abs().mean()
    assert error < 0.05 * exact.abs().mean()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager", ATTENTION])
def test_a_blocked_sibling_cannot_be_heard(attention: str, dtype: torch.dtype) -> None:
    """Public case 10: a float mask of ones and zeros is a bias, and raises no error.

    Siblings a and b with one child each: another token at a must leave the branch of b
    as it was, bit by bit. A loose tolerance lets a bias mask pass.
    """
    module = tiny_model("llama", 1, num_layers=2).to(dtype)
    model = HuggingFaceModel(module, attention)
    parents = [NO_PARENT, 0, 0, 1, 2]
    before = tree_logits(model, PROMPT, make_tree([16, 4, 5, 6, 7], parents))
    after = tree_logits(model, PROMPT, make_tree([16, 9, 5, 6, 7], parents))
    branch_of_a, branch_of_b = [0, 2], [1, 3]
    assert torch.equal(before[branch_of_b], after[branch_of_b])
    assert not torch.equal(before[branch_of_a], after[branch_of_a])


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            Gemma2Config(
                **SHAPE,
                head_dim=8,
                query_pre_attn_scalar=8,
                sliding_window=8,
                attn_logit_softcapping=2.0,
                final_logit_softcapping=5.0,
            ),
            id="gemma2, soft-capped scores",
        ),
        pytest.param(
            MistralConfig(**SHAPE, sliding_window=8), id="mistral, all layers sliding"
        ),
        pytest.param(Qwen3Config(**SHAPE, head_dim=8), id="qwen3, normalised heads"),
    ],
)
def test_other_kinds_of_attention_equal_generate(config: PreTrainedConfig) -> None:
    oracle, module = made(config), made(deepcopy(config))
    # Soft-capping exists in the eager kernel only.
    oracle.set_attn_implementation("eager")
    prompt = [1, *range(4, 17), 4, 5]
    tree = random_tree(prompt[-1], 12, 4, vocab_size=32, seed=1)
    model = HuggingFaceModel(module)
    torch.testing.assert_close(
        tree_logits(model, prompt, tree), path_logits(oracle, prompt, tree), **CLOSE
    )
    decoder = SpeculativeDecoder(
        model,
        PromptLookup(),
        TopKTree(2),
        Greedy(),
        TreeAttention(),
        Constant(3, 3, 6),
    )
    result = decoder.generate([prompt], max_new_tokens=20)[0]
    assert list(result.tokens) == greedy_oracle(oracle, prompt, 20)


@pytest.mark.parametrize(
    "config",
    [
        Mamba2Config(
            vocab_size=32,
            hidden_size=32,
            num_heads=8,
            head_dim=8,
            state_size=8,
            n_groups=1,
            num_hidden_layers=2,
        ),
        RecurrentGemmaConfig(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            lru_width=32,
        ),
        BloomConfig(vocab_size=32, hidden_size=32, n_layer=2, n_head=4),
    ],
    ids=lambda config: config.model_type,
)
def test_a_cache_without_rollback_is_refused_at_once(config: PreTrainedConfig) -> None:
    """Public case 09: a recurrent state silently took in every drafted token."""
    module = made(config)
    with pytest.raises(TreespecError, match="cannot be a pool of slots") as caught:
        HuggingFaceModel(module)
    message = str(caught.value)
    assert "\n" not in message
    assert "treespec decodes with" in message


def test_unknown_kinds_of_layers_are_refused_by_name() -> None:
    module = tiny_model("gemma3", 1)
    module.config.layer_types = ["chunked_attention"] * 4
    with pytest.raises(TreespecError, match="chunked_attention"):
        HuggingFaceModel(module)


def test_each_layer_has_its_own_window() -> None:
    assert layer_windows(tiny_config("llama")) == (None,) * 4
    assert layer_windows(tiny_config("gpt2")) == (None,) * 4
    assert layer_windows(tiny_config("gemma3")) == (8, None, 8, None)
    # Qwen2 names a window that it does not use.
    assert layer_windows(tiny_config("qwen2")) == (None,) * 4
    assert layer_windows(MistralConfig(**SHAPE, sliding_window=8)) == (8, 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_tells_its_measures(family: Family) -> None:
    model = adapted(family, 1)
    assert model.vocab_size == 32
    assert model.max_positions == 256
    assert model.windows == ({8} if family == "gemma3" else frozenset())
    assert model.device == torch.device("cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_a_plain_forward(family: Family) -> None:
    tree = make_tree([16, 4, 5, 6], [NO_PARENT, 0, 0, 2])
    session = ModelSession(adapted(family, 1), 32)
    sequence = session.admit(PROMPT, 32)
    assert sequence is not None
    layers = (0, 1, 2)
    feed = Feed(sequence, tree, torch.arange(1, 4))
    with torch.inference_mode():
        hidden = session.run([feed], layers)[0].hidden
        assert hidden is not None
        assert hidden.shape == (4, 3, 32)
        for node, text in enumerate(node_texts(tree, PROMPT)):
            states = reference(family, 1)(
                torch.tensor([text]), output_hidden_states=True, use_cache=False
            ).hidden_states
            expected = torch.stack([states[layer][0, -1] for layer in layers])
            torch.testing.assert_close(hidden[node], expected, **CLOSE)


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build has no oneDNN"
)
@pytest.mark.parametrize("tied", [True, False])
def test_packed_layers_say_what_the_module_said(tied: bool) -> None:
    """The width of the logits was read from a weight that packing takes away."""
    tree = random_tree(PROMPT[-1], 12, 4, vocab_size=32, seed=1)
    module = tiny_model("llama", 1, num_layers=2, tied=tied)
    expected = path_logits(module, PROMPT, tree)
    assert pack_linear_layers(module) > 0
    model = HuggingFaceModel(module)
    assert model.vocab_size == 32
    torch.testing.assert_close(tree_logits(model, PROMPT, tree), expected, **CLOSE)


def test_an_attention_function_that_others_chose_is_set_back() -> None:
    module = tiny_model("llama", 1, num_layers=2)
    model = HuggingFaceModel(module)
    tree = make_tree([16, 4], [NO_PARENT, 0])
    expected = tree_logits(model, PROMPT, tree)
    with pytest.raises(TreespecError, match="set_attn_implementation") as caught:
        module(torch.tensor([PROMPT]))
    assert "\n" not in str(caught.value)
    module.set_attn_implementation("sdpa")
    module(torch.tensor([PROMPT]))
    assert torch.equal(tree_logits(model, PROMPT, tree), expected)


def test_a_layer_that_runs_twice_is_refused() -> None:
    """Two calls of one layer would overwrite each other's slots."""
    module = tiny_model("gemma3", 1, num_layers=2)
    module.model.layers[1].self_attn.layer_idx = 0
    with pytest.raises(TreespecError, match=r"ran layers \[0, 0\]"):
        SpeculativeDecoder(
            target=HuggingFaceModel(module),
            drafter=PromptLookup(),
            policy=TopKTree(),
            acceptance=Greedy(),
            verifier=TreeAttention(),
            controller=Constant(0),
        ).generate([PROMPT], max_new_tokens=2)


def test_rotations_by_the_longest_text_of_a_forward_are_not_reached() -> None:
    """A tree, or another request, once turned the keys of a whole forward.

    ``longrope`` chooses its factors by the largest position in the call, so the same
    token had other keys beside a deeper node.
    """
    factors = [1.0 + i / 4 for i in range(4)]
    config = LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 4,
            "long_factor": [8 * factor for factor in factors],
            "original_max_position_embeddings": 32,
            "factor": 8.0,
        },
    )
    model = HuggingFaceModel(made(config))
    assert model.max_positions == 32
    decoder = SpeculativeDecoder(
        model,
        DraftModel(model),
        Chain(),
        Greedy(),
        TreeAttention(),
        Constant(6, 1, 6),
    )
    prompts = [[1, *range(4, 22)], [1, *range(5, 31)]]
    (alone,) = decoder.autoregressive().generate(prompts[:1], max_new_tokens=40)
    together = decoder.generate(prompts, max_new_tokens=40)
    assert together[0].tokens == alone.tokens
    assert len(alone.prompt_tokens) + len(alone.tokens) == 32
