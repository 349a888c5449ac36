"""The decoding loop of transformers, behind the interface of the decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import nn

from treespec.intake import Order, Prompt, Seed, make_requests
from treespec.models.base import AbstractLanguageModel
from treespec.models.stock import StockGenerator
from treespec.request import Request, Stopping
from treespec.sampling import Sampling
from treespec.stopwatch import Stopwatch
from treespec.types import GenerationResult, Tokenizer


@dataclass(frozen=True, slots=True)
class StockDecoder:
    """Decodes prompts with ``generate`` of transformers, one after the other.

    Texts end where the decoder's would. The time to the first token leaves out what was
    drafted before it: drafting is part of decoding, there as here.

    Attributes:
        generator: Stock modules and how they decode.
        target: The same target as the decoder holds it, for limits and vocabulary.
        tokenizer: For texts, and for stop strings.
        eos_ids: Ids that end a text.
    """

    generator: StockGenerator
    target: AbstractLanguageModel
    tokenizer: Tokenizer | None
    eos_ids: frozenset[int]

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        max_new_tokens: int,
        seed: Seed = 0,
        stop: Sequence[str] = (),
    ) -> list[GenerationResult]:
        """Decode all prompts; arguments as of ``SpeculativeDecoder.generate``.

        Raises:
            TreespecError: A prompt or a setting is impossible.
        """
        stopping = Stopping(
            max_new_tokens=max_new_tokens,
            max_positions=self.target.max_positions,
            eos_ids=self.eos_ids,
            stop=tuple(stop),
            tokenizer=self.tokenizer,
        )
        order = Order(prompts, max_new_tokens, seed, stop)
        requests = make_requests(order, self.target, stopping, lambda: None)
        return [self._decode(request, sampling) for request in requests]

    def _decode(self, request: Request, sampling: Sampling) -> GenerationResult:
        if request.finish_reason is not None:
            return request.result()
        watch = Stopwatch(self.target.device)

        def take(tokens: Sequence[int]) -> bool:
            request.append(tokens, watch.total())
            return request.finish_reason is not None

        with _drafting(self.generator.draft, request, self.target) as drafted:
            self.generator.generate(
                request.prompt, sampling, request.remaining, request.seed or 0, take
            )
        result = request.result()
        first_s = result.prefill_s - drafted.seconds
        decode_s = result.decode_s + drafted.seconds
        return replace(result, prefill_s=first_s, decode_s=decode_s)


@dataclass(slots=True)
class _Drafted:
    """Seconds of the draft's forwards before the first token."""

    seconds: float = 0.0


@contextmanager
def _drafting(
    draft: nn.Module | None, request: Request, target: AbstractLanguageModel
) -> Iterator[_Drafted]:
    """Count the draft's seconds while the request has no token yet."""
    drafted = _Drafted()
    if draft is None:
        yield drafted
        return
    watch = Stopwatch(target.device)

    def begin(*_: object) -> None:
        watch.lap()

    def end(*_: object) -> None:
        seconds = watch.lap()
        if request.is_prefill:
            drafted.seconds += seconds

    hooks = [draft.register_forward_pre_hook(begin), draft.register_forward_hook(end)]
    try:
        yield drafted
    finally:
        for hook in hooks:
            hook.remove()
