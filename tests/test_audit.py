from dataclasses import replace

import pytest
import torch

from tests.tiny import tiny_model
from treespec.acceptance import ChainSpeculative, Greedy, SampleAndMatch
from treespec.audit import _Judge, audit, texts_must_agree
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import PromptLookup
from treespec.measure import Measurement, Task, measure
from treespec.models.base import ModelOutput
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.table import TableModel
from treespec.policies import TopKTree
from treespec.sampling import Sampling
from treespec.types import GenerationResult
from treespec.verifiers import TreeAttention

VOCAB = 6
PROMPT = (0, 1)


def logits_of(text):
    """Token 2 and 3 tie after the prompt; later the best one depends on the text."""
    if len(text) == len(PROMPT):
        return [0.0, 0.0, 4.0, 4.0, 0.0, 0.0]
    return [float((7 * token + 3 * sum(text)) % 11) for token in range(VOCAB)]


def result(tokens, seed=5):
    return GenerationResult(
        prompt_tokens=PROMPT,
        tokens=tuple(tokens),
        text=None,
        finish_reason="length",
        seed=seed,
        prefill_s=0.0,
        decode_s=0.0,
        steps=(),
        token_times_s=(),
    )


def greedy_from(first, model, num_tokens=8):
    tokens = list(first)
    while len(tokens) < num_tokens:
        logits = torch.tensor(logits_of((*PROMPT, *tokens)))
        tokens.append(int(logits.argmax()))
    return result(tokens)


@pytest.fixture
def model():
    return TableModel(logits_of, VOCAB)


def test_equal_texts_are_identical(model):
    text = greedy_from([2], model)
    found = audit(model, Sampling(), text, text)
    assert (found.verdict, found.divergence) == ("identical", None)


def test_an_exact_tie_of_the_two_best_tokens_is_a_tie(model):
    found = audit(model, Sampling(), greedy_from([2], model), greedy_from([3], model))
    assert found.verdict == "tie"
    assert found.divergence is not None
    assert (found.divergence.index, found.divergence.margin) == (0, 0.0)


def test_a_token_that_is_not_the_best_is_a_violation(model):
    found = audit(model, Sampling(), greedy_from([2], model), greedy_from([4], model))
    assert found.verdict == "violation"
    assert found.divergence is not None
    assert found.divergence.margin == 4.0


def test_after_a_tie_every_later_token_is_still_checked(model):
    """A tie used to end the comparison, and with it all evidence."""
    good = greedy_from([3], model)
    wrong = (good.tokens[5] + 1) % VOCAB
    spoilt = replace(good, tokens=(*good.tokens[:5], wrong, *good.tokens[6:]))
    found = audit(model, Sampling(), greedy_from([2], model), spoilt)
    assert found.verdict == "violation"
    assert found.divergence is not None
    assert found.divergence.index >= 5


def test_a_text_that_ends_too_early_is_a_violation(model):
    full = greedy_from([2], model)
    short = replace(full, tokens=full.tokens[:4])
    found = audit(model, Sampling(), full, short)
    assert found.verdict == "violation"
    assert found.divergence is not None
    assert found.divergence.index == 4


class NoisyModel(TableModel):
    """Rounds differently when it reads several rows, as kernels do."""

    noise = 0.25

    def forward(self, rows, cache, hidden_layers=()):
        output = super().forward(rows, cache, hidden_layers)
        if rows.logit_rows.shape[0] == 1:
            return output
        sign = torch.arange(VOCAB) % 2 * 2 - 1
        return ModelOutput(output.logits + self.noise * sign, None)


@pytest.mark.parametrize(
    ("gap", "verdict"), [(0.2, "tie"), (0.45, "tie"), (0.55, "violation")]
)
def test_a_margin_is_a_tie_up_to_twice_the_measured_noise(gap, verdict):
    def table(text):
        if len(text) == 12:
            return [0.0, 0.0, 4.0, 4.0 - gap, 0.0, 0.0]
        return [0.0, 3.0, 0.0, 0.0, 0.0, 0.0]

    noisy = NoisyModel(table, VOCAB)
    ones = [1] * 10
    found = audit(noisy, Sampling(), result([*ones, 2, 1]), result([*ones, 3, 1]))
    assert found.verdict == verdict
    assert found.divergence is not None
    assert found.divergence.noise == pytest.approx(0.25)


def decoder_of(model, acceptance, policy):
    return SpeculativeDecoder(
        target=model,
        drafter=PromptLookup(),
        policy=policy,
        acceptance=acceptance,
        verifier=TreeAttention(),
        controller=Constant(max_depth=3, max_width=4, max_nodes=12),
    )


def test_sampled_texts_are_judged_by_the_draws_that_they_had(model):
    sampling = Sampling(temperature=0.9)
    decoder = decoder_of(model, SampleAndMatch(), TopKTree(2))
    (text,) = decoder.generate([PROMPT], sampling, 12, seed=[5])
    assert _Judge(model, sampling, text).suspects(0) == []
    other = replace(text, seed=6)
    assert _Judge(model, sampling, other).suspects(0)
    wrong = (text.tokens[7] + 1) % VOCAB
    spoilt = replace(text, tokens=(*text.tokens[:7], wrong, *text.tokens[8:]))
    found = audit(model, sampling, text, spoilt)
    assert found.verdict == "violation"
    assert found.divergence is not None
    assert found.divergence.index == 7


@pytest.mark.parametrize(
    ("acceptance", "temperature", "agree"),
    [
        (Greedy(), 0.0, True),
        (ChainSpeculative(), 0.0, True),
        (SampleAndMatch(), 0.8, True),
        (ChainSpeculative(), 0.8, False),
    ],
)
def test_which_texts_must_agree(acceptance, temperature, agree):
    assert texts_must_agree(acceptance, Sampling(temperature)) is agree


def test_in_bfloat16_every_divergence_is_a_measured_tie():
    """Near-ties flip with the number of rows, and users took that for a bug."""
    module = tiny_model("qwen2", seed=1).to(torch.bfloat16)
    decoder = decoder_of(HuggingFaceModel(module), Greedy(), TopKTree(3))
    generator = torch.Generator().manual_seed(0)
    tasks = [
        Task(
            f"p{i}",
            "random",
            tuple(torch.randint(3, 32, (6,), generator=generator).tolist()),
        )
        for i in range(24)
    ]
    outcomes = []
    measure(
        decoder,
        tasks,
        Measurement(Sampling(), max_new_tokens=40, seed=0, warmup=False),
        outcomes.append,
        lambda what: None,
    )
    assert {outcome.lossless for outcome in outcomes} <= {"identical", "tie"}
    for outcome in outcomes:
        if outcome.lossless == "tie":
            assert outcome.divergence.margin <= 2 * outcome.divergence.noise
