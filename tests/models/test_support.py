"""A model whose cache cannot be a pool of slots is refused by its configuration."""

import pytest
import transformers
from transformers import PreTrainedConfig

from tests.tiny import FAMILIES, Family, tiny_config
from treespec.errors import TreespecError
from treespec.models.support import causal_model_class


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_decoders_are_accepted(family: Family) -> None:
    found = causal_model_class(tiny_config(family), "pair.target")
    assert found.__name__.endswith(("ForCausalLM", "LMHeadModel"))


@pytest.mark.parametrize("name", ["Mistral", "Qwen3", "Phi3", "GPTNeoX", "Gemma2"])
def test_other_plain_decoders_are_accepted_too(name: str) -> None:
    config: PreTrainedConfig = getattr(transformers, f"{name}Config")()
    causal_model_class(config, "pair.target")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.Mamba2Config(), "recurrent state|linear_attention"),
        (transformers.RwkvConfig(), "recurrent state"),
        (transformers.JambaConfig(), "mamba|linear_attention"),
        (transformers.Qwen3NextConfig(), "linear_attention"),
        (transformers.Llama4TextConfig(), "chunked_attention"),
        (transformers.T5Config(), "encoder-decoder"),
        (transformers.BloomConfig(), "ALiBi"),
        (transformers.MptConfig(), "ALiBi"),
        (transformers.FalconConfig(alibi=True), "ALiBi"),
        (transformers.FalconConfig(alibi=False), "attention function"),
        (transformers.Gemma3Config(), "multimodal"),
        (transformers.BertConfig(), "both directions"),
        (transformers.ViTConfig(), "no causal language model"),
    ],
)
def test_a_cache_without_rollback_is_refused(
    config: PreTrainedConfig, reason: str
) -> None:
    """Regression story (vLLM 39273): a recurrent state ran ahead by every drafted
    token, and the text was garbage with exit code 0. Here such a model ends with one
    line that names its type or kind of layer."""
    with pytest.raises(TreespecError, match=reason) as caught:
        causal_model_class(config, "pair.target")
    message = str(caught.value)
    assert message.startswith(f"pair.target: model type {config.model_type!r} ")
    assert "sliding-window" in message
    assert "\n" not in message


def test_a_prompt_that_is_read_in_both_directions_is_refused() -> None:
    """A prefix-LM decoded fluently and wrongly: its prompt sees its own future."""
    config = tiny_config("llama")
    config.prefix_lm = True
    with pytest.raises(TreespecError, match="both directions"):
        causal_model_class(config, "pair.target")
