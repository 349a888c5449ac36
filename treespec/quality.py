"""How likely the target finds a text: what a lossy rule has to answer for."""

from __future__ import annotations

import torch

from treespec.models.base import AbstractLanguageModel
from treespec.models.session import Feed, ModelSession
from treespec.rereading import path_tree
from treespec.types import GenerationResult

_CHUNK = 64


@torch.inference_mode()
def mean_token_logprob(
    target: AbstractLanguageModel, result: GenerationResult
) -> float | None:
    """Return the mean log-probability of a text's new tokens under the target.

    The target reads the text as it stands, a chunk per forward, and its law is the
    plain one of temperature 1. A token that it holds for impossible counts as one of
    the smallest positive probability, so that the mean is a number.

    Args:
        target: The model.
        result: The text; ``None`` is returned if it has no new token.
    """
    prompt, tokens = result.prompt_tokens, result.tokens
    if not tokens:
        return None
    num_slots = len(prompt) + len(tokens)
    session = ModelSession(target, num_slots)
    sequence = session.admit(prompt, num_slots)
    assert sequence is not None
    least = torch.finfo(torch.float64).tiny
    total = 0.0
    for start in range(0, len(tokens), _CHUNK):
        chunk = tokens[start : start + _CHUNK]
        tree = path_tree((sequence.tokens[-1], *chunk[:-1]), 1, target.device)
        nodes = torch.arange(1, tree.size, device=target.device)
        feed = Feed(sequence, tree, nodes) if tree.num_drafted else Feed(sequence)
        logits = session.run([feed])[0].logits
        laws = logits.double().softmax(dim=-1)  # [C, V]
        chosen = laws.gather(-1, torch.tensor(chunk, device=laws.device)[:, None])
        total += float(chosen.clamp(min=least).log().sum())
        session.commit(sequence, range(1, tree.size), chunk)
    return total / len(tokens)
