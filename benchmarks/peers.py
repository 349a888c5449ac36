"""Ways of others to decode, for ``planner.py``: transformers, economize, flashspec.

All of them run on the same stock modules, with the same draft: int8 by dynamic
quantization of every linear layer. economize and flashspec are optional
(``pip install 'treespec[bench]'``).
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

Decode = Callable[[Sequence[int], int], Sequence[int]]
"""From a prompt and a number of tokens to the new tokens."""

MIN_CONFIDENCE = 0.4


@dataclass(frozen=True, slots=True)
class Stock:
    """Stock modules, and how all peers are to decode with them.

    Attributes:
        target: The target.
        draft: The draft in int8, if there is one.
        folder: The target's.
        draft_folder: The draft's.
        eos_ids: Ids that end a text.
        temperature: 0 is greedy.
    """

    target: PreTrainedModel
    draft: torch.nn.Module | None
    folder: str
    draft_folder: str | None
    eos_ids: tuple[int, ...]
    temperature: float


def load_stock(
    target: str,
    draft: str | None,
    dtype: str,
    eos_ids: Iterable[int],
    temperature: float,
) -> Stock:
    """Read the stock modules from their folders."""
    modules = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        .eval()
        .requires_grad_(False)
        for folder in (target, draft)
        if folder is not None
    ]
    quantized = _quantized(modules[1]) if draft is not None else None
    return Stock(
        target=modules[0],
        draft=quantized,
        folder=target,
        draft_folder=draft,
        eos_ids=tuple(sorted(eos_ids)),
        temperature=temperature,
    )


def _quantized(module: torch.nn.Module) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this way to quantize is to leave PyTorch
        return torch.ao.quantization.quantize_dynamic(
            module.float(), {torch.nn.Linear}, dtype=torch.qint8
        )


def generate(stock: Stock, **options: Any) -> Decode:
    """Return the method that calls ``generate`` with these options."""
    settings = GenerationConfig(
        do_sample=stock.temperature > 0,
        temperature=stock.temperature or None,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        eos_token_id=list(stock.eos_ids),
        pad_token_id=stock.eos_ids[0],
    )
    if stock.temperature == 0:
        settings.top_k = settings.top_p = None

    def decode(prompt: Sequence[int], num_tokens: int) -> Sequence[int]:
        ids = torch.tensor([prompt])
        output = stock.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=settings,
            max_new_tokens=num_tokens,
            **options,
        )
        return output[0, len(prompt) :].tolist()

    return decode


def assisted(stock: Stock, kind: str) -> Decode:
    """Return assisted generation: constant drafts, or Hugging Face's heuristic."""
    draft = _draft_of(stock)
    decode = generate(stock, assistant_model=draft)
    constant = kind != "dynamic"

    def with_settings(prompt: Sequence[int], num_tokens: int) -> Sequence[int]:
        # Read from the draft when a call begins, and changed by the heuristic.
        settings = draft.generation_config
        settings.num_assistant_tokens = int(kind) if constant else 5
        settings.num_assistant_tokens_schedule = "constant" if constant else "heuristic"
        settings.assistant_confidence_threshold = 0.0 if constant else MIN_CONFIDENCE
        return decode(prompt, num_tokens)

    return with_settings


def prompt_lookup(stock: Stock, num_drafts: str, ngram: str | None) -> Decode:
    """Return transformers' prompt lookup."""
    return generate(
        stock,
        prompt_lookup_num_tokens=int(num_drafts),
        max_matching_ngram_size=int(ngram or 2),
    )


def economize_lookup(stock: Stock, num_drafts: str, match: str | None) -> Decode:
    """Return economize's prompt lookup; it copies the earliest match, or the latest."""
    from economize.techniques.lookup import LookupConfig  # noqa: PLC0415

    config = LookupConfig(max_ngram=3, min_ngram=1, match=match or "earliest")
    return _economize(stock, config, int(num_drafts), None)


def economize_draft(stock: Stock, num_drafts: str, stops: str | None) -> Decode:
    """Return economize's draft model, with or without its confidence stop."""
    confidence = MIN_CONFIDENCE if stops else None
    return _economize(stock, _economize_model(stock), int(num_drafts), confidence)


def economize_hybrid(stock: Stock, stops: str | None) -> Decode:
    """Return economize's lookup with a draft model where nothing matches."""
    from economize.techniques.hybrid import HybridConfig  # noqa: PLC0415

    config = HybridConfig(
        fallback=_economize_model(stock),
        max_ngram=3,
        min_ngram=3 if stops else 2,
        max_drafts=8 if stops else 5,
        match="latest",
    )
    return _economize(stock, config, 8, MIN_CONFIDENCE if stops else None)


def _economize(
    stock: Stock, config: object, num_drafts: int, min_confidence: float | None
) -> Decode:
    import economize  # noqa: PLC0415

    model = economize.apply(stock.target, config)
    decoding = economize.DecodeConfig(
        cycle_length=num_drafts + 1, min_confidence=min_confidence
    )

    def decode(prompt: Sequence[int], num_tokens: int) -> Sequence[int]:
        ids, stop = torch.tensor(prompt), list(stock.eos_ids)
        return list(model.decode(ids, num_tokens, decoding=decoding, stop=stop).tokens)

    return decode


def _economize_model(stock: Stock) -> object:
    from economize.techniques import draft_model  # noqa: PLC0415

    draft = _draft_of(stock)
    # It reads draft models by path; it is given the module that is in memory.
    draft_model.technique.load_draft_model = lambda config, device, dtype: draft
    return draft_model.DraftModelConfig(model=stock.draft_folder)


def flashspec(stock: Stock, strategy: str) -> Decode:
    """Return flashspec with one draft model: its own mixture, or so many drafts."""
    from flashspec.engine.hf_drafter import HuggingFaceDrafter  # noqa: PLC0415
    from flashspec.engine.speculative import SpeculativeEngine  # noqa: PLC0415
    from flashspec.engine.verifier import TargetModel  # noqa: PLC0415
    from flashspec.utils.config import (  # noqa: PLC0415
        BanditConfig,
        FlashSpecConfig,
        SamplingConfig,
    )

    logging.getLogger("flashspec").setLevel(logging.ERROR)
    draft, composite = _draft_of(stock), strategy == "composite"
    dtype, cpu = stock.target.dtype, torch.device("cpu")
    config = FlashSpecConfig(
        device="cpu",
        dtype=str(dtype).removeprefix("torch."),
        compile=False,
        drafter_strategy="auto" if composite else "bandit",
        bandit=BanditConfig(n_arms=1),
        eos_token_ids=stock.eos_ids,
        sampling=SamplingConfig(
            gamma=4 if composite else int(strategy.removeprefix("draft_")),
            temperature=0.0,
        ),
    )
    drafter = HuggingFaceDrafter(
        stock.draft_folder, "cpu", torch.float32, temperature=0.0, model=draft
    )
    target = TargetModel(stock.folder, cpu, dtype, model=stock.target)
    engine = SpeculativeEngine(config, [drafter], target)

    def decode(prompt: Sequence[int], num_tokens: int) -> Sequence[int]:
        output = engine.generate(torch.tensor([prompt]), max_new_tokens=num_tokens)
        return [token for token in output.output_ids[0].tolist() if token >= 0]

    return decode


def _draft_of(stock: Stock) -> Any:
    if stock.draft is None:
        raise SystemExit("this method needs --draft")
    return stock.draft


PEERS: dict[str, Callable[..., Decode]] = {
    r"hf_generate": generate,
    r"hf_assisted_(\d+|dynamic)": assisted,
    r"hf_prompt_lookup_(\d+)(?:_ngram_(\d+))?": prompt_lookup,
    r"economize_lookup_(\d+)(?:_(latest))?": economize_lookup,
    r"economize_draft_(\d+)(_conf)?": economize_draft,
    r"economize_hybrid(_conf)?": economize_hybrid,
    r"flashspec_(composite|draft_\d+)": flashspec,
}
"""Builders by pattern of the method's name, whose groups are their arguments."""


def is_peer(name: str) -> bool:
    """Return whether a method of this name is one of the peers'."""
    return any(re.fullmatch(pattern, name) for pattern in PEERS)


def peer(name: str, stock: Stock) -> Decode:
    """Return one of the peers' methods; ``ImportError`` if it is not installed."""
    for pattern, build in PEERS.items():
        if found := re.fullmatch(pattern, name):
            return build(stock, *found.groups())
    raise AssertionError(name)
