"""One request on its way through the decoder: its text, its limits, its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from treespec.chance import AbstractChance
from treespec.models.session import CachedSequence
from treespec.types import (
    Budget,
    FinishReason,
    GenerationResult,
    NodeTrace,
    StepRecord,
    Tokenizer,
)


@dataclass(frozen=True, slots=True)
class Stopping:
    """When a text ends.

    Attributes:
        max_new_tokens: Most new tokens.
        max_positions: Longest text, prompt included.
        eos_ids: Ids that end the text; they are kept.
        stop: Strings that end the text; they are cut from ``text``.
        tokenizer: Needed for ``stop`` and for ``text``.
    """

    max_new_tokens: int
    max_positions: int
    eos_ids: frozenset[int]
    stop: tuple[str, ...]
    tokenizer: Tokenizer | None


@dataclass(slots=True)
class Request:
    """Everything that belongs to one prompt while it is decoded.

    Attributes:
        key: Its place among the prompts.
        prompt: Its token ids.
        stopping: When it ends.
        chance: Its own source of randomness for acceptance.
        draft_chance: Its own source of randomness for drafting, apart, so that what is
            drafted never moves what acceptance draws.
        seed: What both were seeded with.
        controller_state: What the controller remembers.
        policy_state: What the policy remembers, once it is admitted.
        sequence: Its slots in the target's pool, once admitted.
        new_tokens: What was committed so far.
        finish_reason: Why it ended, once it has.
        admitted_s: Decoder time at admission.
    """

    key: int
    prompt: tuple[int, ...]
    stopping: Stopping
    chance: AbstractChance
    draft_chance: AbstractChance
    seed: int | None
    controller_state: Any
    policy_state: Any = None
    sequence: CachedSequence | None = None
    new_tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    admitted_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)
    traces: list[NodeTrace] = field(default_factory=list)

    @property
    def remaining(self) -> int:
        """Most tokens that may still be committed."""
        by_length = self.stopping.max_new_tokens - len(self.new_tokens)
        length = len(self.prompt) + len(self.new_tokens)
        return min(by_length, self.stopping.max_positions - length)

    @property
    def max_length(self) -> int:
        """Longest that its text can still become, prompt included."""
        return len(self.prompt) + len(self.new_tokens) + self.remaining

    @property
    def is_prefill(self) -> bool:
        """Whether its next token is its first."""
        return not self.new_tokens

    def fit(self, budget: Budget) -> Budget:
        """Return the budget without nodes too deep ever to be committed."""
        depth = max(min(budget.max_depth, self.remaining - 1), 0)
        return Budget(depth, budget.max_width, budget.max_nodes)

    def append(self, tokens: Sequence[int], time_s: float) -> int:
        """Commit tokens up to the text's end; return how many were taken."""
        for count, token in enumerate(tokens, start=1):
            self.new_tokens.append(token)
            self.token_times_s.append(time_s - self.admitted_s)
            if token in self.stopping.eos_ids:
                self.finish_reason = "eos"
            elif self._finds_stop_string():
                self.finish_reason = "stop"
            elif self.remaining == 0:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                return count
        return len(tokens)

    def result(self) -> GenerationResult:
        """Return what the prompt became."""
        assert self.finish_reason is not None
        times = self.token_times_s
        first = times[0] if times else 0.0
        return GenerationResult(
            prompt_tokens=self.prompt,
            tokens=tuple(self.new_tokens),
            text=self._text(),
            finish_reason=self.finish_reason,
            seed=self.seed,
            prefill_s=first,
            decode_s=times[-1] - first if times else 0.0,
            steps=tuple(self.records),
            token_times_s=tuple(times),
            traces=tuple(self.traces),
        )

    def _text(self) -> str | None:
        tokenizer = self.stopping.tokenizer
        if tokenizer is None:
            return None
        text = tokenizer.decode(self.new_tokens)
        cuts = [text.find(string) for string in self.stopping.stop]
        found = [cut for cut in cuts if cut >= 0]
        return text[: min(found)] if found else text

    def _finds_stop_string(self) -> bool:
        """Whether the newest token completes a stop string."""
        stop, tokenizer = self.stopping.stop, self.stopping.tokenizer
        if not stop or tokenizer is None:
            return False
        # A token that shows adds at least one byte, so this tail holds every match
        # that the newest token can complete, unless many tokens are invisible.
        longest = max(len(string.encode()) for string in stop)
        tail = tokenizer.decode(self.new_tokens[-(2 * longest + 8) :])
        return any(string in tail for string in stop)
