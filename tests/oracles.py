"""What is right, said by something that is not treespec.

Text comes from ``transformers`` ``generate``, margins and keys from plain forwards
without a slot pool. The modules here are instances of their own, so that nothing which
treespec does to its module can reach the oracle.
"""

import inspect
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from tests.tiny import Family, tiny_model
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.session import CachedSequence, ModelSession

NEVER = -1
"""An id that no model says. Without one ``generate`` would use the config's own."""


CLOSE = {"atol": 5e-5, "rtol": 1e-4}
"""What fp32 forwards of different shapes may differ by; tiny logits are of size 5."""


@cache
def reference(family: Family, seed: int, num_layers: int = 2) -> PreTrainedModel:
    """A module that only oracles call."""
    return tiny_model(family, seed, num_layers=num_layers)


@cache
def adapted(family: Family, seed: int, num_layers: int = 2) -> HuggingFaceModel:
    """The same weights behind treespec's interface."""
    return HuggingFaceModel(tiny_model(family, seed, num_layers=num_layers))


def greedy_oracle(
    model: PreTrainedModel,
    prompt: Sequence[int],
    num_tokens: int,
    eos_ids: Sequence[int] = (),
    repetition_penalty: float = 1.0,
    no_repeat_ngram_size: int = 0,
) -> list[int]:
    """The new tokens of ``generate(do_sample=False)``, settings not inherited."""
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=num_tokens,
        eos_token_id=list(eos_ids) or [NEVER],
        pad_token_id=0,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
    )
    ids = torch.tensor([list(prompt)])
    texts = model.generate(
        ids, attention_mask=torch.ones_like(ids), generation_config=config
    )
    new_tokens: list[int] = texts[0, len(prompt) :].tolist()
    return new_tokens


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, text: Sequence[int]) -> Tensor:
    """Next-token logits after every token of a text, without any cache.  # [L, V]"""
    logits: Tensor = model(torch.tensor([list(text)]), use_cache=False).logits[0]
    return logits


def teacher_forced_margins(
    model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int]
) -> list[float]:
    """How far each token's logit is below the best one; 0 is the argmax."""
    logits = plain_logits(model, [*prompt, *tokens])[len(prompt) - 1 : -1].float()
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    margins: list[float] = (logits.amax(dim=-1) - chosen).tolist()
    return margins


@torch.inference_mode()
def fresh_keys_and_values(
    model: PreTrainedModel, text: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of a text per layer, from one plain forward.  # [H, L, D]"""
    stock = DynamicCache()
    names = inspect.signature(model.forward).parameters
    argument = "cache" if "cache" in names else "past_key_values"
    model(torch.tensor([list(text)]), use_cache=True, **{argument: stock})
    return [(layer.keys[0], layer.values[0]) for layer in stock.layers]


def assert_cache_is_fresh(
    session: ModelSession, sequence: CachedSequence, model: PreTrainedModel
) -> None:
    """First and last layer hold what a plain forward of the committed text gives."""
    num_fed = len(sequence.line)
    if not num_fed:
        return
    fresh = fresh_keys_and_values(model, sequence.tokens[:num_fed])
    for index in (0, len(fresh) - 1):
        stored = session.cache.layer(index)
        line = torch.tensor(sequence.line)
        for pool, expected in zip(
            (stored.keys, stored.values), fresh[index], strict=True
        ):
            torch.testing.assert_close(pool[:, line], expected, **CLOSE)


def assert_no_slot_leaks(
    session: ModelSession, sequences: Sequence[CachedSequence]
) -> None:
    """Between steps the live slots are those of committed tokens, and no others."""
    cache = session.cache
    assert cache.num_free + cache.num_live == cache.capacity
    assert cache.num_live == sum(len(sequence.line) for sequence in sequences)
    for sequence in sequences:
        region, line = sequence.region, sequence.line
        assert len(set(line)) == len(line) == region.num_live
        assert all(region.start <= slot < region.stop for slot in line)
        assert cache.positions[line].tolist() == list(range(len(line)))
