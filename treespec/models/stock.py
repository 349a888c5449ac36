"""Models as transformers itself holds and decodes with them, to be compared with.

Their layers are neither joined nor packed, and ``generate`` is called as anyone would
call it. Only what decides the text is taken out of the hands of the checkpoint: its
``generation_config.json`` is not inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from treespec.models.loading import read_module
from treespec.models.quantize import Int8Linear, LooseInt8Linear, quantize
from treespec.models.source import LocatedModel
from treespec.models.weights import quiet
from treespec.sampling import Sampling

Take = Callable[[Sequence[int]], bool]
"""Is given new tokens; returns whether the text has ended."""


def load_stock(
    located: LocatedModel, key: str, *, exact: bool = True
) -> PreTrainedModel:
    """Read a model's weights and leave its layers as they are, but for quantization.

    Args:
        located: The model.
        key: Place in the configuration, for messages (``pair.target``).
        exact: As for ``load_module``.
    """
    model = read_module(located, key)
    quantization = located.source.quantization
    if quantization is not None:
        quantize(model, quantization, key, exact=exact)
    return model


def is_exact(module: nn.Module) -> bool:
    """Return whether a model computes in float32 throughout."""
    if any(isinstance(part, Int8Linear | LooseInt8Linear) for part in module.modules()):
        return False
    return all(weight.dtype is torch.float32 for weight in module.parameters())


@dataclass(frozen=True, slots=True)
class StockGenerator:
    """The ``generate`` of transformers with fixed options.

    Attributes:
        target: The model.
        draft: Its assistant, if it is to have one.
        eos_ids: Ids that end a text.
        options: Keys of its ``GenerationConfig`` besides those that decide the text.
        draft_options: The same of the assistant's.
    """

    target: PreTrainedModel
    draft: PreTrainedModel | None
    eos_ids: frozenset[int]
    options: Mapping[str, Any] = field(default_factory=dict)
    draft_options: Mapping[str, Any] = field(default_factory=dict)

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        max_new_tokens: int,
        seed: int,
        take: Take,
    ) -> None:
        """Decode one prompt.

        Args:
            prompt: Token ids.
            sampling: How tokens are chosen; its ``processors`` are not applied.
            max_new_tokens: Most new tokens.
            seed: Of the draws, which are transformers' own.
            take: Called with new tokens as they come.
        """
        device = self.target.device
        ids = torch.tensor([list(prompt)], device=device)
        tap = _Tap(take)
        # What a checkpoint recommends would fill in whatever is left open here.
        self.target.generation_config = GenerationConfig()
        arguments: dict[str, Any] = {}
        if self.draft is not None:
            # Set anew, as the heuristic schedule changes it from prompt to prompt.
            self.draft.generation_config = GenerationConfig(**self.draft_options)
            arguments["assistant_model"] = self.draft
        devices = [device] if device.type == "cuda" else []
        with (
            quiet(),
            torch.inference_mode(),
            torch.random.fork_rng(devices),
        ):
            torch.manual_seed(seed)
            self.target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=self._config(sampling, max_new_tokens),
                streamer=tap,
                stopping_criteria=[tap.criterion],
                **arguments,
            )

    def _config(self, sampling: Sampling, max_new_tokens: int) -> GenerationConfig:
        drawn = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
        eos_ids = sorted(self.eos_ids)
        return GenerationConfig(
            do_sample=not sampling.greedy,
            repetition_penalty=sampling.repetition_penalty,
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_ids or None,
            pad_token_id=eos_ids[0] if eos_ids else 0,
            **({} if sampling.greedy else drawn),
            **self.options,
        )


class _Tap(BaseStreamer):
    """Hands new tokens on as they come, and stops when told to."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._seen_prompt = self._ended = False
        self.criterion = _Ended(self)

    def put(self, value: Tensor) -> None:
        """Take what transformers streams: first of all the prompt."""
        if self._seen_prompt:
            self._ended = self._ended or self._take(value.flatten().tolist())
        self._seen_prompt = True

    def end(self) -> None:
        """Do nothing: the text says itself where it ends."""

    @property
    def ended(self) -> bool:
        """Whether the text has ended."""
        return self._ended


class _Ended(StoppingCriteria):
    """Ends the text where whoever takes its tokens says so."""

    def __init__(self, tap: _Tap) -> None:
        self._tap = tap

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Return whether each of B texts has ended, [B]."""
        shape, device = input_ids.shape[:1], input_ids.device
        return torch.full(shape, self._tap.ended, device=device)
