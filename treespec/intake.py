"""From what the user gave to requests: prompts, seeds and limits, all checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treespec.chance import GeneratorChance
from treespec.errors import TreespecError
from treespec.models.base import AbstractLanguageModel
from treespec.request import Request, Stopping

Prompt = str | Sequence[int]
Seed = int | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Order:
    """What the user asked for, in one call.

    Attributes:
        prompts: Texts or token ids.
        max_new_tokens: Most new tokens per prompt.
        seed: One per prompt, or one for all (prompt i then has ``seed + i``), or
            ``None`` to leave it to chance.
        stop: Strings that end a text.
    """

    prompts: Sequence[Prompt]
    max_new_tokens: int
    seed: Seed
    stop: Sequence[str]

    def __post_init__(self) -> None:
        """Refuse one text where a list is wanted: its characters would be taken."""
        if isinstance(self.prompts, str):
            raise TreespecError(
                "prompts must be a list, got one text; put it into brackets: [prompt]"
            )
        if isinstance(self.stop, str) or "" in self.stop:
            raise TreespecError(
                f"stop must be a list of non-empty strings, got {self.stop!r}; "
                "use [] for none"
            )
        if self.max_new_tokens < 0:
            raise TreespecError(
                f"max_new_tokens must be >= 0, got {self.max_new_tokens}"
            )


def make_requests(
    order: Order,
    target: AbstractLanguageModel,
    stopping: Stopping,
    first_state: Callable[[], Any],
) -> list[Request]:
    """Return one request per prompt, in order.

    Args:
        order: What the user asked for.
        target: The model that will read the prompts.
        stopping: When texts end.
        first_state: Makes the controller's state at the start of a request.

    Raises:
        TreespecError: A prompt or a setting is impossible.
    """
    if stopping.stop and stopping.tokenizer is None:
        raise TreespecError("stop strings need a decoder with a tokenizer")
    seeds = _seeds(order.seed, len(order.prompts))
    requests = []
    for key, (prompt, seed) in enumerate(zip(order.prompts, seeds, strict=True)):
        request = Request(
            key=key,
            prompt=_prompt_tokens(key, prompt, target, stopping),
            stopping=stopping,
            chance=_chance(seed, target.device),
            draft_chance=_chance(_draft_seed(seed), target.device),
            seed=seed,
            controller_state=first_state(),
        )
        if request.remaining <= 0:
            request.finish_reason = "length"
        requests.append(request)
    return requests


def _prompt_tokens(
    key: int, prompt: Prompt, target: AbstractLanguageModel, stopping: Stopping
) -> tuple[int, ...]:
    """Return a prompt's token ids, checked."""
    if isinstance(prompt, str):
        if stopping.tokenizer is None:
            raise TreespecError(
                f"prompt {key} is text, but the decoder has no tokenizer; give one "
                "or give token ids"
            )
        prompt = stopping.tokenizer.encode(prompt)
    tokens = tuple(int(token) for token in prompt)
    if not tokens:
        raise TreespecError(
            f"prompt {key} has no tokens; give at least one (the model's "
            "beginning-of-sequence token, say)"
        )
    if len(tokens) > target.max_positions:
        raise TreespecError(
            f"prompt {key} has {len(tokens)} tokens, but the target reads at most "
            f"{target.max_positions}; shorten it or choose a model with a longer "
            "context"
        )
    if not 0 <= min(tokens) <= max(tokens) < target.vocab_size:
        raise TreespecError(
            f"prompt {key} has token ids from {min(tokens)} to {max(tokens)}, but "
            f"the target's vocabulary is 0 to {target.vocab_size - 1}"
        )
    return tokens


def _seeds(seed: Seed, count: int) -> list[int | None]:
    """Return one seed per prompt."""
    if seed is None:
        return [None] * count
    if isinstance(seed, int):
        return [seed + i for i in range(count)]
    if len(seed) != count:
        raise TreespecError(
            f"seed must be one number or one per prompt, got {len(seed)} for "
            f"{count} prompts"
        )
    return list(seed)


def _draft_seed(seed: int | None) -> int | None:
    """Return the seed of a request's drafting.

    Hashed, because neighbouring requests often have neighbouring seeds: one's drafts
    must not be drawn by the uniforms of another's acceptance.
    """
    if seed is None:
        return None
    digest = hashlib.sha256(f"draft\0{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _chance(seed: int | None, device: torch.device) -> GeneratorChance:
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return GeneratorChance(generator)
