"""Which models can be held in a pool of key/value slots, told from their configuration.

A slot pool needs attention that is nothing but a mask over keys and values: state that
cannot be taken back after a rejected token (recurrent layers), biases by distance
(ALiBi) and chunked windows do not fit.
"""

from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from treespec.errors import TreespecError

FULL, SLIDING = "full_attention", "sliding_attention"
"""The kinds of layers that fit, as configurations name them."""

_POSITION_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len")
_LAYER_KINDS = frozenset({FULL, SLIDING})
_PARTS_OF_A_LAYER = frozenset({"attn_config", "ffn_config"})
_SUPPORTED = (
    "treespec decodes with text-only decoders whose every layer is full or "
    "sliding-window attention (Llama, Qwen, Mistral, Gemma, GPT-2 and the like)"
)


def causal_model_class(config: PreTrainedConfig, key: str) -> type[PreTrainedModel]:
    """Return the causal language model class of a configuration, or refuse it.

    Raises:
        TreespecError: The model's cache cannot be a slot pool.
    """
    if reason := _unsupported_config(config):
        raise _refusal(config, key, reason)
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in mapping:
        raise _refusal(config, key, "is no causal language model of transformers")
    model_class: type[PreTrainedModel] = mapping[type(config)]
    if model_class._is_stateful:
        raise _refusal(config, key, "keeps a recurrent state that has no rollback")
    if not model_class._supports_attention_backend:
        raise _refusal(config, key, "does not let its attention function be chosen")
    return model_class


def longest_text(config: PreTrainedConfig) -> int | None:
    """Return the most positions that a model can read here, if it says.

    Some models scale their rotations by the longest text in a forward (``longrope``).
    Then what else is in the forward, a deeper node or another request, would change a
    token's keys. They keep to the texts that need no scaling.
    """
    text = config.get_text_config()
    limits = (getattr(text, name, None) for name in _POSITION_LIMITS)
    limit = next((int(limit) for limit in limits if limit), None)
    rope = getattr(text, "rope_parameters", None) or {}
    if not isinstance(rope, dict) or rope.get("rope_type") != "longrope":
        return limit
    original = rope.get("original_max_position_embeddings") or getattr(
        text, "original_max_position_embeddings", None
    )
    return limit if original is None else min(int(original), limit or int(original))


def _unsupported_config(config: PreTrainedConfig) -> str | None:
    """Say what is wrong, or ``None``."""
    kinds = ", ".join(sorted(_layer_kinds(config) - _LAYER_KINDS))
    # Encoders that can be made into decoders have this switch; GPT-NeoX has it unused.
    is_decoder = getattr(config, "is_decoder", True) or config.model_type == "gpt_neox"
    faults = {
        "is an encoder-decoder model": config.is_encoder_decoder,
        "is a model of several parts (multimodal)": (
            set(config.sub_configs) - _PARTS_OF_A_LAYER
        ),
        f"has layers of kind {kinds}": kinds,
        "biases attention by distance (ALiBi)": _uses_alibi(config),
        "attends in both directions": (
            getattr(config, "use_bidirectional_attention", False)
            or getattr(config, "prefix_lm", False)
            or not is_decoder
        ),
        "shares keys and values between layers": (
            getattr(config, "num_kv_shared_layers", 0)
        ),
    }
    return next((reason for reason, found in faults.items() if found), None)


def _layer_kinds(config: PreTrainedConfig) -> set[str]:
    kinds: Any = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = getattr(config, "layers_block_type", None)
    return set(kinds or ())


def _uses_alibi(config: PreTrainedConfig) -> bool:
    if config.model_type == "bloom" or getattr(config, "alibi", False):
        return True
    attention = getattr(config, "attn_config", None)
    return bool(getattr(attention, "alibi", False))


def _refusal(config: PreTrainedConfig, key: str, reason: str) -> TreespecError:
    return TreespecError(
        f"{key}: model type {config.model_type!r} {reason}, so its cache cannot be a "
        f"pool of slots; {_SUPPORTED}"
    )
