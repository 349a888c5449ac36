"""Tiny random models and a tiny tokenizer, made in memory: no network, no files.

The weights are drawn with a wide ``initializer_range``: the usual 0.02 gives nearly
uniform laws, every draft is then accepted and the residual branch never runs.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Literal

import torch
from tokenizers import Tokenizer, decoders, models, processors
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

Family = Literal["llama", "qwen2", "gemma3", "gpt2"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "gemma3", "gpt2")

TOKENS = ("<unk>", "<s>", "</s>", " ", *"abcdefghijklmnopqrstuvwxyz", ".", ",")
"""The 32 tokens of the tiny tokenizer: three special ones, then single characters."""
BOS_ID, EOS_ID = 1, 2
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}{{ turn.role + ' ' + turn.content }}."
    "{% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
)


def tiny_config(
    family: Family,
    *,
    vocab_size: int = 32,
    num_layers: int = 4,
    max_positions: int = 256,
    tied: bool = False,
    initializer_range: float = 0.8,
) -> PreTrainedConfig:
    """Return the configuration of a tiny model; two query heads share a KV head.

    GPT-2 has learned positions and no grouped heads; Gemma 3 has sliding windows of 8.
    """
    shared = {
        "vocab_size": vocab_size,
        "initializer_range": initializer_range,
        "tie_word_embeddings": tied,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": None,
    }
    if family == "gpt2":
        return GPT2Config(
            n_embd=32, n_layer=num_layers, n_head=4, n_positions=max_positions, **shared
        )
    grouped = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": max_positions,
        **shared,
    }
    if family == "llama":
        return LlamaConfig(**grouped)
    if family == "qwen2":
        return Qwen2Config(**grouped)
    kinds = [
        "full_attention" if i % 2 else "sliding_attention" for i in range(num_layers)
    ]
    return Gemma3TextConfig(
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=8,
        layer_types=kinds[:num_layers],
        **grouped,
    )


def tiny_model(
    family: Family,
    seed: int,
    *,
    vocab_size: int = 32,
    num_layers: int = 4,
    max_positions: int = 256,
    tied: bool = False,
) -> PreTrainedModel:
    """Return a random model in fp32, in evaluation mode, the same for the same seed."""
    config = tiny_config(
        family,
        vocab_size=vocab_size,
        num_layers=num_layers,
        max_positions=max_positions,
        tied=tied,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def tiny_tokenizer(
    tokens: Sequence[str] = TOKENS, *, chat_template: str | None = CHAT_TEMPLATE
) -> PreTrainedTokenizerFast:
    """Return a character tokenizer that puts ``<s>`` before a text."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=chat_template,
    )


def perturbed(model: PreTrainedModel, noise: float, seed: int) -> PreTrainedModel:
    """Return a copy with ``noise`` relative weight noise: a draft that often agrees."""
    generator = torch.Generator().manual_seed(seed)
    # A config of its own: it also says which attention function a module uses.
    config = deepcopy(model.config)
    noisy = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    noisy.load_state_dict(model.state_dict())
    for weight in noisy.parameters():
        drawn = torch.randn(weight.shape, generator=generator)
        weight.data += noise * weight.data.std(correction=0) * drawn
    return noisy.eval().requires_grad_(False)
