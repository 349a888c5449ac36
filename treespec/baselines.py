"""What a strategy is compared with: the same prompts, decoded in some other way.

Both decode every prompt in turns, in one process. ``Autoregressive`` is treespec's own
loop without speculation: what differs is speculation, and nothing else. The others are
``generate`` of transformers on its own modules: another loop, other kernels.

``summary.json`` says by name which of them ``speedup`` is over and whose texts
``lossless`` compares with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from torch import nn

from treespec.acceptance import Greedy, SampleAndMatch
from treespec.decoder import SpeculativeDecoder
from treespec.errors import TreespecError, require_integer, require_number
from treespec.metrics import PLAIN
from treespec.models.stock import StockGenerator, is_exact
from treespec.sampling import Sampling
from treespec.stock_decoder import StockDecoder
from treespec.types import GenerationResult

_SCHEDULES = ("constant", "heuristic")
_TARGET, _DRAFT = "pair.target", "pair.draft"


class Decodes(Protocol):
    """Whatever makes texts of prompts as the decoder does."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        max_new_tokens: int,
        seed: int | Sequence[int] | None = 0,
        stop: Sequence[str] = (),
    ) -> list[GenerationResult]:
        """Decode all prompts and return their results in order."""


@dataclass(frozen=True, slots=True)
class ReadyBaseline:
    """A baseline whose models are loaded.

    Attributes:
        name: What it is called.
        decodes: What decodes.
        rounds_alike: Whether its texts are the decoder's but for measured ties: where
            other kernels round to 8 or 16 bits, they need not be.
        draws_alike: Whether it draws with the decoder's uniforms.
    """

    name: str
    decodes: Decodes
    rounds_alike: bool = True
    draws_alike: bool = True


class AbstractBaseline(ABC):
    """A way to decode, before its models are loaded.

    Attributes:
        name: What it is called in tables.
        needs: Keys of the models that it wants as stock modules, beside the decoder's.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def check(self, sampling: Sampling, max_concurrent: int) -> None:
        """Refuse what it cannot do.

        Raises:
            TreespecError: Names the key and the way out.
        """

    @abstractmethod
    def ready(
        self,
        decoder: SpeculativeDecoder,
        sampling: Sampling,
        stock: Mapping[str, nn.Module],
    ) -> ReadyBaseline:
        """Return it with its models.

        Args:
            decoder: With speculation.
            sampling: How tokens will be chosen.
            stock: The modules that it needs, by key.
        """


@dataclass(frozen=True, slots=True)
class Autoregressive(AbstractBaseline):
    """The decoder itself, with speculation off.

    Its tokens are chosen by the plainest rule, so that a rule that is wrong in itself
    shows.
    """

    name = PLAIN

    def check(self, sampling: Sampling, max_concurrent: int) -> None:
        """Accept everything that the decoder accepts."""

    def ready(
        self,
        decoder: SpeculativeDecoder,
        sampling: Sampling,
        stock: Mapping[str, nn.Module],
    ) -> ReadyBaseline:
        """Return it; it needs no models of its own."""
        rule = Greedy() if sampling.greedy else SampleAndMatch()
        return ReadyBaseline(
            self.name, replace(decoder.autoregressive(), acceptance=rule)
        )


class AbstractStockBaseline(AbstractBaseline):
    """The ``generate`` of transformers with options, on stock modules."""

    needs = frozenset({_TARGET})

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name with what is worth telling of its options."""

    @property
    @abstractmethod
    def options(self) -> Mapping[str, Any]:
        """Keys of the ``GenerationConfig`` of the target."""

    @property
    def draft_options(self) -> Mapping[str, Any]:
        """Keys of the ``GenerationConfig`` of the assistant."""
        return {}

    def check(self, sampling: Sampling, max_concurrent: int) -> None:
        """Refuse several prompts at once, and processors of the user's."""
        if max_concurrent > 1:
            raise TreespecError(
                f"baseline={self.name} decodes one prompt at a time, got "
                f"max_concurrent={max_concurrent}; use max_concurrent=1, or "
                f"baseline={PLAIN}"
            )
        if sampling.processors:
            raise TreespecError(
                f"baseline={self.name} cannot apply sampling.processors; drop them, or "
                f"use baseline={PLAIN}"
            )

    def ready(
        self,
        decoder: SpeculativeDecoder,
        sampling: Sampling,
        stock: Mapping[str, nn.Module],
    ) -> ReadyBaseline:
        """Return it with its stock modules."""
        target: Any = stock[_TARGET]
        draft: Any = stock.get(_DRAFT)
        generator = StockGenerator(
            target, draft, decoder.eos_ids, self.options, self.draft_options
        )
        decodes = StockDecoder(
            generator, decoder.target, decoder.tokenizer, decoder.eos_ids
        )
        return ReadyBaseline(
            self.title, decodes, rounds_alike=is_exact(target), draws_alike=False
        )


@dataclass(frozen=True, slots=True)
class HfGenerate(AbstractStockBaseline):
    """Plain ``generate`` of transformers.

    Attributes:
        use_cache: Whether keys and values are kept; without, every token reads the
            whole text again.
    """

    use_cache: bool = True
    name = "hf_generate"

    def __post_init__(self) -> None:
        """Check the value."""
        if not isinstance(self.use_cache, bool):
            raise TreespecError(
                f"baseline.use_cache must be true or false, got {self.use_cache!r}"
            )

    @property
    def title(self) -> str:
        """Its name, and whether it has no cache."""
        return self.name if self.use_cache else f"{self.name} without cache"

    @property
    def options(self) -> Mapping[str, Any]:
        """Whether to cache."""
        return {"use_cache": self.use_cache}


@dataclass(frozen=True, slots=True)
class HfAssisted(AbstractStockBaseline):
    """Assisted generation of transformers: chains of the pair's draft model.

    Attributes:
        num_assistant_tokens: Drafted tokens per step, or of the first step.
        schedule: ``constant``, or ``heuristic``: 2 more after a step that accepted all,
            1 less after any other.
        min_confidence: The draft stops after a token that it gives less than this; 0:
            it never does.
    """

    num_assistant_tokens: int = 5
    schedule: str = "constant"
    min_confidence: float = 0.0
    name = "hf_assisted"
    needs = frozenset({_TARGET, _DRAFT})

    def __post_init__(self) -> None:
        """Check the values."""
        require_integer("baseline.num_assistant_tokens", self.num_assistant_tokens, 1)
        require_number("baseline.min_confidence", self.min_confidence)
        if not 0 <= self.min_confidence <= 1:
            raise TreespecError(
                "baseline.min_confidence must be a number from 0 to 1, got "
                f"{self.min_confidence!r}"
            )
        if self.schedule not in _SCHEDULES:
            raise TreespecError(
                f"baseline.schedule must be one of {', '.join(_SCHEDULES)}, got "
                f"{self.schedule!r}"
            )

    @property
    def title(self) -> str:
        """Its name with the number of drafted tokens."""
        changes = "" if self.schedule == "constant" else f" {self.schedule}"
        return f"{self.name} {self.num_assistant_tokens}{changes}"

    @property
    def options(self) -> Mapping[str, Any]:
        """Nothing: the number of tokens is the assistant's to know."""
        return {}

    @property
    def draft_options(self) -> Mapping[str, Any]:
        """How long the chains are."""
        return {
            "num_assistant_tokens": self.num_assistant_tokens,
            "num_assistant_tokens_schedule": self.schedule,
            "assistant_confidence_threshold": self.min_confidence,
        }


@dataclass(frozen=True, slots=True)
class HfPromptLookup(AbstractStockBaseline):
    """Prompt lookup of transformers.

    Attributes:
        num_tokens: Most copied tokens per step.
        max_ngram: Longest end of the text that is looked for in it.
    """

    num_tokens: int = 8
    max_ngram: int = 2
    name = "hf_prompt_lookup"

    def __post_init__(self) -> None:
        """Check the values."""
        require_integer("baseline.num_tokens", self.num_tokens, 1)
        require_integer("baseline.max_ngram", self.max_ngram, 1)

    @property
    def title(self) -> str:
        """Its name with the number of copied tokens."""
        return f"{self.name} {self.num_tokens}"

    @property
    def options(self) -> Mapping[str, Any]:
        """How much is copied, and of what."""
        return {
            "prompt_lookup_num_tokens": self.num_tokens,
            "max_matching_ngram_size": self.max_ngram,
        }
