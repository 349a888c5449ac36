"""Hugging Face models over slots: the only file that touches their cache and masks.

A stock ``transformers`` causal language model is given three things: a ``Cache`` whose
layers write at given slots and hand back the whole pool, explicit positions, and an
attention function that reads each request's own slots. Its weights and its code stay
as they are.

Checked with transformers 5.20 and 5.24. What differs between them (the cache argument
is ``cache`` since 5.24, ``past_key_values`` before) is read from the signature.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from treespec.errors import TreespecError
from treespec.models.attention import AttentionCall, attend
from treespec.models.base import AbstractLanguageModel, ForwardRows, ModelOutput
from treespec.models.cache import SlotCache
from treespec.models.llama import LlamaForward, is_llama_like
from treespec.models.lower_layers import lower_layers_of
from treespec.models.quantize import Int8Linear
from treespec.models.support import (
    FULL,
    SLIDING,
    causal_model_class,
    longest_text,
)

ATTENTION = "treespec"
"""Name under which our attention function is registered."""

_UNSUPPORTED_ARGUMENTS = ("s_aux", "position_bias", "alibi", "score_mod")
"""Arguments of an attention call that change it in ways that we do not compute."""


def layer_windows(config: PreTrainedConfig) -> tuple[int | None, ...]:
    """Return the sliding window of each layer, ``None`` for full attention."""
    text = config.get_text_config()
    window: int | None = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        if not getattr(text, "use_sliding_window", True):
            window = None
        return (window,) * int(text.num_hidden_layers)
    return tuple(window if kind == SLIDING else None for kind in kinds)


class _SlotLayer(CacheLayerMixin):
    """One layer of the pool, behind the interface of a transformers cache layer."""

    is_compileable = False
    is_sliding = False

    def __init__(self, cache: SlotCache, index: int, rows: ForwardRows) -> None:
        super().__init__()
        self.is_initialized = True
        self._cache, self._index, self._rows = cache, index, rows

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new rows, [1, H, T, D]; return the whole pool, [1, H, S, D]."""
        self._cache.write(self._index, self._rows.slots, key_states[0], value_states[0])
        view = self._cache.layer(self._index)
        return view.keys[None], view.values[None]

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the pool allocates itself."""

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Return the pool's size and no offset."""
        return self._cache.capacity, 0

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        """Return 0: positions are always given."""
        return 0

    def get_max_length(self) -> int:
        """Return the pool's size."""
        return self._cache.capacity

    def get_max_cache_shape(self) -> int:
        """Return the pool's size (name before transformers 5.24)."""
        return self._cache.capacity

    def reset(self) -> None:
        """Refuse: slots are released by their region."""
        raise AssertionError("a slot pool is never reset by the model")


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    treespec_call: AttentionCall | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Attend, request by request, to the slots that its rows may see.

    Args:
        module: The layer.
        query: Queries of all rows.  # [1, Hq, T, D]
        key: The pool's keys.  # [1, H, S, D]
        value: The pool's values.  # [1, H, S, Dv]
        attention_mask: Unused; the segments say what is visible.
        scaling: Factor on the scores; ``None`` for 1 / sqrt(D).
        softcap: Bound of a tanh on the scores, if the model has one.
        treespec_call: The forward's rows and the layers' windows.
        **arguments: What else models pass; refused if it would change the scores.

    Returns:
        Attention output  # [1, T, Hq, Dv], and no weights.
    """
    if treespec_call is None:
        raise TreespecError(
            f"{type(module).__name__} got no slots to attend to: either it was called "
            "outside of treespec (call module.set_attn_implementation('sdpa') first), "
            "or its layers do not pass them on (use attn_implementation=sdpa)"
        )
    for name in _UNSUPPORTED_ARGUMENTS:
        if arguments.get(name) is not None:
            raise TreespecError(
                f"{type(module).__name__} passes {name!r} to its attention, which "
                "treespec does not compute; choose a model without it"
            )
    layer = _layer_index(module)
    output = attend(treespec_call, layer, query, key, value, scaling, softcap)
    return output.transpose(1, 2).contiguous(), None


def _layer_index(module: nn.Module) -> int:
    """Return which layer an attention module belongs to."""
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise TreespecError(
            f"{type(module).__name__} does not say which layer it is (layer_idx); "
            "choose a model of the Llama, Qwen, Gemma, Mistral or GPT-2 kind"
        )
    return index


AttentionInterface.register(ATTENTION, slot_attention)


class HuggingFaceModel(AbstractLanguageModel):
    """A ``transformers`` decoder-only model over slots."""

    def __init__(
        self, module: PreTrainedModel, attention: str = ATTENTION, exact: bool = True
    ) -> None:
        """Adapt a loaded module; its weights are shared, not copied.

        Args:
            module: A causal language model in evaluation mode.
            attention: ``treespec`` for our attention function, or ``sdpa`` or
                ``eager`` for the model's own with a mask over the pool.
            exact: Whether a module quantized for the CPU is to give a text the same
                bits in a tree as in plain decoding, with ``attention="treespec"``. Its
                attention then goes row by row. A draft need not.

        Raises:
            TreespecError: If its layers cannot be a slot pool.
        """
        causal_model_class(module.config, "the model")
        text = module.config.get_text_config()
        self.module = module
        self.attention = attention
        # Rounding to integers makes a large difference of the smallest one, so a
        # quantized model repeats its answers bit by bit or not at all.
        self._alone = exact and any(
            isinstance(part, Int8Linear) for part in module.modules()
        )
        self._whole = module  # of which ``module`` may be the lower layers
        self._windows = layer_windows(module.config)
        self._vocab_size = int(text.vocab_size)
        longest = longest_text(module.config)
        self._max_positions = int(longest or text.max_position_embeddings)
        self._device: torch.device = module.get_input_embeddings().weight.device
        names = inspect.signature(module.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._has_layer_kinds = getattr(text, "layer_types", None) is not None
        self._direct = None
        if attention == ATTENTION and is_llama_like(module):
            self._direct = LlamaForward(module)

    @property
    def vocab_size(self) -> int:
        """Width of the logits, padding rows of the embedding included."""
        return self._vocab_size

    @property
    def max_positions(self) -> int:
        """Longest text, in tokens."""
        return self._max_positions

    @property
    def num_layers(self) -> int:
        """Number of transformer layers."""
        return len(self._windows)

    @property
    def device(self) -> torch.device:
        """Where rows and logits live."""
        return self._device

    @property
    def windows(self) -> frozenset[int]:
        """Sliding-window lengths of the layers that have one."""
        return frozenset(window for window in self._windows if window is not None)

    def lower_layers(self, num_layers: int) -> HuggingFaceModel:
        """Return the first layers with the final norm and head, sharing all weights.

        The module stays as it is; hidden states are given by the whole model only.
        """
        lower = HuggingFaceModel(
            lower_layers_of(self.module, num_layers), self.attention, exact=False
        )
        lower._whole = self._whole
        return lower

    def new_cache(self, capacity: int) -> SlotCache:
        """Return an empty pool of ``capacity`` slots for this model."""
        return SlotCache(len(self._windows), capacity, self.device)

    def forward(
        self, rows: ForwardRows, cache: SlotCache, hidden_layers: tuple[int, ...] = ()
    ) -> ModelOutput:
        """Run the module on one row of nodes."""
        if hidden_layers and self.module is not self._whole:
            raise TreespecError("the lower layers of a model give no hidden states")
        self._select_attention()
        call = AttentionCall(rows, self._windows, self._alone)
        direct = self._direct
        if direct is not None and not hidden_layers and not direct.is_hooked:
            return ModelOutput(direct(call, cache), None)
        layers = [_SlotLayer(cache, i, rows) for i in range(len(self._windows))]
        ours = self.attention == ATTENTION
        wants_all = rows.logit_rows.shape[0] == rows.tokens.shape[0]
        output = self.module(
            input_ids=rows.tokens[None],
            position_ids=rows.positions[None],
            attention_mask=None if ours else self._stock_mask(rows, cache),
            use_cache=True,
            logits_to_keep=0 if wants_all else rows.logit_rows,
            output_hidden_states=bool(hidden_layers),
            **{self._cache_argument: Cache(layers=layers)},
            **({"treespec_call": call} if ours else {}),
        )
        if ours and call.layers != list(range(len(self._windows))):
            raise TreespecError(
                f"{type(self.module).__name__} ran layers {call.layers} through the "
                f"attention interface, not each of its {len(self._windows)} layers "
                "once and in order, so its cache cannot be a slot pool; choose a model "
                "that does"
            )
        hidden = None
        if hidden_layers:
            states = [output.hidden_states[i][0] for i in hidden_layers]
            hidden = torch.stack(states, dim=1)[rows.logit_rows]
        return ModelOutput(output.logits[0], hidden)

    def _select_attention(self) -> None:
        """Make the module use our choice, which others may have changed meanwhile.

        Lower layers read the configuration of the whole model that they belong to.
        """
        for module in (self._whole, self.module):
            if module.config._attn_implementation != self.attention:
                module.set_attn_implementation(self.attention)

    def _stock_mask(
        self, rows: ForwardRows, cache: SlotCache
    ) -> Tensor | dict[str, Tensor]:
        """Return the additive mask over the pool for stock attention functions."""
        if not self._has_layer_kinds:
            return self._pool_bias(rows, cache, self._windows[0])
        window = next(iter(self.windows), None)
        full = self._pool_bias(rows, cache, None)
        if window is None:
            return full
        return {FULL: full, SLIDING: self._pool_bias(rows, cache, window)}

    def _pool_bias(
        self, rows: ForwardRows, cache: SlotCache, window: int | None
    ) -> Tensor:
        """Return 0 where a row sees a slot, else the lowest number; [1, 1, T, S]."""
        dtype = self.module.dtype
        shape = (rows.tokens.shape[0], cache.capacity)
        bias = torch.full(
            shape, torch.finfo(dtype).min, dtype=dtype, device=self.device
        )
        for segment in rows.segments:
            sees = segment.sees(window)
            block = bias[
                segment.row_start : segment.row_stop,
                segment.slot_start : segment.slot_stop,
            ]
            if sees is None:
                block.zero_()
            else:
                block.masked_fill_(sees, 0)
        return bias[None, None]
