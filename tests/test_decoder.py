"""The loop: what goes in, what comes out, what is written down."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from tests.oracles import (
    adapted,
    assert_cache_is_fresh,
    greedy_oracle,
    reference,
)
from tests.scripts import (
    Ask,
    ScriptedDrafter,
    ScriptedSession,
    Text,
    agreeing,
    continuation,
    greedy_table,
    mixing,
    scripted_decoder,
)
from tests.tiny import perturbed
from treespec.acceptance import (
    ChainSpeculative,
    Greedy,
    RejectionWithReplacement,
    SampleAndMatch,
)
from treespec.controllers import Constant
from treespec.decoder import GREEDY_SAMPLING, Prompt, Run, SpeculativeDecoder
from treespec.drafters import DraftModel, PromptLookup
from treespec.errors import IncompatiblePartsError, NumericalError, TreespecError
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.table import TableModel
from treespec.policies import (
    AbstractDraftPolicy,
    BestFirst,
    Chain,
    Growth,
    SampledChain,
    SampledTree,
    Situation,
    StaticTree,
    TopKTree,
    as_layer,
)
from treespec.policies.shape import comb_shape
from treespec.sampling import Sampling
from treespec.tree import Layer, TokenTree, ancestor_mask
from treespec.types import Budget, NodeTrace, ProposalKind
from treespec.verifiers import AbstractVerifier, Sequential, TreeAttention

VOCAB_SIZE = 13
SAID = mixing(VOCAB_SIZE)


def decoder(**changes: object) -> SpeculativeDecoder:
    base = SpeculativeDecoder(
        target=greedy_table(SAID, VOCAB_SIZE),
        drafter=DraftModel(greedy_table(mixing(VOCAB_SIZE, first=1), VOCAB_SIZE)),
        policy=TopKTree(2),
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=Constant(3, 2, 6),
    )
    return replace(base, **changes)


# A path that is not contiguous, through the whole loop: public case 04

TREE = {(): (0, 1), (0,): (2, 3), (1,): (4, 5)}
"""Children of the root and of its children, as offsets that make tokens differ."""


@pytest.mark.parametrize("path", [(1, 5), (0, 2), (0, 3), (1, 4), (1,), ()])
@pytest.mark.parametrize("verifier", [TreeAttention(), Sequential()])
def test_any_path_of_a_tree_may_be_the_accepted_one(
    path: tuple[int, ...], verifier: AbstractVerifier
) -> None:
    """The target says what the path says, and a fresh token each round after it.

    A table model reads its text back from the cache, so a key that was moved wrongly,
    or not moved, gives another text at once.
    """

    def names(text: Text) -> list[int]:
        shift = sum(text) % 7
        return [(shift + offset) % VOCAB_SIZE for offset in range(6)]

    def script(ask: Ask) -> list[int]:
        tokens = names(ask.text)
        offsets = tuple(tokens.index(token) for token in ask.path)
        return [tokens[offset] for offset in TREE.get(offsets, ())]

    said = [1, 2, 11]
    for _ in range(4):
        said += [names(tuple(said))[offset] for offset in path]
        said.append((sum(said) + 7) % VOCAB_SIZE)

    def next_token(text: Text) -> int:
        return said[len(text)] if list(text) == said[: len(text)] else 12

    base = scripted_decoder(
        greedy_table(next_token, VOCAB_SIZE), script, depth=2, top_k=2, trace=True
    )
    result = replace(base, verifier=verifier).generate(
        [said[:2]], max_new_tokens=len(said) - 2
    )[0]
    assert list(result.tokens) == said[2:]
    ranks = tuple(offset % 2 for offset in path)
    whole = [record for record in result.steps if record.max_depth == 2]
    assert len(whole) > 1
    for record in whole:
        assert record.num_nodes == 6
        assert record.accepted_ranks == ranks


# What is refused


@pytest.mark.parametrize(
    ("prompts", "arguments", "told"),
    [
        pytest.param([[]], {}, "prompt 0 has no tokens", id="empty"),
        pytest.param([[1], []], {}, "prompt 1 has no tokens", id="second empty"),
        pytest.param([[1] * 41], {}, "41 tokens.*at most 40", id="too long"),
        pytest.param([[1, 13]], {}, "vocabulary is 0 to 12", id="id too large"),
        pytest.param([[-1]], {}, "vocabulary is 0 to 12", id="id negative"),
        pytest.param(["text"], {}, "no tokenizer", id="text without tokenizer"),
        pytest.param("text", {}, "must be a list", id="one text"),
        pytest.param([[1]], {"seed": [1, 2]}, "2 for 1 prompts", id="seeds"),
        pytest.param([[1]], {"max_new_tokens": -1}, "must be >= 0", id="length"),
        pytest.param([[1]], {"stop": ["a"]}, "need .* tokenizer", id="stop"),
        pytest.param([[1]], {"stop": "abc"}, "must be a list", id="one stop"),
        pytest.param([[1]], {"stop": [""]}, "non-empty", id="empty stop"),
        pytest.param(
            [[1]],
            {"sampling": Sampling(temperature=1.0)},
            "temperature 0 only",
            id="greedy rule",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line_before_any_forward(
    prompts: Sequence[Prompt], arguments: dict[str, object], told: str
) -> None:
    target = TableModel(lambda text: [0.0] * 13, 13, max_positions=40)
    refusing = decoder(target=target)
    for call in (refusing.generate, refusing.stream):
        with pytest.raises(TreespecError, match=told) as caught:
            call(prompts, **arguments)
        assert "\n" not in str(caught.value)
    assert target.forwards == []


def test_biased_parts_are_refused_when_they_are_put_together() -> None:
    with pytest.raises(IncompatiblePartsError, match="TopKTree"):
        decoder(acceptance=ChainSpeculative())
    with pytest.raises(TreespecError, match="max_concurrent must be an integer >= 1"):
        decoder(max_concurrent=0)


@dataclass(frozen=True, slots=True)
class Greedy2(AbstractDraftPolicy):
    """Returns two nodes whatever the room is."""

    proposal = ProposalKind.DETERMINISTIC
    max_children = 2

    def grow(self, growth: Growth) -> Layer | None:
        return as_layer(growth, growth.draft.top(2))


def test_a_policy_that_grows_too_many_nodes_is_told_so() -> None:
    with pytest.raises(TreespecError, match="Greedy2 grew a layer of 2 nodes") as error:
        decoder(policy=Greedy2(), controller=Constant(3, 1, 6)).generate([[1]])
    assert "growth.room" in str(error.value)


@dataclass(frozen=True, slots=True)
class Astray(AbstractDraftPolicy):
    """Returns one node that does not exist."""

    proposal = ProposalKind.DETERMINISTIC
    max_children = 1
    token: int
    parent: int

    def grow(self, growth: Growth) -> Layer | None:
        return Layer(
            parents=torch.tensor([self.parent]),
            tokens=torch.tensor([self.token]),
            draft_logprobs=torch.zeros(1),
            sources=torch.zeros(1, dtype=torch.int64),
        )


@pytest.mark.parametrize(
    ("token", "parent", "told"),
    [(99, 0, "were drafted"), (-1, 0, "were drafted"), (1, 5, "gave children")],
)
def test_a_policy_that_names_what_is_not_there_is_told_so(
    token: int, parent: int, told: str
) -> None:
    """Unknown tokens once ended in an IndexError deep in the model's embedding."""
    with pytest.raises(TreespecError, match=told) as error:
        decoder(policy=Astray(token, parent)).generate([[1]])
    assert "\n" not in str(error.value)


@dataclass(frozen=True, slots=True)
class SecondBest(AbstractDraftPolicy):
    """Two children per layer, of which only the second is asked further."""

    proposal = ProposalKind.DETERMINISTIC
    max_children = 2

    def grow(self, growth: Growth) -> Layer | None:
        layer = as_layer(growth, growth.draft.top(2))
        assert layer is not None
        return replace(layer, expand=torch.tensor([growth.tree.size + 1]))


def test_a_policy_says_which_nodes_are_asked_further() -> None:
    """Nodes that the draft never read may be accepted all the same."""
    same = DraftModel(greedy_table(SAID, VOCAB_SIZE))
    result = decoder(policy=SecondBest(), drafter=same, trace=True).generate(
        [[1, 2]], max_new_tokens=20
    )[0]
    assert list(result.tokens) == continuation(SAID, [1, 2], 20)
    assert result.steps[0].nodes_by_depth == (2, 2, 2)
    assert {node.parent for node in result.traces} == {0, 2, 4}
    assert all(record.num_accepted == 1 for record in result.steps[:-2])


@dataclass(frozen=True, slots=True)
class SecondThoughts(AbstractDraftPolicy):
    """Drafts two children per node, and drops the root's first one at the end."""

    proposal = ProposalKind.DETERMINISTIC
    max_children = 2
    prunes = True

    def grow(self, growth: Growth) -> Layer | None:
        return as_layer(growth, growth.draft.top(2))

    def prune(
        self, tree: TokenTree, budget: Budget, situation: Situation
    ) -> torch.Tensor:
        dropped = ancestor_mask(tree.parents)[:, 1]
        return (~dropped).nonzero().flatten()[: 1 + budget.max_nodes]


def test_what_a_policy_prunes_is_not_verified_and_the_draft_keeps_the_right_slots():
    """Ids change when a tree is pruned; the drafter is told those that it knows."""
    similar, same = (perturbed(reference("llama", 1), 0.2, seed=3) for _ in range(2))
    speculative = decoder(
        target=adapted("llama", seed=1),
        drafter=DraftModel(HuggingFaceModel(similar)),
        policy=SecondThoughts(),
        controller=Constant(max_depth=3, max_width=8, max_nodes=5),
    )
    run = Run(speculative, [[5, 6, 7]], GREEDY_SAMPLING, 40, 0, ())
    draft = run.draft.sequences
    for _ in run.steps():
        if draft:
            assert_cache_is_fresh(run.draft.session, draft[0], same)
    result = run.requests[0].result()
    assert list(result.tokens) == greedy_oracle(reference("llama", 1), [5, 6, 7], 40)
    # A layer may have 8 nodes, though only 5 are verified.
    assert {step.num_candidates for step in result.steps[:-3]} == {14}
    assert {step.num_nodes for step in result.steps[:-3]} == {5}
    assert sum(step.num_accepted for step in result.steps) > 3


def test_the_successors_are_told_with_the_line_that_was_accepted():
    """Ids in the grown tree would name other nodes than those that were verified."""
    told = []

    @dataclass(frozen=True)
    class Told(ScriptedDrafter):
        num_successors: int = 3

        def start(self, setting):
            session = super().start(setting)
            commit = session.commit

            def tell(request, feedback):
                told.append(feedback)
                commit(request, feedback)

            session.commit = tell
            return session

    next_token = mixing(VOCAB_SIZE)

    def second_is_right(ask: Ask) -> list[int]:
        right = next_token(ask.text + ask.path)
        return [(right + 1) % VOCAB_SIZE, right]

    (result,) = decoder(
        target=greedy_table(next_token, VOCAB_SIZE),
        drafter=Told(second_is_right),
        policy=SecondThoughts(),
        controller=Constant(max_depth=3, max_width=8, max_nodes=9),
    ).generate([[5, 6, 7]], max_new_tokens=40)
    for feedback in told:
        said, line = feedback.successors, feedback.successors.line
        accepted = said.after[list(line)].tolist()[1:]
        assert accepted == list(feedback.tokens[: len(feedback.node_ids)])
        assert len(line) == len(feedback.node_ids) + 1
        assert said.tokens[line[-1], 0] == feedback.tokens[-1]
        assert said.tokens.shape == said.logprobs.shape == (len(said.after), 3)
    assert sum(len(feedback.tokens) for feedback in told) == len(result.tokens)
    differs = [f for f in told if f.node_ids and f.node_ids != f.successors.line[1:]]
    assert differs, "pruned trees were numbered anew"


@dataclass(frozen=True, slots=True)
class DropsDraws(SampledTree):
    """Draws children, and would drop some of them at the end."""

    prunes = True


def test_a_policy_that_drops_what_it_has_drawn_is_refused() -> None:
    """Only the conformance kit once said so; the texts were biased without a word."""
    with pytest.raises(IncompatiblePartsError, match="DropsDraws prunes without_repl"):
        decoder(policy=DropsDraws(2), acceptance=SampleAndMatch())


@dataclass(frozen=True, slots=True)
class KeepsAll(AbstractDraftPolicy):
    """Says that it prunes, and does not."""

    proposal = ProposalKind.DETERMINISTIC
    max_children = None
    prunes = True

    def grow(self, growth: Growth) -> Layer | None:
        return as_layer(growth, growth.draft.top(3))


def test_a_policy_that_prunes_too_little_is_told_so():
    with pytest.raises(TreespecError, match="kept 12 nodes where the budget allows 5"):
        decoder(
            policy=KeepsAll(),
            controller=Constant(max_depth=2, max_width=9, max_nodes=5),
        ).generate([[1, 2]])


# Numbers that are none: public case 17


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("policy", "rule", "temperature"),
    [
        (TopKTree(2), Greedy(), 0.0),
        (TopKTree(2), SampleAndMatch(), 0.0),
        (TopKTree(2), SampleAndMatch(), 1.0),
        (SampledChain(), ChainSpeculative(), 1.0),
    ],
)
def test_a_target_that_says_nan_is_reported_with_prompt_and_step(
    policy: AbstractDraftPolicy,
    rule: Greedy | SampleAndMatch | ChainSpeculative,
    temperature: float,
    wrong: float,
) -> None:
    """NaN logits never become a token, and never end a text quietly."""

    def table(text: Text) -> list[float]:
        broken = text[0] == 2 and len(text) > 3
        return [0.0, wrong if broken else 1.0, 9.0]

    draft = DraftModel(TableModel(lambda text: [0.0, 9.0, 1.0], 3))
    broken = decoder(
        target=TableModel(table, 3), drafter=draft, policy=policy, acceptance=rule
    )
    sampling = Sampling(temperature=temperature)
    assert len(broken.generate([[1]], sampling, 8)[0].tokens) == 8
    with pytest.raises(NumericalError, match=r"prompt 1, step \d+ \(after") as caught:
        broken.generate([[1], [2, 2, 2]], sampling, 8)
    assert "\n" not in str(caught.value)
    with pytest.raises(NumericalError, match=r"prompt 0, step 0 \(after 0 new"):
        broken.generate([[2, 2, 2, 2]], sampling, 8)


def test_a_draft_that_says_nan_is_reported_where_its_law_is_needed() -> None:
    draft = DraftModel(TableModel(lambda text: [math.nan] * 3, 3))
    broken = decoder(
        target=TableModel(lambda text: [0.0, 1.0, 2.0], 3),
        drafter=draft,
        policy=SampledChain(),
        acceptance=ChainSpeculative(),
    )
    with pytest.raises(NumericalError, match="prompt 0, step 1"):
        broken.generate([[1]], Sampling(temperature=1.0), 8)
    for policy in (Chain(), TopKTree(2)):
        greedy = replace(broken, policy=policy, acceptance=Greedy())
        assert greedy.generate([[1]], max_new_tokens=4)[0].tokens == (2, 2, 2, 2)


# What comes out


def test_no_prompts_give_no_results() -> None:
    assert decoder().generate([]) == []
    assert list(decoder().stream([])) == []


@pytest.mark.parametrize("max_concurrent", [1, 8])
def test_a_stream_says_what_generate_returns(max_concurrent: int) -> None:
    prompts = [[1, 2, 3], [4], [5, 5]]
    parts = decoder(max_concurrent=max_concurrent, eos_ids=frozenset({7}))
    results = parts.generate(prompts, max_new_tokens=15)
    texts: list[Text] = [()] * 3
    ends = {}
    for committed in parts.stream(prompts, max_new_tokens=15):
        assert committed.prompt not in ends, "nothing comes after the end"
        assert committed.tokens
        texts[committed.prompt] += committed.tokens
        if committed.finish_reason is not None:
            ends[committed.prompt] = committed.finish_reason
    assert texts == [result.tokens for result in results]
    assert [ends[i] for i in range(3)] == [result.finish_reason for result in results]


def test_a_stream_tells_of_prompts_that_have_no_room() -> None:
    (ended,) = decoder().stream([[1]], max_new_tokens=0)
    assert (ended.prompt, ended.tokens, ended.finish_reason) == (0, (), "length")


def test_one_decoder_used_twice_equals_two_decoders() -> None:
    """Strategies keep nothing of a prompt."""
    prompts = [[1, 2, 3, 1, 2], [4, 4, 4]]
    for drafter in (PromptLookup(), decoder().drafter):
        shared = decoder(drafter=drafter)
        for prompt in (*prompts, prompts[0]):
            fresh = decoder(drafter=drafter).generate([prompt], max_new_tokens=12)[0]
            again = shared.generate([prompt], max_new_tokens=12)[0]
            assert again.tokens == fresh.tokens
            assert [r.nodes_by_depth for r in again.steps] == [
                r.nodes_by_depth for r in fresh.steps
            ]


def test_seeds_count_up_from_the_given_one() -> None:
    """Public case 23: 0 is a seed like any other."""
    for seed, expected in ((0, [0, 1, 2]), ((4, 0, 9), [4, 0, 9]), (None, [None] * 3)):
        results = decoder().generate([[1]] * 3, max_new_tokens=2, seed=seed)
        assert [result.seed for result in results] == expected


# What is written down


def noisy_decoder(trace: bool = True) -> SpeculativeDecoder:
    """Models that agree half of the time, so that every verdict occurs."""
    noisy = perturbed(reference("llama", 1), noise=0.15, seed=4)
    return SpeculativeDecoder(
        target=adapted("llama", 1),
        drafter=DraftModel(HuggingFaceModel(noisy)),
        policy=TopKTree(2),
        acceptance=SampleAndMatch(),
        verifier=TreeAttention(),
        controller=Constant(4, 4, 10),
        eos_ids=frozenset({0, 9}),
        trace=trace,
    )


def test_records_add_up_to_the_text() -> None:
    prompts = [[1, 5, 6], [9], [1, 20, 20, 4], [14, 30]]
    sampling = Sampling(temperature=0.6)
    for result in noisy_decoder().generate(prompts, sampling, 40):
        steps = result.steps
        # The first token comes from the prefill, which is not a step.
        assert 1 + sum(record.num_committed for record in steps) == len(result.tokens)
        assert [record.step for record in steps] == list(range(len(steps)))
        assert len(result.token_times_s) == len(result.tokens)
        assert list(result.token_times_s) == sorted(result.token_times_s)
        assert result.prefill_s == result.token_times_s[0]
        assert result.prefill_s + result.decode_s == pytest.approx(
            result.token_times_s[-1]
        )
        for record in steps:
            assert record.num_nodes == sum(record.nodes_by_depth)
            assert record.depth == len(record.nodes_by_depth)
            assert record.width == max(record.nodes_by_depth, default=0)
            assert record.num_accepted <= record.depth
            is_whole = record.next_kind is not None
            assert record.num_committed == record.num_accepted + is_whole
            assert len(record.accepted_ranks) == record.num_accepted
            assert record.accepted_sources == ("draft_model",) * record.num_accepted
            phases = (
                record.draft_s
                + record.plan_s
                + record.verify_s
                + record.accept_s
                + record.commit_s
            )
            assert 0 < phases <= record.step_s
        assert all(record.next_kind is not None for record in steps[:-1])


def test_traces_tell_what_became_of_every_node() -> None:
    prompts = [[1, 5, 6], [9], [1, 20, 20, 4], [14, 30], [8], [21, 22]]
    sampling = Sampling(temperature=0.6)
    results = noisy_decoder().generate(prompts, sampling, 40)
    verdicts = Counter(node.verdict for r in results for node in r.traces)
    assert verdicts.keys() == {"accepted", "rejected", "unreached"}
    for result in results:
        text = list(result.prompt_tokens + result.tokens)
        place = len(result.prompt_tokens) + 1
        for record in result.steps:
            nodes = [node for node in result.traces if node.step == record.step]
            assert [n.node for n in nodes] == list(range(1, record.num_nodes + 1))
            accepted = [n for n in nodes if n.verdict == "accepted"]
            reached = {0, *(n.node for n in accepted)}
            assert [n.token for n in accepted] == text[place:][: len(accepted)]
            assert tuple(n.rank for n in accepted) == record.accepted_ranks
            assert len(accepted) == record.num_accepted
            for node in nodes:
                assert node.parent < node.node
                assert 0 <= node.draft_prob <= 1
                assert 0 <= node.target_prob <= 1
                assert (node.parent in reached) == (node.verdict != "unreached")
                if node.depth == 1:
                    assert node.parent == 0
            per_depth = Counter(node.depth for node in nodes)
            assert tuple(per_depth[d + 1] for d in range(record.depth)) == (
                record.nodes_by_depth
            )
            place += record.num_committed
    assert not any(r.traces for r in noisy_decoder(trace=False).generate(prompts))


def test_no_clock_sees_the_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimum of a large vocabulary takes longer than the step it is traced of."""

    def slow(*arguments: object) -> list[NodeTrace]:
        time.sleep(0.2)
        return []

    monkeypatch.setattr("treespec.decoder.trace_nodes", slow)
    started_s = time.perf_counter()
    traced = replace(noisy_decoder(), eos_ids=frozenset())
    result = traced.generate([[1, 5, 6]], max_new_tokens=12)[0]
    wall_s = time.perf_counter() - started_s
    assert len(result.steps) > 1
    traced_s = 0.2 * len(result.steps)
    assert result.prefill_s + result.decode_s < wall_s - 0.9 * traced_s


class Letters:
    """A tokenizer of one letter per token."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token) for token in tokens)


def test_what_an_end_cuts_off_is_traced_as_cut() -> None:
    said = continuation(SAID, [1], 4)
    base = replace(
        scripted_decoder(
            greedy_table(SAID, VOCAB_SIZE), agreeing(SAID, {0: [4]}), trace=True
        ),
        tokenizer=Letters(),
    )
    result = base.generate([[1]], stop=[Letters().decode(said[:3])])[0]
    assert list(result.tokens) == said[:3]
    assert [n.verdict for n in result.traces] == ["accepted", "accepted", "cut", "cut"]
    # The end was the second node's, so its children were never compared.
    assert [n.optimal_acceptance for n in result.traces] == [1.0, 1.0, None, None]
    assert result.steps[0].num_accepted == result.steps[0].num_committed == 2


@pytest.mark.parametrize(
    "policy",
    [Chain(), TopKTree(1), BestFirst(1), SampledChain(), StaticTree(comb_shape(1, 9))],
    ids=repr,
)
def test_nothing_is_drafted_below_the_end_of_a_text(
    policy: AbstractDraftPolicy,
) -> None:
    """A draft model once went on for 20 forwards after the token that ends a text."""
    said = continuation(SAID, [1], 4)
    same = greedy_table(SAID, VOCAB_SIZE)
    rule = ChainSpeculative() if policy == SampledChain() else Greedy()
    speculative = decoder(
        drafter=DraftModel(same),
        policy=policy,
        acceptance=rule,
        eos_ids=frozenset({said[2]}),
        controller=Constant(max_depth=9, max_width=9, max_nodes=9),
    )
    (result,) = speculative.generate([[1]], max_new_tokens=30)
    assert list(result.tokens) == said[:3]
    (step,) = result.steps
    assert (step.num_draft_forwards, step.depth) == (2, 2)


@pytest.mark.parametrize("policy", [BestFirst(), TopKTree(8)], ids=repr)
def test_whoever_the_target_has_room_for_has_room_in_the_draft(
    policy: AbstractDraftPolicy,
) -> None:
    """Regions of other sizes once left other gaps, and an assertion failed.

    The first text ends early. The third one then found room among the target's slots,
    and none among the draft's.
    """

    def guess(text: Text) -> int:
        return SAID(text) if text[0] == 1 else (SAID(text) + 1) % VOCAB_SIZE

    speculative = decoder(
        drafter=DraftModel(greedy_table(guess, VOCAB_SIZE)),
        policy=policy,
        controller=Constant(8, 8, 8),
        max_concurrent=2,
    )
    prompts = [[1], [2] * 60, [2] * 20, [2] * 60]
    results = speculative.generate(prompts, max_new_tokens=20)
    plain = speculative.autoregressive().generate(prompts, max_new_tokens=20)
    assert [r.tokens for r in results] == [r.tokens for r in plain]


def test_a_budget_that_no_memory_holds_is_refused_by_name() -> None:
    """It once ended in a message of the allocator."""
    huge = Constant(max_depth=10**6, max_width=10**6, max_nodes=10**6)
    with pytest.raises(TreespecError, match=r"lower controller\.max_depth") as error:
        decoder(policy=BestFirst(), controller=huge).generate([[1]])
    assert "\n" not in str(error.value)


def test_a_trace_holds_the_laws_of_both_models() -> None:
    draft_law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    target_law = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    traced = decoder(
        target=TableModel(lambda text: target_law.log().tolist(), 3),
        drafter=DraftModel(TableModel(lambda text: draft_law.log().tolist(), 3)),
        policy=TopKTree(2),
        acceptance=SampleAndMatch(),
        controller=Constant(1, 2, 2),
        trace=True,
    )
    result = traced.generate([[1]], Sampling(temperature=1.0), 6)[0]
    assert result.traces
    for node in result.traces:
        assert node.draft_prob == pytest.approx(float(draft_law[node.token]))
        assert node.target_prob == pytest.approx(float(target_law[node.token]))
        assert node.rank == node.token
        assert node.source == "draft_model"
        # These two tokens were certain to be drafted.
        assert node.optimal_acceptance == pytest.approx(0.1 + 0.2)


def test_of_equal_siblings_the_optimum_counts_one() -> None:
    target = TableModel(lambda text: torch.tensor([0.2, 0.3, 0.5]).log().tolist(), 3)
    scripted = scripted_decoder(
        target, lambda ask: [0, 0], depth=1, top_k=2, trace=True
    )
    traced = replace(scripted, acceptance=SampleAndMatch())
    result = traced.generate([[1]], Sampling(temperature=1.0), 6)[0]
    assert [node.token for node in result.traces[:2]] == [0, 0]
    for node in result.traces:
        assert node.optimal_acceptance == pytest.approx(0.2)


def test_the_optimum_is_that_of_the_law_which_the_children_were_drawn_from() -> None:
    """Nodes that were drawn again are not asked about: rows are fewer than nodes."""
    certain = [-torch.inf, 0.0, -torch.inf]
    traced = decoder(
        target=TableModel(lambda text: certain, 3),
        drafter=DraftModel(TableModel(lambda text: certain, 3)),
        policy=SampledTree(2, ProposalKind.WITH_REPLACEMENT),
        acceptance=RejectionWithReplacement(),
        controller=Constant(3, 4, 8),
        trace=True,
    )
    result = traced.generate([[1]], Sampling(temperature=1.0), 6)[0]
    assert result.steps[0].num_accepted == 3
    optima = [n.optimal_acceptance for n in result.traces if n.step == 0]
    assert optima == pytest.approx([1.0] * 6)


def test_seconds_are_shared_by_the_requests_of_a_step() -> None:
    """Sums over records are sums of wall time."""
    run = Run(decoder(), [[1], [2], [3, 4]], GREEDY_SAMPLING, 12, 0, ())
    for _ in run.steps():
        pass
    recorded_s = sum(r.step_s for request in run.requests for r in request.records)
    assert 0 < recorded_s < run.clock_s
    forwards = {r.num_draft_forwards for q in run.requests for r in q.records[:1]}
    assert forwards == {3}, "all requests were drafted by the same three forwards"


# What a drafter is told


@pytest.mark.parametrize("verifier", [TreeAttention(), Sequential()])
def test_a_drafter_gets_the_hidden_states_that_it_asked_for(
    verifier: AbstractVerifier,
) -> None:
    module, target = reference("llama", 1), adapted("llama", 1)
    prompt, layers = [1, 5, 6], (0, 2)
    plain = decoder(target=target).autoregressive().generate([prompt], max_new_tokens=9)
    said = prompt + list(plain[0].tokens)

    def script(ask: Ask) -> list[int]:
        place = len(ask.text) + len(ask.path)
        wrong = len(ask.path) >= 1 + ask.round % 2
        return [0, 3] if wrong or place >= len(said) else [3, said[place]]

    base = scripted_decoder(target, script, depth=3, top_k=2)
    drafter = ScriptedDrafter(script, hidden_layers=layers)
    run = Run(
        replace(base, drafter=drafter, verifier=verifier),
        [prompt],
        GREEDY_SAMPLING,
        9,
        0,
        (),
    )
    for _ in run.steps():
        pass
    assert isinstance(run.draft, ScriptedSession)
    assert run.requests[0].new_tokens == said[3:]
    with torch.inference_mode():
        states = module(
            torch.tensor([said]), output_hidden_states=True, use_cache=False
        ).hidden_states
    first = len(prompt) - 1
    accepted = [0, *(record.num_accepted for record in run.requests[0].records)]
    assert max(accepted) > 1
    for num_accepted, hidden in zip(accepted, run.draft.hidden, strict=True):
        rows = slice(first, first + 1 + num_accepted)
        expected = torch.stack([states[layer][0, rows] for layer in layers], dim=1)
        torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=1e-4)
        first += num_accepted + 1


def test_an_autoregressive_decoder_asks_no_drafter() -> None:
    def script(ask: Ask) -> list[int]:
        raise AssertionError("asked")

    plain = scripted_decoder(greedy_table(SAID, VOCAB_SIZE), script).autoregressive()
    assert list(plain.generate([[1]], max_new_tokens=5)[0].tokens) == continuation(
        SAID, [1], 5
    )
    assert plain.autoregressive() == plain


def test_agreement_is_scripted_as_said() -> None:
    base = scripted_decoder(
        greedy_table(SAID, VOCAB_SIZE), agreeing(SAID, {0: [2, 0, 1]})
    )
    steps = base.generate([[1]], max_new_tokens=30)[0].steps
    assert [record.num_accepted for record in steps[:6]] == [2, 0, 1, 2, 0, 1]


def test_decoding_builds_no_gradient_graph() -> None:
    """Public case 37: a forgotten inference mode kept every step's graph in memory."""
    model = adapted("llama", 1)
    model.module.requires_grad_(True)
    run = Run(decoder(target=model), [[1, 2, 3]], GREEDY_SAMPLING, 4, 0, ())
    for _ in run.steps():
        keys = run.target.cache.layer(0).keys
        assert keys.is_inference()
        assert not keys.requires_grad


@dataclass(frozen=True)
class OpensForLongPrompts(TopKTree):
    """Lets a draft model run for texts of more than twelve tokens."""

    def opens(self, situation: Situation, budget: Budget) -> bool:
        return situation.length > 12


def test_a_forward_that_was_run_for_a_neighbour_is_not_in_a_requests_records() -> None:
    """What a planner learns of a draft model must not depend on who shares its row."""
    decoder = SpeculativeDecoder(
        adapted("llama", 1),
        DraftModel(adapted("llama", 1)),
        OpensForLongPrompts(2),
        Greedy(),
        TreeAttention(),
        Constant(3, 2, 4),
    )
    short, long = decoder.generate([[1, 5], [1, *range(4, 24)]], max_new_tokens=6)
    assert [step.num_draft_forwards for step in short.steps] == [0] * len(short.steps)
    assert all(step.num_draft_forwards for step in long.steps[:1])
