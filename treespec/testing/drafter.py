"""Does a drafter keep its contract?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
)
from treespec.testing.failure import ConformanceError, reported
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
REFUSED_ROUNDS = (
    Round((3, 2, 2, 1), 1.0, refused=(1,)),
    Round((2, 2, 2), 1.0, refused=(0,)),
    Round((2, 2, 2, 2), 0.5, refused=(1, 2)),
)
OTHER_ROUNDS = (Round((2, 3), 1.0), Round((1, 1), 0.0), Round((1,), 1.0))
PROMPTS = ((1, 2, 0, 1, 2, 0, 1, 2), (2, 1, 1, 0, 2, 1), (0,))
DECODINGS: tuple[tuple[AbstractDraftPolicy, AbstractAcceptanceRule, Sampling], ...] = (
    (Chain(), Greedy(), Sampling()),
    (TopKTree(2), Greedy(), Sampling(repetition_penalty=1.2)),
    (TopKTree(2), SampleAndMatch(), Sampling(temperature=1.0)),
)
ALONE = "asked again, in a fresh session"
NOT_A_FUNCTION = "it draws random numbers, or keeps something outside of the session"
REFUSED = "after nodes for which it was allowed no forward"
NOT_READ = (
    "what was not read then must be read later, and nothing may be remembered that was "
    "said without the model"
)
KEPT_APART = (
    "what belongs to a request must be kept by its key, in the session, until release, "
    "and nothing may be drawn at random"
)


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """What was played to a drafter that passed; ``str`` makes it one line.

    Attributes:
        drafter: Its name.
        num_answers: Answers that were the same alone, beside others and after others.
        num_texts: Texts that were those of plain decoding.
        num_warm_texts: As many again, with what the drafter remembers of earlier ones.
        vocab_sizes: Tokens of the targets.
    """

    drafter: str
    num_answers: int
    num_texts: int
    vocab_sizes: tuple[int, ...]
    num_warm_texts: int = 0

    def __str__(self) -> str:
        sizes = " and ".join(map(str, self.vocab_sizes))
        warm = f", {self.num_warm_texts} warm" if self.num_warm_texts else ""
        return (
            f"{self.drafter}: {self.num_answers} answers alike, alone and beside other "
            f"requests; {self.num_texts} texts as without it{warm}; targets of {sizes} "
            "tokens"
        )


def check_drafter(
    drafter: AbstractDrafter,
    target: AbstractLanguageModel | None = None,
    tolerance: float = 1e-4,
) -> DrafterReport:
    """Refuse a drafter that breaks its contract.

    Requests are played to it as a decoder would: chains and branching trees of its own
    candidates, accepted to the leaf, in part and not at all. Its answers must fit the
    tree and the vocabulary; a request must get the same answers alone, beside another
    one, beside another session, and under a key that was used before; where no forward
    is allowed there must be none, and later answers in that tree must be as if it had
    been; the object must not change, and global randomness must stay untouched. Then
    whole texts are decoded with it: they must be those of plain decoding. What a
    drafter remembers across requests takes part in the texts only, those of the first
    toy, and stays remembered: give it a memory of its own.

    What a drafter remembers across requests makes its answers depend on the past, as
    its user wants: its ``cold`` twin is checked.

    Args:
        drafter: The drafter, on the CPU or on the device of ``target``.
        target: A target with the hidden states that the drafter wants, in float32. By
            default two toys, of 8 and of 3 tokens, which have none.
        tolerance: How far a law may move when another request shares the forward, or
            the memory layout is another one: rounding.

    Returns:
        What was played; ``print`` it.

    Raises:
        ConformanceError: Tells what is wrong, and shows the tree.
    """
    with reported(drafter):
        _check_facts(drafter, target)
        cold = drafter.cold()
        models = [target] if target is not None else list(map(_toy, VOCAB_SIZES))
        draws = "draws random numbers, which a drafter must not"
        with leaves_alone(type(drafter).__name__, cold, draws):
            report = _checked([Stage(cold, model) for model in models], tolerance)
        if cold == drafter:
            return report
        # Twice, so that its memory has something to say.
        warm = Stage(drafter, models[0])
        num_texts = sum(_check_texts(warm) for _ in range(2))
        return replace(report, num_warm_texts=num_texts)


@torch.inference_mode()
def _checked(stages: Sequence[Stage], tolerance: float) -> DrafterReport:
    num_answers = [
        _check_sessions(stage, tolerance)
        + sum(_check_refusal(stage, step, tolerance) for step in REFUSED_ROUNDS)
        for stage in stages
    ]
    num_texts = [_check_texts(stage) for stage in stages]
    return DrafterReport(
        drafter=type(stages[0].drafter).__name__,
        num_answers=sum(num_answers),
        num_texts=sum(num_texts),
        vocab_sizes=tuple(stage.target.vocab_size for stage in stages),
    )


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
            f"{name}: source_names must be a tuple of at least one text, got {names!r}"
        )
    are_layers = isinstance(layers, tuple) and all(isinstance(i, int) for i in layers)
    if not are_layers:
        raise ConformanceError(
            f"{name}: hidden_layers must be a tuple of integers, got {layers!r}"
        )
    if layers and target is None:
        raise ConformanceError(
            f"{name} wants the hidden states of layers {list(layers)}, which a "
            "toy target does not have; give check_drafter(drafter, target=MODEL)"
        )


def _check_sessions(stage: Stage, tolerance: float) -> int:
    """Return how many answers were the same again.

    Raises:
        ConformanceError: An answer depends on more than the request's own text.
    """
    prompt, other_prompt, _ = _prompts(stage)
    first = rehearse(stage, prompt, ROUNDS)
    second = rehearse(stage, other_prompt, OTHER_ROUNDS)
    shared, used = stage.start(), stage.start()
    ensembles: dict[str, list[list[Role]]] = {
        ALONE: [[Role(stage.start(), 0, first)]],
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
    return sum(
        _check_replay(stage, roles, how, tolerance)
        for how, plays in ensembles.items()
        for roles in plays
    )


def _check_refusal(stage: Stage, step: Round, tolerance: float) -> int:
    """Return how many answers did not depend on earlier frontiers without a forward.

    Later steps may: a drafter need not read all the text that it has missed.

    Raises:
        ConformanceError: One did, or it depends on another request.
    """
    prompt, other_prompt, _ = _prompts(stage)
    refused = rehearse(stage, prompt, (ROUNDS[0], step))
    other = rehearse(stage, other_prompt, OTHER_ROUNDS)
    shared = stage.start()
    roles = [Role(shared, 0, refused), Role(shared, 1, other)]
    how = "with another request beside it in the session"
    num_answers = _check_replay(stage, roles, how, tolerance)
    allowed = replay(stage, [Role(stage.start(), 0, refused.all_allowed())])
    for expansion, (_, answer) in zip(refused.expansions, allowed, strict=True):
        frontier = expansion.frontier
        if frontier.may_forward or not stage.drafter.runs_model:
            changed = difference(answer, expansion.answer, tolerance)
            if changed is not None:
                raise stage.question(expansion.text, frontier).failure(
                    f"a request got another answer {REFUSED} ({changed}); {NOT_READ}"
                )
            num_answers += 1
    return num_answers


def _check_replay(
    stage: Stage, roles: Sequence[Role], how: str, tolerance: float
) -> int:
    num_answers = 0
    for expansion, answer in replay(stage, roles):
        changed = difference(expansion.answer, answer, tolerance)
        if changed is not None:
            cause = NOT_A_FUNCTION if how == ALONE else KEPT_APART
            raise stage.question(expansion.text, expansion.frontier).failure(
                f"a request got another answer {how} ({changed}); {cause}"
            )
        num_answers += 1
    return num_answers


def _check_texts(stage: Stage) -> int:
    """Return how many texts were those of plain decoding.

    Raises:
        ConformanceError: One was not.
    """
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
                    f"{type(stage.drafter).__name__}: with "
                    f"{type(policy).__name__} and {type(rule).__name__} the text is "
                    "not that of plain decoding\n"
                    f"  prompt {list(result.prompt_tokens)}\n"
                    f"  plain  {list(expected.tokens)}\n"
                    f"  got    {list(result.tokens)}"
                )
    return len(DECODINGS) * len(PROMPTS)


def _prompts(stage: Stage) -> list[list[int]]:
    size = stage.target.vocab_size
    return [[token % size for token in prompt] for prompt in PROMPTS]
