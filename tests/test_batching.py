"""Requests share rows and pools, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
from transformers import PreTrainedModel

from tests.oracles import (
    adapted,
    assert_cache_is_fresh,
    assert_no_slot_leaks,
    reference,
)
from tests.scripts import (
    agreeing,
    continuation,
    greedy_table,
    mixing,
    scripted_decoder,
)
from tests.tiny import FAMILIES, Family, perturbed
from treespec.acceptance import ChainSpeculative, Greedy, SampleAndMatch
from treespec.controllers import Constant
from treespec.decoder import GREEDY_SAMPLING, Run, SpeculativeDecoder
from treespec.drafters import (
    AbstractDrafter,
    AbstractDraftSession,
    Cascade,
    DraftModel,
    Marginals,
    Merge,
    PromptLookup,
    TokenRecycling,
)
from treespec.drafters.draft_model import DraftModelSession
from treespec.drafters.marginals import MarginalsSession
from treespec.drafters.team import AbstractTeamSession
from treespec.models.huggingface import HuggingFaceModel
from treespec.policies import (
    AbstractDraftPolicy,
    BestFirst,
    Chain,
    SampledBestFirst,
    SampledChain,
    SampledTree,
    TopKTree,
)
from treespec.sampling import Sampling
from treespec.verifiers import TreeAttention

DEPTH = 4
RAGGED = [0, 1, 3, 4]
Around = Callable[[DraftModel], AbstractDrafter]
"""Tokens that are right in one round, per request; the next round permutes them."""


def ragged_rounds(rows: int) -> dict[int, list[int]]:
    orders = list(permutations(RAGGED))
    return {
        row: [orders[7 * round_ % 24][row] for round_ in range(10)]
        for row in range(rows)
    }


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_ragged_acceptance_leaves_every_row_as_it_is_alone(rows: int) -> None:
    """Public case 12: positions, masks and keys fell out of step between rows."""
    next_token = mixing(13)
    prompts = [[1 + row] * (1 + 3 * row) for row in range(rows)]
    plan = ragged_rounds(rows)
    # Ten rounds and the prefill; each round commits its right tokens and one more.
    count = 1 + max(sum(right + 1 for right in plan[row]) for row in range(rows))
    target = greedy_table(next_token, 13)
    decoder = scripted_decoder(target, agreeing(next_token, plan), depth=DEPTH)
    results = decoder.generate(prompts, max_new_tokens=count)
    for row, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        assert list(result.tokens) == continuation(next_token, prompt, count)
        assert [r.num_accepted for r in result.steps[:10]] == plan[row]
        alone = scripted_decoder(
            greedy_table(next_token, 13),
            agreeing(next_token, {0: plan[row]}),
            depth=DEPTH,
        ).generate([prompt], max_new_tokens=count)[0]
        assert alone.tokens == result.tokens
        assert [(r.num_nodes, r.num_committed) for r in alone.steps] == [
            (r.num_nodes, r.num_committed) for r in result.steps
        ]
    # All rows are in one forward: as many forwards as the slowest row has steps.
    assert len(target.forwards) == 1 + max(len(result.steps) for result in results)


SAMPLED = Sampling(temperature=0.8)


def sampled_decoder(rule_is_speculative: bool) -> SpeculativeDecoder:
    noisy = perturbed(reference("llama", 1), noise=0.2, seed=9)
    return SpeculativeDecoder(
        adapted("llama", 1),
        DraftModel(HuggingFaceModel(noisy)),
        SampledChain() if rule_is_speculative else TopKTree(2),
        ChainSpeculative() if rule_is_speculative else SampleAndMatch(),
        TreeAttention(),
        Constant(3, 2, 6),
        eos_ids=frozenset({2}),
    )


@pytest.mark.parametrize("rule_is_speculative", [True, False])
def test_a_seeded_request_does_not_depend_on_its_neighbours(
    rule_is_speculative: bool,
) -> None:
    """Public case 13: one generator for all rows, so neighbours changed a request."""
    decoder = sampled_decoder(rule_is_speculative)
    prompts = {7: [1, 5, 6, 7], 8: [1, 20], 9: [3, 3, 3, 9, 10, 11]}
    alone = {
        seed: decoder.generate([prompt], SAMPLED, 16, seed=[seed])[0].tokens
        for seed, prompt in prompts.items()
    }
    assert len(set(alone.values())) == 3
    for order in permutations(prompts):
        batch = [prompts[seed] for seed in order]
        results = decoder.generate(batch, SAMPLED, 16, seed=order)
        assert [r.tokens for r in results] == [alone[seed] for seed in order]
        assert [r.seed for r in results] == list(order)


def test_a_neighbour_that_ends_early_changes_nothing() -> None:
    """Public case 13: it adds nothing to counters once it has ended."""
    decoder = sampled_decoder(True)
    short, long = [9, 9], [1, 20]
    (first_token,) = decoder.generate([short], SAMPLED, 1, seed=[8])[0].tokens
    decoder = replace(decoder, eos_ids=frozenset({first_token}))
    seed, alone = next(
        (seed, text)
        for seed in range(9, 99)
        for text in decoder.generate([long], SAMPLED, 16, seed=[seed])
        if len(text.tokens) > 4
    )
    for seeds, prompts in (((8, seed), (short, long)), ((seed, 8), (long, short))):
        results = decoder.generate(prompts, SAMPLED, 16, seed=seeds)
        ended, beside = sorted(results, key=lambda result: len(result.tokens))
        assert (ended.tokens, ended.finish_reason) == ((first_token,), "eos")
        assert ended.steps == ()
        assert beside.tokens == alone.tokens
        assert [r.num_committed for r in beside.steps] == [
            r.num_committed for r in alone.steps
        ]


@pytest.mark.parametrize("max_concurrent", [1, 2, 3, 8])
def test_prompts_that_wait_become_the_same_text(max_concurrent: int) -> None:
    next_token = mixing(13)
    prompts = [[row] * (150 if row == 0 else 1 + row % 3) for row in range(7)]
    plan = {row: [row % (DEPTH + 1)] for row in range(7)}
    base = scripted_decoder(
        greedy_table(next_token, 13), agreeing(next_token, plan), depth=DEPTH
    )
    decoder = replace(base, max_concurrent=max_concurrent)
    run = Run(decoder, prompts, GREEDY_SAMPLING, 9, 0, ())
    most = 0
    for _ in run.steps():
        most = max(most, len(run.scheduler.active))
        assert run.target.cache.num_free + run.target.cache.num_live == (
            run.target.cache.capacity
        )
    assert most <= max_concurrent
    assert run.target.cache.num_live == 0
    for prompt, request in zip(prompts, run.requests, strict=True):
        assert request.new_tokens == continuation(next_token, prompt, 9)


def test_a_pool_in_pieces_admits_everyone_in_the_end() -> None:
    """Long and short prompts leave gaps in which the next one does not fit."""
    next_token = mixing(13)
    prompts = [[1] * length for length in (2, 30, 3, 40, 1, 25, 50, 2)]
    decoder = SpeculativeDecoder(
        greedy_table(next_token, 13),
        DraftModel(greedy_table(next_token, 13)),
        TopKTree(2),
        Greedy(),
        TreeAttention(),
        Constant(3, 2, 6),
        max_concurrent=2,
    )
    results = decoder.generate(prompts, max_new_tokens=7)
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.tokens) == continuation(next_token, prompt, 7)


def model_sessions(session: AbstractDraftSession) -> list[DraftModelSession]:
    """The draft models that are at work in a session."""
    if isinstance(session, DraftModelSession):
        return [session]
    if isinstance(session, MarginalsSession):
        return model_sessions(session.session)
    if isinstance(session, AbstractTeamSession):
        parts = (model_sessions(member.session) for member in session.members)
        return [one for part in parts for one in part]
    return []


def check_all_caches(run: Run, target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Fresh keys in all pools, first and last layer, and no slot lost."""
    active = run.scheduler.active
    sequences = [r.sequence for r in active if r.sequence is not None]
    assert_no_slot_leaks(run.target, sequences)
    for sequence in sequences:
        assert_cache_is_fresh(run.target, sequence, target)
    for drafting in model_sessions(run.draft):
        assert_no_slot_leaks(drafting.session, list(drafting.sequences.values()))
        for sequence, request in zip(sequences, active, strict=True):
            told = drafting.sequences[request.key]
            assert told.tokens == sequence.tokens
            assert_cache_is_fresh(drafting.session, told, draft)


def check_after_every_step(
    family: Family, around: Around, policy: AbstractDraftPolicy
) -> Run:
    """Decode with a draft that agrees now and then: whole paths are kept, and parts."""
    target = reference(family, 1)
    draft, drafting = (perturbed(target, noise=0.15, seed=3) for _ in range(2))
    decoder = SpeculativeDecoder(
        adapted(family, 1),
        around(DraftModel(HuggingFaceModel(drafting))),
        policy,
        Greedy(),
        TreeAttention(),
        Constant(3, 3, 6),
        trace=True,
    )
    prompts = [[1, 5, 6, 7, 8, 9, 10, 11, 12, 13], [3]]
    run = Run(decoder, prompts, GREEDY_SAMPLING, 24, 0, ())
    assert model_sessions(run.draft)
    for committed in run.steps():
        if committed.prompt == 1 and committed.finish_reason is None:
            check_all_caches(run, target, draft)
    accepted = {r.num_accepted for q in run.requests for r in q.records}
    assert len(accepted) > 1
    assert max(accepted) > 1
    assert run.target.cache.num_live == 0
    return run


@pytest.mark.parametrize(
    "policy", [Chain(), TopKTree(3), BestFirst(3, beam=1), SampledBestFirst()]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_after_every_step_both_caches_hold_the_committed_text(
    family: Family, policy: AbstractDraftPolicy
) -> None:
    """Public case 06: rejected keys piled up, in some layers only."""
    check_after_every_step(family, lambda model: model, policy)


@pytest.mark.parametrize(
    "around",
    [
        Marginals,
        lambda model: Cascade((PromptLookup(1), model), (0.3,)),
        lambda model: Cascade((model, Marginals(model), model), (0.5, 0.3)),
        lambda model: Merge((TokenRecycling(), model)),
    ],
    ids=["marginals", "cascade", "models", "merge"],
)
@pytest.mark.parametrize("policy", [Chain(), TopKTree(3), SampledTree(2)], ids=repr)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_caches_of_models_that_are_asked_now_and_then_hold_the_text_too(
    family: Family, around: Around, policy: AbstractDraftPolicy
) -> None:
    """A model may be passed over for whole steps, and asked about leaves only."""
    run = check_after_every_step(family, around, policy)
    sources = {node.source for q in run.requests for node in q.traces}
    assert len(sources) > 1 or len(run.decoder.drafter.source_names) == 1


def test_prompt_lookup_keeps_an_index_per_request() -> None:
    prompts = [[1, 5, 6, 7, 5, 6], [1, 9, 9, 9], [1, 5, 6, 8, 5, 6]]
    decoder = SpeculativeDecoder(
        adapted("llama", 1),
        PromptLookup(),
        TopKTree(2),
        Greedy(),
        TreeAttention(),
        Constant(3, 2, 6),
        trace=True,
    )
    together = decoder.generate(prompts, max_new_tokens=12)
    for prompt, result in zip(prompts, together, strict=True):
        alone = decoder.generate([prompt], max_new_tokens=12)[0]
        assert alone.tokens == result.tokens
        assert [n.token for n in alone.traces] == [n.token for n in result.traces]
