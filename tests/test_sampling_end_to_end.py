"""The law of sampled text, through the whole decoder: exactly, and by counting.

A request's chance is replaced by one that tries every outcome, so that what is summed
up here went through drafting, caches, verification, acceptance and commitment. The
law it is held against comes from the table alone, without speculation.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import NoRepeatNGramLogitsProcessor

from tests.oracles import adapted, reference
from tests.tiny import perturbed
from treespec.acceptance import (
    AbstractAcceptanceRule,
    ChainSpeculative,
    GreedyDraftTransport,
    RejectionWithoutReplacement,
    RejectionWithReplacement,
    SampleAndMatch,
    SpecHub,
)
from treespec.acceptance.base import ANY_PROPOSAL
from treespec.chance import AbstractChance
from treespec.controllers import Constant
from treespec.decoder import Run, SpeculativeDecoder
from treespec.drafters import DraftModel, PromptLookup
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.table import TableModel
from treespec.policies import (
    AbstractDraftPolicy,
    Chain,
    SampledChain,
    SampledTree,
    StaticTree,
    TopKTree,
    TreeShape,
)
from treespec.sampling import Sampling
from treespec.testing import check_decoder
from treespec.testing.enumeration import outcomes
from treespec.testing.laws import Law, Setting, autoregressive_law, distance
from treespec.testing.toys import Model, constant_model, random_model, table_model
from treespec.tree import ROOT, TokenTree
from treespec.types import Acceptance, GenerationResult, ProposalKind
from treespec.verifiers import TreeAttention

VOCAB_SIZE = 3
PLAIN = Sampling(temperature=1.0)
PROCESSED = Sampling(0.7, top_k=2, top_p=0.95, repetition_penalty=1.3)
UNREPEATED = Sampling(
    0.8, repetition_penalty=1.2, processors=(NoRepeatNGramLogitsProcessor(2),)
)
EXACT = 1e-9
"""Tables speak float64; nothing on the way may round."""
ROUNDED = 1e-7
"""Retrieved candidates have float32 laws, so their outcomes' weights are rounded."""


UNEVEN = TreeShape(((0,), (1,), (0, 0)))
"""Two children, of which one goes on."""


@dataclass(frozen=True)
class Parts:
    """A policy and a rule that go together."""

    policy: AbstractDraftPolicy
    rule: AbstractAcceptanceRule


PAIRS = [
    pytest.param(Parts(SampledChain(), ChainSpeculative()), id="speculative-chain"),
    pytest.param(Parts(TopKTree(2), SampleAndMatch()), id="matched-tree"),
    pytest.param(Parts(Chain(), SampleAndMatch()), id="matched-chain"),
    pytest.param(Parts(StaticTree(UNEVEN), SampleAndMatch()), id="matched-shape"),
    pytest.param(
        Parts(
            StaticTree(UNEVEN, ProposalKind.WITHOUT_REPLACEMENT),
            RejectionWithoutReplacement(),
        ),
        id="rejected-shape",
    ),
]


def table(model: Model) -> TableModel:
    return table_model(model, len(model((0,))))


def decoder(
    parts: Parts, target: Model, draft: Model | None, depth: int = 2
) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        target=table(target),
        drafter=PromptLookup() if draft is None else DraftModel(table(draft)),
        policy=parts.policy,
        acceptance=parts.rule,
        verifier=TreeAttention(),
        controller=Constant(depth, 2, 6),
        trace=True,
    )


VECTORS = constant_model(0.5, 0.3, 0.2, 0.0), constant_model(0.1, 0.2, 0.3, 0.4)
TARGET, DRAFT = random_model(VOCAB_SIZE, seed=1), random_model(VOCAB_SIZE, seed=2)


def play(
    decoder: SpeculativeDecoder, prompt: list[int], count: int, sampling: Sampling
) -> Callable[[AbstractChance], GenerationResult]:
    """The experiment of decoding one prompt with a given chance."""

    def experiment(chance: AbstractChance) -> GenerationResult:
        run = Run(decoder, [prompt], sampling, count, 0, ())
        run.requests[0].chance = run.requests[0].draft_chance = chance
        for _ in run.steps():
            pass
        return run.requests[0].result()

    return experiment


def text_law(
    decoder: SpeculativeDecoder, prompt: list[int], count: int, sampling: Sampling
) -> Law:
    law: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for weight, result in outcomes(play(decoder, prompt, count, sampling)):
        law[result.tokens] += weight
    return law


def target_text_law(
    model: Model, prompt: tuple[int, ...], count: int, sampling: Sampling
) -> Law:
    setting = Setting(model, model, ProposalKind.DETERMINISTIC, (), sampling)
    return autoregressive_law(setting, prompt, count)


@pytest.mark.parametrize(
    "sampling", [PLAIN, PROCESSED, UNREPEATED], ids=["plain", "processed", "unrepeated"]
)
@pytest.mark.parametrize("parts", PAIRS)
def test_the_law_of_a_text_is_the_targets(parts: Parts, sampling: Sampling) -> None:
    """Four tokens: a prefill, a round of depth 2, rounds that begin in its middle.

    Public case 15: the first token was right and later ones followed a wrong law.
    """
    prompt = [0, 2, 1]
    law = text_law(decoder(parts, TARGET, DRAFT), prompt, 4, sampling)
    assert sum(law.values()) == pytest.approx(1, abs=EXACT)
    expected = target_text_law(TARGET, tuple(prompt), 4, sampling)
    assert distance(law, expected) < EXACT


@pytest.mark.parametrize("temperature", [0.0, 0.4, 3.0])
@pytest.mark.parametrize("sampling", [PLAIN, PROCESSED], ids=["plain", "processed"])
def test_a_draft_with_a_temperature_of_its_own_leaves_the_law_alone(
    temperature: float, sampling: Sampling
) -> None:
    """Whatever children are drawn at, they are scored by what they were drawn from."""
    parts = Parts(SampledChain(), ChainSpeculative())
    tempered = decoder(parts, TARGET, DRAFT)
    tempered = replace(tempered, drafter=DraftModel(table(DRAFT), temperature))
    law = text_law(tempered, [0, 2, 1], 4, sampling)
    expected = target_text_law(TARGET, (0, 2, 1), 4, sampling)
    assert distance(law, expected) < EXACT


class RawBonus(AbstractAcceptanceRule):
    """A wrong twin: the row at the end of a path that was kept whole is not processed.

    Attributes:
        rule: The right one.
    """

    def __init__(self, rule: AbstractAcceptanceRule) -> None:
        self.rule = rule

    lossless, greedy_only, draws_like_autoregressive = True, False, False
    proposals = ANY_PROPOSAL

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        acceptance = self.rule.accept(tree, target_logits, sampling, chance)
        if acceptance.next_kind == "recovered":
            return acceptance
        node = acceptance.node_ids[-1] if acceptance.node_ids else ROOT
        raw = int(chance.draw(PLAIN.probs(target_logits[node])))
        return replace(acceptance, next_token=raw)


@pytest.mark.parametrize("sampling", [Sampling(0.5), Sampling(1.0, top_k=2)], ids=repr)
@pytest.mark.parametrize("parts", PAIRS)
def test_a_bonus_token_from_unprocessed_logits_is_found_out(
    parts: Parts, sampling: Sampling
) -> None:
    """The last row of the verified block is easily left out of the processors."""
    wrong = Parts(parts.policy, RawBonus(parts.rule))
    for rule, is_right in ((parts, True), (wrong, False)):
        law = text_law(decoder(rule, TARGET, DRAFT), [0, 2, 1], 3, sampling)
        expected = target_text_law(TARGET, (0, 2, 1), 3, sampling)
        assert (distance(law, expected) < EXACT) is is_right


def test_a_draft_is_drawn_under_the_temperature_and_filters_of_the_request() -> None:
    """With another law than that it is scored by, the output would be biased."""
    sampling = Sampling(0.6, top_k=2)
    chain = decoder(Parts(SampledChain(), ChainSpeculative()), TARGET, DRAFT, depth=1)
    seen: defaultdict[int, float] = defaultdict(float)
    likeliest = int(TARGET((0, 2)).argmax())
    for weight, result in outcomes(play(chain, [0, 2], 3, sampling)):
        if result.tokens[0] == likeliest:
            seen[result.traces[0].token] += weight
    law = sampling.probs(DRAFT((0, 2, likeliest))).tolist()
    assert sorted(law)[0] == 0
    for token, mass in enumerate(law):
        share = seen[token] / sum(seen.values())
        assert share == pytest.approx(mass, abs=EXACT)


@pytest.mark.parametrize("parts", PAIRS)
def test_copied_candidates_leave_the_law_alone(parts: Parts) -> None:
    """Public case 19: retrieved tokens under sampling."""
    prompt = [0, 1, 0, 2, 0, 1, 0]
    law = text_law(decoder(parts, TARGET, None), prompt, 4, PLAIN)
    assert distance(law, target_text_law(TARGET, tuple(prompt), 4, PLAIN)) < ROUNDED


@pytest.mark.parametrize("parts", PAIRS)
def test_a_draft_with_fewer_tokens_leaves_the_law_alone(parts: Parts) -> None:
    """Public case 30: what only the target has stays reachable."""
    small = random_model(VOCAB_SIZE - 1, seed=5)
    law = text_law(decoder(parts, TARGET, small), [0, 2], 3, PLAIN)
    assert distance(law, target_text_law(TARGET, (0, 2), 3, PLAIN)) < EXACT


def shares(decoder: SpeculativeDecoder, sampling: Sampling, count: int) -> Counter[str]:
    """Expected numbers of rounds, recovered ends, accepted and evaluated tokens."""
    found: Counter[str] = Counter()
    for weight, result in outcomes(play(decoder, [0, 2, 1], count, sampling)):
        for record in result.steps:
            found["rounds"] += weight
            recovered = record.next_kind == "recovered"
            found["recovered"] += weight * recovered
        for node in result.traces:
            is_evaluated = node.verdict in ("accepted", "rejected")
            accepted = node.verdict == "accepted"
            found["evaluated"] += weight * is_evaluated
            found["accepted"] += weight * accepted
    return found


def test_a_fifth_of_the_rounds_end_with_a_recovered_token() -> None:
    """Otherwise the residual, which is what goes wrong, would hardly be tried."""
    for parts in (
        Parts(SampledChain(), ChainSpeculative()),
        Parts(TopKTree(2), SampleAndMatch()),
    ):
        for sampling in (PLAIN, PROCESSED):
            found = shares(decoder(parts, TARGET, DRAFT), sampling, 4)
            assert found["recovered"] >= 0.2 * found["rounds"]


OPTIMAL = [
    Parts(SampledChain(), ChainSpeculative()),
    Parts(SampledTree(2, ProposalKind.ARGMAX_PAIR), SpecHub()),
    Parts(SampledTree(3, ProposalKind.GREEDY_PLUS_RANDOM), GreedyDraftTransport()),
    Parts(TopKTree(2), SampleAndMatch()),
]
OTHERS = [
    Parts(SampledTree(2, ProposalKind.WITH_REPLACEMENT), RejectionWithReplacement()),
    Parts(
        SampledTree(2, ProposalKind.WITHOUT_REPLACEMENT), RejectionWithoutReplacement()
    ),
    Parts(SampledTree(2, ProposalKind.WITHOUT_REPLACEMENT), SampleAndMatch()),
]


@pytest.mark.parametrize("parts", [*OPTIMAL, *OTHERS], ids=lambda p: p.rule.name)
def test_what_is_traced_as_the_optimum_is_reached_by_the_optimal_rules(
    parts: Parts,
) -> None:
    """The mean over all outcomes of a step: node by node, given how it was reached."""
    best: dict[tuple[int, ...], float] = {}
    realised: defaultdict[tuple[int, ...], float] = defaultdict(float)
    arrived: defaultdict[tuple[int, ...], float] = defaultdict(float)
    traced = replace(decoder(parts, TARGET, DRAFT), controller=Constant(1, 3, 3))
    for weight, result in outcomes(play(traced, [0, 2, 1], 3, PLAIN)):
        first = (result.tokens[0],)
        root = [node for node in result.traces if node.step == 0 and node.parent == 0]
        (optimum,) = {node.optimal_acceptance for node in root}
        assert optimum is not None
        assert best.setdefault(first, optimum) == pytest.approx(optimum, abs=EXACT)
        arrived[first] += weight
        realised[first] += weight * any(node.verdict != "rejected" for node in root)
    for first, optimum in best.items():
        rate = realised[first] / arrived[first]
        assert rate <= optimum + EXACT
        if parts in OPTIMAL:
            assert rate == pytest.approx(optimum, abs=EXACT)


def test_drafted_tokens_are_accepted_as_often_as_the_laws_overlap() -> None:
    """Public case 21: without the draft's law it is lossless, and accepts far less."""
    target, draft = (
        constant_model(0.5, 0.3, 0.2, 0.0),
        constant_model(0.1, 0.2, 0.3, 0.4),
    )
    chain = decoder(Parts(SampledChain(), ChainSpeculative()), target, draft)
    found = shares(chain, PLAIN, 3)
    assert found["accepted"] / found["evaluated"] == pytest.approx(0.5, abs=1e-6)
    matched = replace(chain, acceptance=SampleAndMatch())
    found = shares(matched, PLAIN, 3)
    assert found["accepted"] / found["evaluated"] == pytest.approx(0.17, abs=1e-6)


# The same with the generators that users get


@pytest.mark.parametrize("parts", PAIRS)
def test_counted_texts_follow_the_targets_law(parts: Parts) -> None:
    """Seeds that count up must not give correlated requests."""
    sampling = Sampling(0.7, top_k=4, top_p=0.97, repetition_penalty=1.3)
    target, draft = random_model(5, seed=1), random_model(5, seed=2)
    sampler = replace(decoder(parts, target, draft), max_concurrent=100, trace=False)
    report = check_decoder(sampler, [0, 2, 1], sampling, num_texts=200, num_batches=2)
    assert report.num_cells > 5
    assert report.total_variation < 0.15
    assert report.recovered_share >= 0.2


def test_acceptances_of_one_request_are_independent() -> None:
    """Public case 23: reseeding inside the loop made every uniform the same."""
    target, draft = (
        constant_model(0.5, 0.3, 0.2, 0.0),
        constant_model(0.1, 0.2, 0.3, 0.4),
    )
    chain = decoder(Parts(SampledChain(), ChainSpeculative()), target, draft, depth=1)
    sampler = replace(chain, max_concurrent=64, trace=False)
    results = sampler.generate([[0]] * 100, PLAIN, 50, seed=3)
    pairs = [
        (before.num_accepted, after.num_accepted)
        for result in results
        for before, after in zip(result.steps, result.steps[1:-1], strict=False)
    ]
    assert len(pairs) > 3000
    befores, afters = torch.tensor(pairs, dtype=torch.float64).unbind(dim=1)
    assert abs(float(torch.corrcoef(torch.stack([befores, afters]))[0, 1])) < 0.05
    assert float(befores.mean()) == pytest.approx(0.5, abs=0.04)


# Draft equal to target: public case 17


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(TARGET, id="random"),
        pytest.param(constant_model(0.0, 1.0, 0.0), id="one-hot"),
    ],
)
def test_equal_laws_accept_everything_and_never_stop(model: Model) -> None:
    """NaN residuals, an early end, a law that drifts."""
    chain = decoder(Parts(SampledChain(), ChainSpeculative()), model, model)
    for weight, result in outcomes(play(chain, [0, 2], 4, PLAIN)):
        assert weight > 0
        assert len(result.tokens) == 4
        assert all(node.verdict == "accepted" for node in result.traces)
    law = text_law(chain, [0, 2], 4, PLAIN)
    assert distance(law, target_text_law(model, (0, 2), 4, PLAIN)) < EXACT


def test_a_model_that_drafts_for_itself_is_always_accepted() -> None:
    """Two forwards of one model differ by rounding; that must not show."""
    same = adapted("llama", 1)
    chain = SpeculativeDecoder(
        same,
        DraftModel(same),
        SampledChain(),
        ChainSpeculative(),
        TreeAttention(),
        Constant(4),
    )
    prompts = [[1, 5, 6], [3], [9, 9, 8, 7]]
    for result in chain.generate(prompts, PLAIN, 40, seed=0):
        assert len(result.tokens) == 40
        for record in result.steps:
            assert record.num_accepted == record.depth


# Seeds: public case 23


@cache
def tiny_sampler() -> SpeculativeDecoder:
    noisy = perturbed(reference("llama", 1), noise=0.2, seed=3)
    return SpeculativeDecoder(
        adapted("llama", 1),
        DraftModel(HuggingFaceModel(noisy)),
        SampledChain(),
        ChainSpeculative(),
        TreeAttention(),
        Constant(3),
    )


def test_a_seed_says_what_a_text_becomes() -> None:
    """``if seed:`` took 0 for no seed at all."""

    def text(seed: int | None) -> tuple[int, ...]:
        return tiny_sampler().generate([[1, 5]], PLAIN, 12, seed=seed)[0].tokens

    assert text(0) == text(0)
    assert text(7) == text(7)
    assert len({text(0), text(1), text(2)}) >= 2
    # One chance in 32**12 or so that this fails for nothing.
    assert len({text(None), text(None), text(0)}) == 3


def test_global_randomness_is_neither_used_nor_moved() -> None:
    sampler = tiny_sampler()  # a new module's first weights are drawn globally
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = sampler.generate([[1, 5]], PLAIN, 12)[0].tokens
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert sampler.generate([[1, 5]], PLAIN, 12)[0].tokens == first


# Shared randomness: sample-and-match writes the text of plain decoding

PROMPTS = [[1, 5, 6, 1, 5], [3], [20, 21, 22, 20, 21]]
SHARED = [
    *(Sampling(temperature) for temperature in (0, 0.3, 0.7, 1.0, 1.5)),
    Sampling(0.9, top_k=5, repetition_penalty=1.5),
    Sampling(1.2, top_p=0.8, processors=(NoRepeatNGramLogitsProcessor(2),)),
]


@cache
def plain_texts(sampling: Sampling) -> list[tuple[int, ...]]:
    plain = replace(tiny_sampler(), acceptance=SampleAndMatch()).autoregressive()
    results = plain.generate(PROMPTS, sampling, 16, seed=4)
    return [result.tokens for result in results]


@pytest.mark.parametrize("sampling", SHARED, ids=range(len(SHARED)))
@pytest.mark.parametrize(
    "policy",
    [
        Chain(),
        TopKTree(3),
        SampledChain(),
        SampledTree(2),
        SampledTree(3, ProposalKind.WITH_REPLACEMENT),
        StaticTree(UNEVEN),
        StaticTree(UNEVEN, ProposalKind.WITHOUT_REPLACEMENT),
    ],
    ids=repr,
)
def test_shared_randomness_gives_the_text_of_plain_decoding(
    policy: AbstractDraftPolicy, sampling: Sampling
) -> None:
    """One uniform per committed token, and none of them goes to the draft."""
    for drafter in (PromptLookup(), tiny_sampler().drafter):
        matched = replace(
            tiny_sampler(),
            drafter=drafter,
            policy=policy,
            acceptance=SampleAndMatch(),
            controller=Constant(3, 3, 6),
        )
        together = matched.generate(PROMPTS, sampling, 16, seed=4)
        alone = matched.generate(PROMPTS[:1], sampling, 16, seed=4)
        texts = plain_texts(sampling)
        assert [result.tokens for result in together] == texts
        assert [result.tokens for result in alone] == texts[:1]
    assert any(r.num_accepted for result in together for r in result.steps)


def test_drafts_are_not_drawn_by_the_uniforms_of_acceptance() -> None:
    """From one stream, a draft equal to the target would always be matched.

    Nor by those of a neighbouring seed, which belongs to the next prompt.
    """
    run = Run(tiny_sampler(), [[1]] * 2, PLAIN, 4, 7, ())
    law = torch.full((40, 16), 1 / 16)
    drawn = [
        tuple(chance.draw(law).tolist())
        for request in run.requests
        for chance in (request.chance, request.draft_chance)
    ]
    assert len(set(drawn)) == 4
    again = Run(tiny_sampler(), [[1]], PLAIN, 4, 7, ()).requests[0]
    assert tuple(again.draft_chance.draw(law).tolist()) == drawn[1]
    by_chance = Run(tiny_sampler(), [[1]] * 2, PLAIN, 4, None, ()).requests
    assert len({tuple(r.draft_chance.draw(law).tolist()) for r in by_chance}) == 2
