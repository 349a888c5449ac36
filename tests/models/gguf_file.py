"""Writes a tiny Llama as a GGUF file, the way llama.cpp's converter would."""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers import PreTrainedModel

from tests.tiny import BOS_ID, CHAT_TEMPLATE, EOS_ID, TOKENS

GGUF_TOKENS = tuple({" ": "\u0120", ",": "ab"}.get(token, token) for token in TOKENS)
"""The tiny vocabulary as a byte-level one: another space, and one merged token."""
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    matrices: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str = "llama",
    end_of_turn: int | None = None,
    with_tokens: bool = True,
) -> None:
    """Write a tiny Llama and its tokenizer; norms stay in float32, as always."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if with_tokens:
        _add_tokenizer(writer, end_of_turn)
    for name, weight in model.state_dict().items():
        values = _as_written(name, weight, model)
        kind = GGMLQuantizationType.F32 if values.ndim == 1 else matrices
        data = gguf.quants.quantize(values, kind)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, end_of_turn: int | None) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(GGUF_TOKENS)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if t[0] == "<" else normal for t in TOKENS])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
    if end_of_turn is not None:
        writer.add_eot_token_id(end_of_turn)


def _gguf_name(name: str) -> str:
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.weight"


def _as_written(name: str, weight: Tensor, model: PreTrainedModel) -> np.ndarray:
    """Return the weight; rotary pairs of Q and K stand side by side in GGUF."""
    values = weight.numpy()
    heads = {
        "q_proj": model.config.num_attention_heads,
        "k_proj": model.config.num_key_value_heads,
    }
    for part, num_heads in heads.items():
        if part in name:
            halves = values.reshape(num_heads, 2, -1, values.shape[-1])
            return halves.swapaxes(1, 2).reshape(values.shape)
    return values
