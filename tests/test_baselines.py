"""transformers' own ways to decode, as what a strategy is compared with."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from tests.models.folder import save_folder
from tests.tiny import EOS_ID, TOKENS, perturbed, tiny_model
from treespec.acceptance import Greedy, SampleAndMatch
from treespec.baselines import (
    Autoregressive,
    HfAssisted,
    HfGenerate,
    HfPromptLookup,
)
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import PromptLookup
from treespec.errors import TreespecError
from treespec.measure import Measurement, Task, measure
from treespec.models.huggingface import HuggingFaceModel
from treespec.policies import Chain
from treespec.sampling import Sampling
from treespec.verifiers import TreeAttention

STOCK = [
    HfGenerate(),
    HfGenerate(use_cache=False),
    HfAssisted(3),
    HfAssisted(3, "heuristic", 0.4),
    HfPromptLookup(4),
]
OVERRIDES = ["hf_generate", "hf_no_cache", "hf_assisted", "hf_prompt_lookup"]
GREEDY = Sampling()
PROMPT = [3, 4, 5, 6, 3, 4, 5, 6, 3, 4]


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text):
        return [ord(letter) - 97 for letter in text]

    def decode(self, tokens):
        return "".join(chr(97 + token) for token in tokens)


def decoder_of(module, **changes):
    decoder = SpeculativeDecoder(
        target=HuggingFaceModel(module),
        drafter=PromptLookup(),
        policy=Chain(),
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=Constant(max_depth=4, max_nodes=4),
        eos_ids=frozenset({EOS_ID}),
        max_concurrent=1,
    )
    return replace(decoder, **changes)


@pytest.fixture(scope="module")
def stock():
    target = tiny_model("qwen2", seed=1)
    return {"pair.target": target, "pair.draft": perturbed(target, 0.1, seed=2)}


@pytest.fixture(scope="module")
def decoder(stock):
    return decoder_of(tiny_model("qwen2", seed=1))


def names(baseline):
    return f"{baseline}".replace("schedule=", "")


@pytest.mark.parametrize("baseline", STOCK, ids=names)
def test_in_float32_a_stock_baseline_writes_the_decoders_texts(
    baseline, decoder, stock
):
    ready = baseline.ready(decoder, Sampling(), stock)
    prompts = [PROMPT, [7, 8, 9], [3]]
    for penalty in (1.0, 1.4):
        sampling = Sampling(repetition_penalty=penalty)
        ours = decoder.generate(prompts, sampling, 20)
        theirs = ready.decodes.generate(prompts, sampling, 20)
        assert [r.tokens for r in theirs] == [r.tokens for r in ours]
        assert [r.finish_reason for r in theirs] == [r.finish_reason for r in ours]


@pytest.mark.parametrize("baseline", STOCK, ids=names)
def test_texts_end_where_the_decoders_end(baseline, decoder, stock):
    """An end token in an accepted chain, and a stop string across two tokens."""
    letters = replace(decoder, tokenizer=Letters(), eos_ids=frozenset())
    text = letters.generate([PROMPT], max_new_tokens=20)[0]
    stop = text.text[5:7]
    ended = replace(letters, eos_ids=frozenset({text.tokens[8]}))
    for one, stops in ((letters, [stop]), (ended, []), (letters, [])):
        ready = baseline.ready(one, Sampling(), stock)
        (ours,) = one.generate([PROMPT], max_new_tokens=20, stop=stops)
        (theirs,) = ready.decodes.generate([PROMPT], Sampling(), 20, 0, stops)
        assert theirs.text == ours.text
        assert theirs.tokens == ours.tokens
        assert theirs.finish_reason == ours.finish_reason


def test_a_text_ends_with_the_models_context(stock):
    module = tiny_model("qwen2", seed=1, max_positions=16)
    decoder = decoder_of(module, eos_ids=frozenset())
    own = {"pair.target": tiny_model("qwen2", seed=1, max_positions=16)}
    ready = HfGenerate().ready(decoder, Sampling(), own)
    (result,) = ready.decodes.generate([PROMPT], Sampling(), 50)
    assert len(result.tokens) == 6
    assert result.finish_reason == "length"


def test_what_a_checkpoint_recommends_does_not_leak_into_the_baseline(
    tiny_files, tmp_path, command, read_runs
):
    """A baseline that took repetition_penalty from the model's generation config once
    wrote other texts than the speculative side, and its speed-up was of settings."""
    folder = tmp_path / "recommending"
    shutil.copytree(tiny_files.target, folder)
    recommended = {
        "repetition_penalty": 1.7, "temperature": 0.7, "top_k": 5, "do_sample": True,
        "eos_token_id": [2, 3], "num_assistant_tokens": 1, "max_length": 20,
        "no_repeat_ngram_size": 2,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    given = (f"pair.target.path={folder}", f"pair.draft.path={folder}")
    ended = command("baseline=hf_assisted", *given)
    assert (ended.code, ended.errors) == (0, [])
    (run,) = read_runs()
    assert run.summary["lossless"]["identical"] == 3
    for outcome in run.outcomes:
        assert outcome.baseline.tokens == outcome.speculative.tokens
        assert 3 not in outcome.baseline.tokens[:-1]


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_run_names_its_baseline_and_holds_it_to_the_same_texts(
    command, read_runs, tiny_files, name
):
    ended = command(f"baseline={name}", f"pair.draft.path={tiny_files.draft}")
    assert (ended.code, ended.errors) == (0, [])
    (run,) = read_runs()
    title = run.summary["baseline"]
    assert title == run.environment["baseline"]
    assert title.startswith("hf_")
    assert f"by {title}, on the same prompts" in ended.out
    assert run.summary["lossless"]["identical"] == 3
    assert f"token for token those of {title}" in " ".join(ended.out.split())
    assert all(outcome.baseline.decode_s > 0 for outcome in run.outcomes)


def test_the_default_baseline_is_the_decoder_without_speculation(command, read_runs):
    ended = command()
    assert "without speculation, on the same prompts" in ended.out
    (run,) = read_runs()
    assert run.summary["baseline"] == "autoregressive"
    assert all(outcome.baseline.steps for outcome in run.outcomes)


def test_drafting_before_the_first_token_is_charged_to_decoding(
    decoder, stock, monkeypatch
):
    """Assisted generation drafts before it reads the prompt: as time to the first
    token, that would be a gift to it."""
    clock = {"now": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: clock["now"])

    def spend(seconds):
        def hook(*_):
            clock["now"] += seconds

        return hook

    hooks = [
        stock["pair.target"].model.register_forward_hook(spend(1.0)),
        stock["pair.draft"].model.register_forward_hook(spend(0.1)),
    ]
    ready = HfAssisted(3).ready(decoder, Sampling(), stock)
    (result,) = ready.decodes.generate([PROMPT], Sampling(), 20)
    for hook in hooks:
        hook.remove()
    assert result.prefill_s == pytest.approx(1.0)
    assert result.prefill_s + result.decode_s == pytest.approx(clock["now"])
    assert result.token_times_s[0] == pytest.approx(1.3)


def test_without_a_cache_every_token_reads_the_whole_text(decoder, stock):
    lengths = []

    def count(module, args, kwargs):
        lengths.append(kwargs["input_ids"].shape[1])

    hook = stock["pair.target"].model.register_forward_pre_hook(count, with_kwargs=True)
    HfGenerate(use_cache=False).ready(decoder, Sampling(), stock).decodes.generate(
        [PROMPT], Sampling(), 4
    )
    hook.remove()
    assert lengths == [10, 11, 12, 13]


def test_draws_repeat_with_their_seed_and_leave_the_global_source_alone(decoder, stock):
    ready = HfGenerate().ready(decoder, Sampling(), stock)
    before = torch.random.get_rng_state()
    texts = [
        ready.decodes.generate([PROMPT], Sampling(1.0), 20, [seed])[0].tokens
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(before, torch.random.get_rng_state())


def test_sampled_texts_of_another_implementation_are_not_compared(decoder, stock):
    sampled = replace(decoder, acceptance=SampleAndMatch())
    sampling = Sampling(1.0)
    found = outcomes_of(sampled, HfGenerate().ready(sampled, sampling, stock), sampling)
    assert {outcome.lossless for outcome in found} == {"unchecked"}


def outcomes_of(decoder, ready, sampling=GREEDY, count=12):
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, 32, (count, 6), generator=generator).tolist()
    tasks = [Task(f"p{i}", "random", tuple(p)) for i, p in enumerate(prompts)]
    outcomes = []
    measure(
        decoder,
        tasks,
        Measurement(sampling, max_new_tokens=30, seed=0, warmup=False),
        outcomes.append,
        lambda what: None,
        ready,
    )
    return outcomes


def halves(seed=1):
    return tiny_model("qwen2", seed=seed, num_layers=2).to(torch.bfloat16)


class Off:
    """A baseline whose texts are another model's, as no noise would make them."""

    def __init__(self, decoder):
        self.decoder = decoder

    def generate(self, *arguments):
        return self.decoder.generate(*arguments)


def test_in_bfloat16_other_kernels_may_part_and_the_text_is_judged_by_itself():
    """Texts of another implementation part in bfloat16 by more than the noise of our
    own kernels; that is told, and is no failure of speculation."""
    decoder = decoder_of(halves())
    ready = HfGenerate().ready(decoder, Sampling(), {"pair.target": halves()})
    assert not ready.rounds_alike
    far = replace(ready, decodes=Off(decoder_of(halves(seed=5))))
    outcomes = outcomes_of(decoder, far)
    assert {outcome.lossless for outcome in outcomes} <= {"tie", "identical"}
    parted = [o for o in outcomes if o.lossless == "tie"]
    assert max(o.divergence.margin for o in parted) > 1.0
    strict = replace(far, rounds_alike=True)
    assert "violation" in {o.lossless for o in outcomes_of(decoder, strict)}


def test_a_wrong_text_is_a_violation_whatever_the_baseline_rounds():
    right, wrong = decoder_of(halves()), decoder_of(halves(seed=5))
    ready = HfGenerate().ready(right, Sampling(), {"pair.target": halves()})
    broken = replace(right, verifier=Lying(wrong.target))
    outcomes = outcomes_of(broken, ready)
    assert "violation" in {outcome.lossless for outcome in outcomes}


class Lying(TreeAttention):
    """A verifier whose logits are shifted by one token."""

    def __init__(self, other):
        pass

    def verify(self, target, candidates, hidden_layers=()):
        outputs = TreeAttention().verify(target, candidates, hidden_layers)
        return [replace(o, logits=o.logits.roll(1, dims=-1)) for o in outputs]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["baseline=hf_generate", "max_concurrent=2"], "decodes one prompt at a time"),
        (["baseline=hf_assisted"], "baseline=hf_assisted needs pair.draft"),
        (["baseline=hf_assisted", "baseline.schedule=x"], "baseline.schedule must be"),
        (["baseline=hf_assisted", "baseline.min_confidence=2"], "from 0 to 1, got 2"),
        (["baseline=hf_assisted", "baseline.num_assistant_tokens=0"], ">= 1, got 0"),
        (["baseline=hf_prompt_lookup", "baseline.num_tokens=0"], ">= 1, got 0"),
        (["baseline=hf_generate", "baseline.use_cache=2"], "must be true or false"),
        (["baseline=hf"], "Available: autoregressive, hf_assisted"),
        (
            [
                "baseline=hf_generate",
                "+sampling.processors=[{_target_:treespec.sampling.Sampling}]",
            ],
            "sampling.processors",
        ),
    ],
)
def test_what_a_baseline_cannot_do_is_told_in_one_line(command, overrides, told):
    ended = command(*overrides)
    assert ended.code == 2
    assert len(ended.errors) == 1
    assert told in ended.errors[0]


def test_an_assistant_with_another_vocabulary_is_refused(command, tmp_path, tiny_files):
    other = save_folder(
        tmp_path / "other",
        tiny_model("llama", seed=1),
        tokens=(*TOKENS[:4], *reversed(TOKENS[4:])),
    )
    ended = command("baseline=hf_assisted", f"pair.draft.path={other}")
    assert ended.code == 2
    assert "vocabulary" in ended.errors[0]


def test_the_plain_baseline_needs_no_models(decoder):
    ready = Autoregressive().ready(decoder, Sampling(), {})
    assert ready.name == "autoregressive"
    assert ready.decodes.generate([PROMPT], Sampling(), 5)
    Autoregressive().check(Sampling(), 8)


def test_stock_baselines_refuse_several_prompts_at_once():
    with pytest.raises(TreespecError, match="max_concurrent=1"):
        HfGenerate().check(Sampling(), 2)
