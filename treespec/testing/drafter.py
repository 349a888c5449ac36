"""Does a drafter keep its contract?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treespec.acceptance import AbstractAcceptanceRule, Greedy, SampleAndMatch
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import AbstractDrafter
from treespec.models.base import AbstractLanguageModel
from treespec.policies import AbstractDraftPolicy, Chain, TopKTree
from treespec.sampling import Sampling
from treespec.testing.answers import difference
from treespec.testing.episodes import (
    Role,
    Round,
    Stage,
    rehearse,
    replay,
    reported,
)
from treespec.testing.failure import ConformanceError
from treespec.testing.purity import leaves_alone
from treespec.testing.toys import random_model, table_model
from treespec.verifiers import TreeAttention

VOCAB_SIZES = (8, 3)
"""Of the toy targets; a drafter may know more tokens than the smaller one."""
ROUNDS = (
    Round((1, 1, 1), 1.0),
    Round((2, 2, 1), 0.5),
    Round((3, 2), 0.0),
    Round((), 0.0),
    Round((2, 1, 1), 1.0),
)
OTHER_ROUNDS = (Round((2, 3), 1.0), Round((1, 1), 0.0), Round((1,), 1.0))
PROMPTS = ((1, 2, 0, 1, 2, 0, 1, 2), (2, 1, 1, 0, 2, 1), (0,))
DECODINGS: tuple[tuple[AbstractDraftPolicy, AbstractAcceptanceRule, Sampling], ...] = (
    (Chain(), Greedy(), Sampling()),
    (TopKTree(2), Greedy(), Sampling(repetition_penalty=1.2)),
    (TopKTree(2), SampleAndMatch(), Sampling(temperature=1.0)),
)


def check_drafter(
    drafter: AbstractDrafter,
    target: AbstractLanguageModel | None = None,
    tolerance: float = 1e-4,
) -> None:
    """Refuse a drafter that breaks its contract.

    Requests are played to it as a decoder would: chains and branching trees of its own
    candidates, accepted to the leaf, in part and not at all. Its answers must fit the
    tree and the vocabulary; a request must get the same answers alone, beside another
    one, beside another session, and under a key that was used before; the object must
    not change, and global randomness must stay untouched. Then whole texts are decoded
    with it: they must be those of plain decoding.

    Args:
        drafter: The drafter, on the CPU or on the device of ``target``.
        target: A target with the hidden states that the drafter wants, in float32. By
            default two toys, of 8 and of 3 tokens, which have none.
        tolerance: How far a law may move when another request shares the forward, or
            the memory layout is another one: rounding.

    Raises:
        ConformanceError: Tells what is wrong, and shows the tree.
    """
    _check_facts(drafter, target)
    targets = [target] if target is not None else [_toy(size) for size in VOCAB_SIZES]
    with (
        leaves_alone(f"drafter {type(drafter).__name__}", drafter),
        torch.inference_mode(),
    ):
        for model in targets:
            stage = Stage(drafter, model)
            _check_sessions(stage, tolerance)
            _check_texts(stage)


def _toy(vocab_size: int) -> AbstractLanguageModel:
    return table_model(random_model(vocab_size, seed=vocab_size), vocab_size)


def _check_facts(
    drafter: AbstractDrafter, target: AbstractLanguageModel | None
) -> None:
    """Refuse something that is no drafter, or that does not state its two facts."""
    name = type(drafter).__name__
    if not isinstance(drafter, AbstractDrafter):
        raise ConformanceError(
            f"check_drafter wants an AbstractDrafter, got a {name}; derive from "
            "treespec.drafters.AbstractDrafter"
        )
    names, layers = drafter.source_names, drafter.hidden_layers
    are_names = isinstance(names, tuple) and all(isinstance(n, str) for n in names)
    if not are_names or not names:
        raise ConformanceError(
            f"drafter {name}: source_names must be a tuple of at least one text, got "
            f"{names!r}"
        )
    are_layers = isinstance(layers, tuple) and all(isinstance(i, int) for i in layers)
    if not are_layers:
        raise ConformanceError(
            f"drafter {name}: hidden_layers must be a tuple of integers, got {layers!r}"
        )
    if layers and target is None:
        raise ConformanceError(
            f"drafter {name} wants the hidden states of layers {list(layers)}, which a "
            "toy target does not have; give check_drafter(drafter, target=MODEL)"
        )


def _check_sessions(stage: Stage, tolerance: float) -> None:
    """Refuse a drafter whose answers depend on more than the request's own text."""
    prompt, other_prompt, _ = _prompts(stage)
    first = rehearse(stage, prompt, ROUNDS)
    second = rehearse(stage, other_prompt, OTHER_ROUNDS)
    shared, used = stage.start(), stage.start()
    ensembles: dict[str, list[list[Role]]] = {
        "asked again, in a fresh session": [[Role(stage.start(), 0, first)]],
        "with another request beside it in the session": [
            [Role(shared, 0, first), Role(shared, 1, second)]
        ],
        "with another request in another session of the same drafter": [
            [Role(stage.start(), 0, first), Role(stage.start(), 0, second)]
        ],
        "under a key that an earlier, released request had": [
            [Role(used, 0, second)],
            [Role(used, 0, first)],
        ],
    }
    for how, plays in ensembles.items():
        for roles in plays:
            _check_replay(stage, roles, how, tolerance)


def _check_replay(
    stage: Stage, roles: Sequence[Role], how: str, tolerance: float
) -> None:
    for expansion, answer in replay(stage, roles):
        changed = difference(expansion.answer, answer, tolerance)
        if changed is not None:
            raise stage.question(expansion.text, expansion.frontier).failure(
                f"a request got another answer {how} ({changed}); what belongs to a "
                "request must be kept by its key, in the session, until release"
            )


def _check_texts(stage: Stage) -> None:
    """Refuse a drafter with which a decoder writes another text than without it."""
    for policy, rule, sampling in DECODINGS:
        decoder = SpeculativeDecoder(
            stage.target,
            stage.drafter,
            policy,
            rule,
            TreeAttention(),
            Constant(max_depth=3, max_width=4, max_nodes=7),
            max_concurrent=2,
        )
        prompts = _prompts(stage)
        plain = decoder.autoregressive().generate(prompts, sampling, 20, seed=5)
        with reported(stage.drafter, f"decoding with {type(policy).__name__}"):
            results = decoder.generate(prompts, sampling, 20, seed=5)
        for result, expected in zip(results, plain, strict=True):
            if result.tokens != expected.tokens:
                raise ConformanceError(
                    f"drafter {type(stage.drafter).__name__}: with "
                    f"{type(policy).__name__} and {type(rule).__name__} the text is "
                    "not that of plain decoding\n"
                    f"  prompt {list(result.prompt_tokens)}\n"
                    f"  plain  {list(expected.tokens)}\n"
                    f"  got    {list(result.tokens)}"
                )


def _prompts(stage: Stage) -> list[list[int]]:
    size = stage.target.vocab_size
    return [[token % size for token in prompt] for prompt in PROMPTS]
