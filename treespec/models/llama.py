"""The forward of Llama-like models, written out.

A forward of a few rows is a few matrix products per layer, and the layers of
transformers do a good deal around them, which for a small draft is a tenth of its time
(``benchmarks/model_forward.py`` measures it). This is the same sequence of operations
on the same modules' weights without that: fewer and larger operators, and nothing else
in between. Results differ by rounding only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from treespec.models.attention import AttentionCall, attend
from treespec.models.cache import SlotCache
from treespec.models.joined import Projections

_Rowwise = Callable[[Tensor], Tensor]

_CLASSES = (
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)
"""Models whose layers are what is written here, and nothing more."""


class LlamaForward:
    """Runs the rows of a forward through a module's weights."""

    def __init__(self, module: PreTrainedModel) -> None:
        """Take the parts of a module that ``is_llama_like``."""
        self._module = module
        stack: Any = module.model
        self._embedding: _Rowwise = stack.embed_tokens
        self._rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
        self._rotary = stack.rotary_emb
        self._layers = [_Layer(layer) for layer in stack.layers]
        self._norm = _Norm(stack.norm)
        self._head: _Rowwise = module.lm_head
        # Their own forward is passed over, and hooks on it would be.
        skipped: list[nn.Module] = [module, stack, stack.norm]
        for layer in stack.layers:
            skipped += [layer, *layer.children(), *_norms(layer.self_attn)]
        self._skipped = skipped

    @property
    def is_hooked(self) -> bool:
        """Whether somebody listens to a part whose own forward is passed over."""
        return any(
            part._forward_hooks or part._forward_pre_hooks for part in self._skipped
        )

    def __call__(self, call: AttentionCall, cache: SlotCache) -> Tensor:
        """Return the logits of the wanted rows, and write keys and values.

        Args:
            call: The rows and the layers' windows.
            cache: The pool that they refer to.

        Returns:
            Logits.  # [R, V]
        """
        rows = call.rows
        hidden = self._embedding(rows.tokens)  # [T, H]
        cos, sin = self._rotary(hidden, rows.positions[None])  # [1, T, D] each
        half = sin.shape[-1] // 2
        # Rotating by halves is x cos + roll(x) sin', the first half of sin negated.
        turned = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        turn = cos[0][:, None], turned[0][:, None]  # [T, 1, D] each
        for index, layer in enumerate(self._layers):
            hidden = layer(hidden, turn, call, cache, index)
        if rows.logit_rows.shape[0] != rows.tokens.shape[0]:
            hidden = hidden[rows.logit_rows]
        return self._head(self._norm(hidden))


def is_llama_like(module: PreTrainedModel) -> bool:
    """Return whether ``LlamaForward`` computes what the module computes."""
    config = module.config
    return (
        type(module) in _CLASSES
        and config.hidden_act == "silu"
        and getattr(config, "pretraining_tp", 1) == 1
    )


class _Norm:
    """Root mean square normalisation, in float32 (1910.07467)."""

    def __init__(self, module: Any) -> None:
        self._weight: Tensor = module.weight
        size = self._weight.shape[0]
        self._shrink = 1 / math.sqrt(size)
        self._floor = torch.tensor(
            math.sqrt(size * module.variance_epsilon), device=self._weight.device
        )

    def __call__(self, rows: Tensor) -> Tensor:  # [..., D] -> [..., D]
        # The length of a row is the root of its sum of squares; adding epsilon to the
        # mean square is adding a side to a triangle.
        length = torch.linalg.vector_norm(
            rows, dim=-1, keepdim=True, dtype=torch.float32
        )
        root = torch.hypot(length, self._floor).mul_(self._shrink)
        # Rounded before the weight, as the module does it.
        return (rows / root).to(rows.dtype) * self._weight


class _Layer:
    """One decoder layer: attention, then a gated feed-forward, both residual."""

    def __init__(self, module: Any) -> None:
        attention, mlp = module.self_attn, module.mlp
        self._before = _Norm(module.input_layernorm)
        self._between = _Norm(module.post_attention_layernorm)
        self._heads_of = Projections(attention, "qkv_proj")
        self._out: _Rowwise = attention.o_proj
        norms = _norms(attention)
        self._query_norm = _Norm(norms[0]) if norms else None
        self._key_norm = _Norm(norms[1]) if norms else None
        self._head_dim: int = attention.head_dim
        self._scaling: float = attention.scaling
        self._gate_and_up = Projections(mlp, "gate_up_proj")
        self._down: _Rowwise = mlp.down_proj

    def __call__(
        self,
        hidden: Tensor,
        turn: tuple[Tensor, Tensor],
        call: AttentionCall,
        cache: SlotCache,
        index: int,
    ) -> Tensor:  # [T, H]
        projected = self._heads_of(self._before(hidden))
        query, key, value = (self._heads(rows) for rows in projected)
        if self._query_norm is not None and self._key_norm is not None:
            query, key = self._query_norm(query), self._key_norm(key)
        query, key = _turned(query, *turn), _turned(key, *turn)
        cache.write(index, call.rows.slots, key.transpose(0, 1), value.transpose(0, 1))
        pool = cache.layer(index)
        output = attend(
            call,
            index,
            query.transpose(0, 1)[None],
            pool.keys[None],
            pool.values[None],
            self._scaling,
        )
        hidden = hidden + self._out(output[0].transpose(0, 1).flatten(1))
        gate, up = self._gate_and_up(self._between(hidden))
        return hidden + self._down(F.silu(gate).mul_(up))

    def _heads(self, rows: Tensor) -> Tensor:  # [T, heads * D] -> [T, heads, D]
        return rows.view(rows.shape[0], -1, self._head_dim)


def _norms(attention: Any) -> list[nn.Module]:
    """Return the norms of queries and keys, if the model has them."""
    if not hasattr(attention, "q_norm"):
        return []
    return [attention.q_norm, attention.k_norm]


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return heads rotated by their positions (2104.09864); [T, heads, D]."""
    return heads * cos + heads.roll(heads.shape[-1] // 2, dims=-1) * sin
