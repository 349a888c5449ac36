"""When a text ends: end-of-sequence ids, stop strings, lengths, contexts."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from tests.oracles import adapted, greedy_oracle, reference
from tests.scripts import (
    Ask,
    Text,
    agreeing,
    continuation,
    greedy_table,
    mixing,
    scripted_decoder,
    spoken,
)
from tests.tiny import FAMILIES, TOKENS, Family, tiny_tokenizer
from treespec.acceptance import Greedy
from treespec.controllers import Constant
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
from treespec.models import session as session_module
from treespec.models.table import TableModel
from treespec.policies import (
    AbstractDraftPolicy,
    BestFirst,
    Chain,
    ConfidenceTree,
    SampledBestFirst,
    TopKTree,
)
from treespec.types import GenerationResult
from treespec.verifiers import TreeAttention

PROMPT = [3, 4, 5]
EOS, OTHER_EOS = 7, 9
DEPTH = 4
WORDS = (10, 11, 12, 13, 14, 15, 16, 17, 18, 19)


def say(
    script: list[int], num_right: int, eos_ids: tuple[int, ...] = (EOS,)
) -> GenerationResult:
    """Decode a scripted text of which each round's draft knows some tokens."""
    target = spoken(script, otherwise=6, prompt_length=len(PROMPT))
    decoder = scripted_decoder(
        greedy_table(target, 24),
        agreeing(target, {0: [num_right]}),
        depth=DEPTH,
        eos_ids=eos_ids,
    )
    result = decoder.generate([PROMPT], max_new_tokens=16)[0]
    plain = decoder.autoregressive().generate([PROMPT], max_new_tokens=16)[0]
    assert result.tokens == plain.tokens
    assert result.finish_reason == plain.finish_reason
    return result


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_an_eos_among_accepted_tokens_ends_the_text(place: int) -> None:
    """Public case 24: nothing was looked for inside an accepted block.

    The prefill says one token; the EOS is the place-th token of the first round.
    """
    script = [*WORDS[:place], EOS, 20, 20, 20]
    result = say(script, num_right=DEPTH)
    assert result.tokens == (*WORDS[:place], EOS)
    assert result.finish_reason == "eos"
    (record,) = result.steps
    assert record.num_accepted == record.num_committed == place
    assert record.next_kind is None, "the bonus behind the EOS was not committed"
    assert len(record.accepted_ranks) == len(record.accepted_sources) == place
    assert len(result.token_times_s) == len(result.tokens)


@pytest.mark.parametrize(
    ("num_right", "kind"), [(DEPTH, "bonus"), (2, "recovered"), (0, "recovered")]
)
def test_an_eos_may_end_a_round_by_itself(num_right: int, kind: str) -> None:
    script = [*WORDS[: num_right + 1], EOS, 20, 20]
    result = say(script, num_right)
    assert result.tokens == (*WORDS[: num_right + 1], EOS)
    assert result.finish_reason == "eos"
    assert result.steps[-1].next_kind == kind
    assert result.steps[-1].num_accepted == num_right


def test_an_eos_may_be_the_first_token() -> None:
    result = say([EOS, 20, 20], DEPTH)
    assert (result.tokens, result.finish_reason) == ((EOS,), "eos")
    assert result.steps == ()


def test_any_of_several_ids_ends_the_text() -> None:
    for eos in (EOS, OTHER_EOS):
        result = say([10, 11, eos, 12], DEPTH, eos_ids=(EOS, OTHER_EOS))
        assert result.tokens == (10, 11, eos)


def test_ids_0_and_2_are_tokens_like_any_other() -> None:
    """Public case 24: they were taken for EOS, whatever the model."""
    script = [0, 2, 0, 1, 2, 2, 0, EOS]
    assert say(script, DEPTH).tokens == tuple(script)
    assert len(say(script, DEPTH, eos_ids=()).tokens) == 16


SEARCHES = [TopKTree(2), BestFirst(2, beam=1), ConfidenceTree(2), SampledBestFirst()]


@pytest.mark.parametrize("policy", SEARCHES, ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_end_where_those_of_generate_end(
    family: Family, policy: AbstractDraftPolicy
) -> None:
    prompts = [[1, 5, 6], [9], [1, 20, 20, 4], [14, 30]]
    module, eos_ids = reference(family, 1), [6, 11, 17]
    decoder = SpeculativeDecoder(
        adapted(family, 1),
        DraftModel(adapted(family, 1)),
        policy,
        Greedy(),
        TreeAttention(),
        Constant(4, 2, 8),
        eos_ids=frozenset(eos_ids),
    )
    results = decoder.generate(prompts, max_new_tokens=30)
    for prompt, result in zip(prompts, results, strict=True):
        oracle = greedy_oracle(module, prompt, 30, eos_ids)
        assert list(result.tokens) == oracle
        ended = oracle[-1] in eos_ids
        assert result.finish_reason == ("eos" if ended else "length")
    assert any(result.finish_reason == "eos" for result in results)


# Length: public case 26

SAME = DraftModel(adapted("llama", 1))
SOURCES = {
    "same_model": SAME,
    "prompt_lookup": PromptLookup(),
    "token_recycling": TokenRecycling(),
    "cascade": Cascade((PromptLookup(), SAME), (0.6,)),
    "merge": Merge((TokenRecycling(), SAME)),
    "marginals": Marginals(SAME),
}


@pytest.mark.parametrize("count", [0, 1, 2, DEPTH, DEPTH + 1, DEPTH + 2, 17])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("policy", SEARCHES, ids=repr)
def test_exactly_as_many_tokens_as_asked_for(
    count: int, source: str, policy: AbstractDraftPolicy
) -> None:
    """Blocks overshot by up to their depth, and one token meant 0 / 0 drafts."""
    decoder = SpeculativeDecoder(
        adapted("llama", 1),
        SOURCES[source],
        policy,
        Greedy(),
        TreeAttention(),
        Constant(DEPTH, 2, 8),
    )
    prompts = [[3], [1, 5, 6, 5, 6]]
    for prompt, result in zip(
        prompts, decoder.generate(prompts, max_new_tokens=count), strict=True
    ):
        module = reference("llama", 1)
        oracle = greedy_oracle(module, prompt, count) if count else []
        assert list(result.tokens) == oracle
        assert result.finish_reason == "length"
        assert sum(r.num_committed for r in result.steps) == max(count - 1, 0)
        assert result.prefill_s >= 0
        assert result.decode_s >= 0
        for record in result.steps:
            assert record.depth <= DEPTH


def test_nodes_too_deep_to_be_committed_are_not_drafted() -> None:
    target = spoken(WORDS, otherwise=6, prompt_length=len(PROMPT))
    decoder = scripted_decoder(
        greedy_table(target, 24), agreeing(target, {0: [DEPTH]}), depth=DEPTH
    )
    result = decoder.generate([PROMPT], max_new_tokens=8)[0]
    # One from the prefill, five from a whole round, two that are left.
    assert [(r.depth, r.budget_by) for r in result.steps] == [
        (DEPTH, "Constant"),
        (1, "limit"),
    ]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(("length", "depth"), [(250, 4), (250, 8), (253, 8), (255, 8)])
def test_drafts_are_trimmed_at_the_end_of_the_context(
    family: Family, length: int, depth: int
) -> None:
    """Public cases 07 and 26: a position 256 would be an index error in GPT-2."""
    prompt = [(7 * i + i // 5) % 32 for i in range(length)]
    decoder = SpeculativeDecoder(
        adapted(family, 1),
        DraftModel(adapted(family, 1)),
        Chain(),
        Greedy(),
        TreeAttention(),
        Constant(depth),
    )
    result = decoder.generate([prompt], max_new_tokens=40)[0]
    room = 256 - length
    assert list(result.tokens) == greedy_oracle(reference(family, 1), prompt, room)
    assert result.finish_reason == "length"


def test_a_prompt_that_fills_the_context_yields_nothing() -> None:
    target = greedy_table(mixing(9), 9)
    small = TableModel(lambda text: [0.0] * 8 + [1.0], 9, max_positions=4)
    decoder = scripted_decoder(small, lambda ask: [8])
    result = decoder.generate([[1, 2, 3, 4]], max_new_tokens=5)[0]
    assert (result.tokens, result.finish_reason) == ((), "length")
    assert target.forwards == small.forwards == []


@pytest.mark.parametrize("draft_context", [3, 5, 8])
@pytest.mark.parametrize(
    "around",
    [lambda model: model, Marginals, lambda model: Cascade((model, model), (0.9,))],
    ids=["model", "marginals", "cascade"],
)
def test_a_draft_with_a_shorter_context_falls_silent(
    around: Callable[[DraftModel], AbstractDrafter], draft_context: int
) -> None:
    next_token = mixing(9)

    def table(text: Text) -> list[float]:
        logits = [0.0] * 9
        logits[next_token(text)] = 1.0
        return logits

    draft = TableModel(table, 9, max_positions=draft_context)
    decoder = SpeculativeDecoder(
        greedy_table(next_token, 9),
        around(DraftModel(draft)),
        Chain(),
        Greedy(),
        TreeAttention(),
        Constant(3),
    )
    result = decoder.generate([[1, 2, 3, 4]], max_new_tokens=10)[0]
    assert list(result.tokens) == continuation(next_token, [1, 2, 3, 4], 10)
    assert result.steps[-1].num_nodes == 0
    assert all(int(rows.positions.max()) < draft_context for rows in draft.forwards)
    assert any(r.num_accepted for r in result.steps) == (draft_context > 4)


@pytest.mark.parametrize("extra", [0, 1, 2])
def test_long_prompts_decode_as_if_they_were_read_at_once(
    extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public case 26: a prefill in chunks left exactly one token."""
    monkeypatch.setattr(session_module, "PREFILL_CHUNK", 4)
    prompts = [[(5 * i) % 32 for i in range(4 + extra)], [1] * (8 + extra), [3]]
    decoder = SpeculativeDecoder(
        adapted("gemma3", 1),
        DraftModel(adapted("gemma3", 1)),
        TopKTree(2),
        Greedy(),
        TreeAttention(),
        Constant(3, 2, 6),
    )
    results = decoder.generate(prompts, max_new_tokens=12)
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.tokens) == greedy_oracle(reference("gemma3", 1), prompt, 12)


# Stop strings


class Characters:
    """A tokenizer of the protocol: a token is a character."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text)
        return ids

    def decode(self, tokens: Text) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text


SAID = "the cat sat on the mat, the end. and more of it"


def speaker(num_right: int) -> SpeculativeDecoder:
    """Says ``SAID`` after the prompt "say", drafted so many tokens at a time."""
    tokenizer = Characters(tiny_tokenizer())
    start = len(tokenizer.encode("say"))
    ids = tokenizer.encode(SAID)[1:]
    target = spoken(ids, otherwise=TOKENS.index("."), prompt_length=start)
    decoder = scripted_decoder(
        greedy_table(target, len(TOKENS)), agreeing(target, {0: [num_right]})
    )
    return replace(decoder, tokenizer=tokenizer)


@pytest.mark.parametrize("num_right", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        pytest.param(["sat"], "the cat ", id="three tokens"),
        pytest.param([" "], "the", id="one token"),
        pytest.param(["the"], "", id="the very beginning"),
        pytest.param(["mat, the e"], "the cat sat on the ", id="long"),
        pytest.param(["zebra", "end", "on"], "the cat sat ", id="the first of many"),
        pytest.param(["at s", "t"], "", id="the shortest"),
        pytest.param(["sat", "cat sat"], "the ", id="two that end together"),
    ],
)
def test_a_stop_string_cuts_the_text(
    num_right: int, stop: list[str], text: str
) -> None:
    decoder = speaker(num_right)
    result = decoder.generate(["say"], max_new_tokens=40, stop=stop)[0]
    plain = decoder.autoregressive().generate(["say"], max_new_tokens=40, stop=stop)[0]
    assert (result.text, result.finish_reason) == (text, "stop")
    assert (plain.text, plain.finish_reason) == (text, "stop")
    assert result.tokens == plain.tokens
    assert 1 + sum(r.num_committed for r in result.steps) == len(result.tokens)
    # Nothing is decoded beyond the token that completes the string.
    assert any(string in SAID[: len(result.tokens)] for string in stop)
    assert not any(string in SAID[: len(result.tokens) - 1] for string in stop)


def test_without_its_stop_string_a_text_runs_to_its_length() -> None:
    result = speaker(2).generate(["say"], max_new_tokens=20, stop=["zebra"])[0]
    assert (result.text, result.finish_reason) == (SAID[:20], "length")


def test_special_tokens_are_not_in_the_text() -> None:
    tokenizer = Characters(tiny_tokenizer())
    target = spoken([4, 5, 2, 6], otherwise=3, prompt_length=2)
    decoder = scripted_decoder(greedy_table(target, 32), lambda ask: [5], eos_ids=(2,))
    result = replace(decoder, tokenizer=tokenizer).generate(["a"])[0]
    assert result.prompt_tokens == (1, 4)
    assert (result.tokens, result.text) == ((4, 5, 2), "ab")


def test_a_script_sees_what_was_committed() -> None:
    """The scripted drafter is an instrument: it must read true."""
    asks: list[Ask] = []

    def script(ask: Ask) -> list[int]:
        asks.append(ask)
        return [0]

    target = mixing(9, first=1)
    scripted_decoder(greedy_table(target, 9), script, depth=1).generate(
        [[1, 2]], max_new_tokens=4
    )
    texts = [ask.text for ask in asks]
    said = continuation(target, [1, 2], 3)
    assert texts == [(1, 2, *said[: n + 1]) for n in range(len(texts))]
    assert [ask.round for ask in asks] == list(range(len(asks)))
