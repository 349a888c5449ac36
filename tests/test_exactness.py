"""Speculation changes nothing: fp32 text equals ``generate(do_sample=False)``."""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor

from tests.oracles import (
    NEVER,
    adapted,
    greedy_oracle,
    reference,
    teacher_forced_margins,
)
from tests.tiny import FAMILIES, Family, perturbed, tiny_model
from treespec.acceptance import AbstractAcceptanceRule, Greedy, SampleAndMatch
from treespec.controllers import (
    AbstractController,
    AdaptiveDepth,
    Bandit,
    Constant,
    HeuristicDepth,
    OffSwitch,
    replay,
)
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import (
    AbstractDrafter,
    Cascade,
    DraftModel,
    Marginals,
    Merge,
    PromptLookup,
    TokenRecycling,
)
from treespec.models.huggingface import HuggingFaceModel
from treespec.policies import (
    AbstractDraftPolicy,
    BestFirst,
    Chain,
    ConfidenceTree,
    EntropyStop,
    Planner,
    SampledBestFirst,
    SampledChain,
    SampledPlanner,
    SampledTree,
    TopKTree,
    comb_tree,
    given_tree,
)
from treespec.sampling import Sampling
from treespec.types import Budget
from treespec.verifiers import AbstractVerifier, Sequential, TreeAttention

TARGET_SEED, DRAFT_SEED = 1, 2
PROMPTS = ([1, 5, 6, 7, 8, 5, 6, 7, 5], [3], [1, *range(9, 21), 9, 10], [1, 4, 4, 4])
NUM_TOKENS = 10
POLICIES: tuple[AbstractDraftPolicy, ...] = (
    Chain(),
    SampledChain(),
    TopKTree(1),
    TopKTree(2),
    TopKTree(3),
    BestFirst(3, beam=2),
    ConfidenceTree(3),
    SampledBestFirst(),
    Planner(),
    SampledPlanner(),
    EntropyStop(SampledTree(2), threshold=0.25),
    given_tree([2, 1, 2]),
    comb_tree(2, 3, "without_replacement"),
)
DRAFTERS = ("prompt_lookup", "other_model", "same_model")
MORE_DRAFTERS = ("token_recycling", "cascade", "merge", "marginals")
"""With two families, one with sliding windows: what they add knows no family."""


@cache
def drafter(name: str, family: Family) -> AbstractDrafter:
    if name in {"prompt_lookup", "token_recycling"}:
        return PromptLookup() if name == "prompt_lookup" else TokenRecycling(3)
    if name in {"other_model", "same_model"}:
        seed = DRAFT_SEED if name == "other_model" else TARGET_SEED
        return DraftModel(adapted(family, seed))
    similar = perturbed(reference(family, TARGET_SEED), noise=0.1, seed=3)
    model = DraftModel(HuggingFaceModel(similar))
    around = {
        "similar_model": model,
        "cascade": Cascade((PromptLookup(), model), (0.5,)),
        "merge": Merge((PromptLookup(), TokenRecycling(3), model)),
        "marginals": Marginals(model),
    }
    return around[name]


@cache
def expected(family: Family, index: int, num_tokens: int) -> tuple[int, ...]:
    module = reference(family, TARGET_SEED)
    return tuple(greedy_oracle(module, PROMPTS[index], num_tokens))


def decoder(
    family: Family,
    drafter: AbstractDrafter,
    policy: AbstractDraftPolicy,
    verifier: AbstractVerifier,
    acceptance: AbstractAcceptanceRule | None = None,
) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        target=adapted(family, TARGET_SEED),
        drafter=drafter,
        policy=policy,
        acceptance=acceptance or Greedy(),
        verifier=verifier,
        controller=Constant(max_depth=3, max_width=3, max_nodes=6),
    )


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize(
    ("family", "source"),
    [*product(FAMILIES, DRAFTERS), *product(("llama", "gemma3"), MORE_DRAFTERS)],
)
def test_every_combination_equals_generate(
    family: Family, source: str, policy: AbstractDraftPolicy
) -> None:
    parts = drafter(source, family), policy
    for verifier, num_tokens in ((TreeAttention(), NUM_TOKENS), (Sequential(), 4)):
        speculative = decoder(family, *parts, verifier)
        for count in (1, 2, 4):
            results = speculative.generate(PROMPTS[:count], max_new_tokens=num_tokens)
            for index, result in enumerate(results):
                assert result.tokens == expected(family, index, num_tokens)
                assert result.finish_reason == "length"


@pytest.mark.parametrize(
    "controller",
    [
        AdaptiveDepth(max_depth=6, start_depth=2, max_width=2),
        HeuristicDepth(max_depth=6, start_depth=1, max_width=3),
        Bandit([[0, 1, 0], [2, 3, 4], [4, 2, 8]]),
        OffSwitch(Constant(3, 3, 6), num_plain=1, max_off=2),
        OffSwitch(AdaptiveDepth(max_depth=6), max_loss=0.9, max_off=1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("source", ["prompt_lookup", "similar_model", "other_model"])
def test_a_controller_changes_no_text_and_follows_from_the_records(
    source: str, controller: AbstractController[Any]
) -> None:
    """Public case 45: the same text with the controller on or off."""
    family: Family = "llama"
    parts = drafter(source, family), TopKTree(2), TreeAttention()
    speculative = replace(decoder(family, *parts), controller=controller)
    results = speculative.generate(PROMPTS, max_new_tokens=40)
    depths = set()
    for index, result in enumerate(results):
        assert result.tokens == expected(family, index, 40)
        budgets = replay(controller, result.steps)
        for record, budget in zip(result.steps, budgets, strict=True):
            if record.budget_by != "limit":
                had = record.max_depth, record.max_width, record.max_nodes
                assert Budget(*had) == budget
                depths.add(record.max_depth)
    assert len(depths) > 1, "the controller does something"


@pytest.mark.parametrize("family", FAMILIES)
def test_sample_and_match_at_temperature_0_equals_generate(family: Family) -> None:
    speculative = decoder(
        family,
        drafter("similar_model", family),
        TopKTree(3),
        TreeAttention(),
        SampleAndMatch(),
    )
    for index, result in enumerate(speculative.generate(PROMPTS, max_new_tokens=24)):
        assert result.tokens == expected(family, index, 24)
        assert any(record.num_accepted for record in result.steps)


@pytest.mark.parametrize("family", FAMILIES)
def test_autoregressive_decoding_equals_generate_over_many_steps(
    family: Family,
) -> None:
    """Long enough for every sliding window to slide away from the prompt."""
    plain = decoder(
        family, PromptLookup(), TopKTree(2), TreeAttention()
    ).autoregressive()
    for index, result in enumerate(plain.generate(PROMPTS, max_new_tokens=40)):
        assert result.tokens == expected(family, index, 40)
        assert all(record.num_nodes == 0 for record in result.steps)
        assert len(result.steps) == 39


@pytest.mark.parametrize(
    "policy", [Chain(), SampledChain(), TopKTree(1), TopKTree(2), SampledBestFirst()]
)
@pytest.mark.parametrize("verifier", [TreeAttention(), Sequential()])
def test_a_draft_equal_to_the_target_is_accepted_whole(
    policy: AbstractDraftPolicy, verifier: AbstractVerifier
) -> None:
    """Oracle O4: tokens per round are depth + 1, the last block excepted.

    The tree is complete: a narrow one may drop the path of the target's argmax.
    """
    same = drafter("same_model", "llama")
    speculative = replace(
        decoder("llama", same, policy, verifier),
        controller=Constant(max_depth=3, max_width=8, max_nodes=14),
    )
    for result in speculative.generate(PROMPTS, max_new_tokens=18):
        *blocks, _ = result.steps
        assert len(blocks) == 4
        for record in blocks:
            assert record.depth == 3
            assert record.num_accepted == 3
            assert record.num_committed == 4
            assert record.accepted_ranks == (0, 0, 0)
            assert record.next_kind == "bonus"


def test_a_repetition_penalty_on_a_tree_equals_generate() -> None:
    """Each node has a history of its own: the text and the path down to it."""
    family: Family = "llama"
    for policy in (Chain(), TopKTree(3), BestFirst(3, beam=2)):
        speculative = decoder(
            family, drafter("same_model", family), policy, TreeAttention()
        )
        results = speculative.generate(
            PROMPTS, Sampling(repetition_penalty=1.8), max_new_tokens=24
        )
        for prompt, result in zip(PROMPTS, results, strict=True):
            oracle = greedy_oracle(
                reference(family, TARGET_SEED), prompt, 24, repetition_penalty=1.8
            )
            assert list(result.tokens) == oracle
        assert any(record.num_accepted > 1 for r in results for record in r.steps)


@pytest.mark.parametrize(
    "policy", [Chain(), TopKTree(3), SampledTree(2), BestFirst(3, beam=1)], ids=repr
)
def test_no_repeated_ngrams_on_a_tree_as_in_generate(
    policy: AbstractDraftPolicy,
) -> None:
    """A pair may come about inside the tree: the committed text alone bans too little.

    With a repetition penalty before it, as ``generate`` orders the two.
    """
    family: Family = "llama"
    sampling = Sampling(
        repetition_penalty=1.2, processors=(NoRepeatNGramLogitsProcessor(2),)
    )
    speculative = decoder(
        family, drafter("same_model", family), policy, TreeAttention()
    )
    results = speculative.generate(PROMPTS, sampling, max_new_tokens=24)
    for prompt, result in zip(PROMPTS, results, strict=True):
        oracle = greedy_oracle(
            reference(family, TARGET_SEED),
            prompt,
            24,
            repetition_penalty=1.2,
            no_repeat_ngram_size=2,
        )
        assert list(result.tokens) == oracle
        plain = greedy_oracle(reference(family, TARGET_SEED), prompt, 24)
        assert oracle != plain or prompt == PROMPTS[2]
    assert any(record.num_accepted for r in results for record in r.steps)


@pytest.mark.parametrize(("target_size", "draft_size"), [(40, 32), (32, 40)])
def test_embedding_tables_of_different_width_go_together(
    target_size: int, draft_size: int
) -> None:
    """Public case 30: 151,936 rows against 152,064, over the same tokens."""
    target = tiny_model("llama", 1, vocab_size=target_size, num_layers=2)
    draft = tiny_model("llama", 2, vocab_size=draft_size, num_layers=2)
    model = DraftModel(HuggingFaceModel(draft))
    lookup = PromptLookup()
    for drafter, policy in (
        *product((model,), (Chain(), SampledChain(), TopKTree(3))),
        *product((Cascade((lookup, model), (0.6,)),), (Chain(), SampledTree(2))),
        *product((Merge((lookup, model)),), (TopKTree(3), SampledTree(2))),
    ):
        speculative = SpeculativeDecoder(
            HuggingFaceModel(target),
            drafter,
            policy,
            Greedy(),
            TreeAttention(),
            Constant(3, 3, 6),
            trace=True,
        )
        results = speculative.generate(PROMPTS, max_new_tokens=12)
        for prompt, result in zip(PROMPTS, results, strict=True):
            drafted = {node.token for node in result.traces}
            assert max(drafted) < target_size
            target.set_attn_implementation("sdpa")
            assert list(result.tokens) == greedy_oracle(target, prompt, 12)


BF16_TIE = 0.05
"""Two bf16 logits of a tiny model closer than this may change places."""


def test_in_bf16_every_divergence_is_a_tie() -> None:
    """Public case 01: near-tie flips are told from faults by their margin.

    Matrix kernels depend on the number of rows, so bf16 texts may part where the two
    best logits are within rounding, and nowhere else. Equality is not asserted.
    """
    module = reference("qwen2", 5).to(torch.bfloat16)
    target = HuggingFaceModel(tiny_model("qwen2", 5, num_layers=2).bfloat16())
    speculative = SpeculativeDecoder(
        target,
        DraftModel(adapted("qwen2", 5)),
        TopKTree(3),
        Greedy(),
        TreeAttention(),
        Constant(4, 3, 12),
    )
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(32, (24, 6), generator=generator).tolist()
    for prompt, result in zip(
        prompts, speculative.generate(prompts, max_new_tokens=32), strict=True
    ):
        margins = teacher_forced_margins(module, prompt, result.tokens)
        assert max(margins) < BF16_TIE, (prompt, margins)


def test_the_oracle_does_not_stop_by_itself() -> None:
    """``generate`` falls back on the model's own ids when it is given none."""
    assert reference("llama", TARGET_SEED).config.eos_token_id != NEVER
    assert len(greedy_oracle(reference("llama", TARGET_SEED), [3], 60)) == 60
