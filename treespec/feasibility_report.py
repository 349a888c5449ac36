"""What ``treespec feasibility`` does: reads files, predicts, tells it in a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from treespec.agreement import Agreement, read_both
from treespec.costs import Costs
from treespec.errors import TreespecError
from treespec.excerpts import Excerpt, read_excerpts
from treespec.feasibility import (
    BLOCK,
    DRAFT_MODEL,
    LEAST_TEXTS,
    Feasibility,
    given_costs,
    judge,
)
from treespec.forwards import draft_models
from treespec.job import Job
from treespec.models.tokenizer import HuggingFaceTokenizer
from treespec.neighbours import Neighbours, beside
from treespec.ngram import ORDER, ngram_bits
from treespec.pipes import say
from treespec.preparing import check, costs_of, devices, prepare
from treespec.walk import Written

_OPTIONS: Mapping[str, float] = {
    "draft_ratio": 0.3,
    "row_ratio": 0.05,
    "num_texts": 16.0,
}
_USAGE = (
    "write treespec feasibility FILE..., with draft_ratio=, row_ratio= or costs=FILE, "
    "or with a pair, as in pair=qwen25_coder"
)
_WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+")
"""Words, runs of signs, runs of spaces: about what tokenizers make of a text."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the words after ``treespec feasibility`` ask for.

    Attributes:
        files: The files.
        options: Numbers that were given or stand for themselves.
        costs: File of a cost profile, or nothing.
        overrides: What is left for the configuration: it names a pair.
    """

    files: tuple[str, ...]
    options: Mapping[str, float]
    costs: str
    overrides: tuple[str, ...]


def parse_request(arguments: Sequence[str]) -> Request:
    """Tell files, options and overrides apart.

    Raises:
        TreespecError: There is no file, or two sources of costs.
    """
    options, costs = dict(_OPTIONS), ""
    files, overrides, given = list[str](), list[str](), list[str]()
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in options:
            options[name] = _number(name, value)
            given.append(name)
        elif equals and name == "costs":
            costs = value
        elif equals and not Path(argument).exists():
            overrides.append(argument)
        else:
            files.append(argument)
    if not files:
        raise TreespecError(f"feasibility needs a file: {_USAGE}")
    ratios = [name for name in given if name != "num_texts"]
    if ratios and (costs or overrides):
        other = "costs=FILE" if costs else "a pair, whose costs are measured"
        raise TreespecError(f"{ratios[0]} does not go with {other}; leave one out")
    if overrides and not any(text.lstrip("+").startswith("pair") for text in overrides):
        raise TreespecError(
            f"{overrides[0].partition('=')[0]} is no option of feasibility: "
            f"{', '.join([*options, 'costs'])}; other keys need a pair beside them, "
            "such as pair=qwen25_coder"
        )
    if not (options["num_texts"] >= 1 and options["num_texts"].is_integer()):
        raise TreespecError(
            f"num_texts must be an integer >= 1, got {options['num_texts']:g}"
        )
    return Request(tuple(files), options, costs, tuple(overrides))


def text_report(request: Request) -> str:
    """Return the report on texts alone.

    Raises:
        TreespecError: A file or a number is not usable.
    """
    excerpts = read_excerpts(request.files, int(request.options["num_texts"]))
    if request.costs:
        costs, source = Costs.read(request.costs), f"costs: {request.costs}"
    else:
        ratios = [request.options[name] for name in ("draft_ratio", "row_ratio")]
        costs = given_costs(*ratios)
        source = (
            f"costs: a draft forward is taken to cost {ratios[0]:g} plain ones "
            f"(draft_ratio), each further row of the target {ratios[1]:g} (row_ratio)\n"
            "note: these are assumptions, of which the intervals know nothing; measure "
            "them with treespec profile and costs=FILE, or name a pair"
        )
    texts = [_in_words(excerpt) for excerpt in excerpts]
    unit = "words and signs, as without a model there are no tokens"
    found = judge(texts, costs, sources=[excerpt.source for excerpt in excerpts])
    return _render(excerpts, texts, unit, found, source, None)


def pair_report(request: Request, job: Job) -> str:
    """Return the report on texts with a pair: its tokens, its models, its costs.

    Raises:
        TreespecError: The job cannot work, or a file is not usable.
    """
    excerpts = read_excerpts(request.files, int(request.options["num_texts"]))
    check(job)
    with beside(devices(job)) as neighbours:
        return _pair_report(request, job, excerpts, neighbours)


def _pair_report(
    request: Request, job: Job, excerpts: Sequence[Excerpt], neighbours: Neighbours
) -> str:
    prepared = prepare(job)
    decoder = prepared.decoder
    assert isinstance(decoder.tokenizer, HuggingFaceTokenizer)
    most = decoder.target.max_positions
    texts = [_in_tokens(excerpt, decoder.tokenizer, most) for excerpt in excerpts]
    drafts = draft_models(decoder.drafter)
    agreements = None
    if drafts:
        say("both models read the texts")
        pair = (decoder.target, drafts[0])
        agreements = [read_both(*pair, written, job.sampling) for written in texts]
    if request.costs:
        costs, source = Costs.read(request.costs), f"costs: {request.costs}"
    else:
        kept = costs_of(job, prepared, neighbours)
        costs, source = kept.profile.costs, f"costs: {kept.note}, {kept.path}"
    sources = [excerpt.source for excerpt in excerpts]
    found = judge(texts, costs, agreements, sources=sources)
    return _render(excerpts, texts, "tokens of the target", found, source, agreements)


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise TreespecError(f"{name} must be a number, got {value!r}") from error


def _in_words(excerpt: Excerpt) -> Written:
    """Return a text as numbers, one per word or sign, equal where those are equal."""
    before = _WORD.findall("\n".join(excerpt.turns))
    words = [*before, *_WORD.findall(excerpt.text)]
    numbers: dict[str, int] = {}
    counter = count()
    tokens = [
        numbers[word] if word in numbers else numbers.setdefault(word, next(counter))
        for word in words
    ]
    return Written(tuple(tokens), len(before))


def _in_tokens(excerpt: Excerpt, tokenizer: HuggingFaceTokenizer, most: int) -> Written:
    """Return a text as the target reads it, its messages in the chat template."""
    if excerpt.turns and tokenizer.has_chat_template:
        roles = ("user", "assistant")
        turns = [
            {"role": roles[place % 2], "content": turn}
            for place, turn in enumerate(excerpt.turns)
        ]
        before = tokenizer.chat(turns)
    else:
        before = tokenizer.encode("\n".join(excerpt.turns))
    after = tokenizer.encode(excerpt.text)
    if tokenizer.bos_id is not None and after[:1] == [tokenizer.bos_id]:
        after = after[1:]
    if not before:  # a model needs something to read first
        before, after = after[:1], after[1:]
    tokens = (*before, *after)[:most]
    if len(before) >= len(tokens):
        raise TreespecError(
            f"{excerpt.name}: its messages have {len(before)} tokens, but the target "
            f"reads at most {most} with an answer; leave it out"
        )
    return Written(tokens, len(before))


def _render(
    excerpts: Sequence[Excerpt],
    texts: Sequence[Written],
    unit: str,
    found: Feasibility,
    source: str,
    agreements: Sequence[Agreement] | None,
) -> str:
    num_tokens = sum(written.num_decoded for written in texts)
    lines = [
        f"{_counted(excerpts)}, {num_tokens:,} steps of plain decoding ({unit})",
        f"compressibility: {_bits_per_byte(excerpts):.2f} bits per byte by an n-gram "
        f"model of order {ORDER} that learns as it reads (noise has 8)",
    ]
    num_sources = len({excerpt.source for excerpt in excerpts})
    if num_sources < LEAST_TEXTS:
        lines.append(
            f"note: blocks of {BLOCK} tokens are resampled for the intervals, as there "
            f"are fewer than {LEAST_TEXTS} texts: they say nothing of other texts"
        )
    if not any(excerpt.turns for excerpt in excerpts):
        lines.append(
            "note: no prompts with answers: lookup finds only what each text has "
            "said itself"
        )
    if agreements is not None:
        lines.append(_reading(agreements))
    lines += ["", "draft, tokens     accepted/step  speed-up  95% interval"]
    for prediction in found.predictions:
        interval = prediction.interval
        told = "-" if interval is None else f"{interval.low:.2f} to {interval.high:.2f}"
        lines.append(
            f"{prediction.name:<16}  {prediction.accepted_per_step:13.2f}  "
            f"{prediction.speedup:7.2f}x  {told}"
        )
    if agreements is None:
        lines += ["", _break_even(found)]
    return "\n".join([*lines, source, "", found.verdict])


def _counted(excerpts: Sequence[Excerpt]) -> str:
    """Return how many texts there are, and in how many pieces."""
    num_texts = len({excerpt.source for excerpt in excerpts})
    texts = f"{num_texts} text{'s' * (num_texts != 1)}"
    if num_texts == len(excerpts):
        return texts
    return f"{texts} ({len(excerpts)} pieces or turns)"


def _break_even(found: Feasibility) -> str:
    points = [
        f"{'never' if rate is None else f'{rate:.0%}'} ({depth})"
        for depth, rate in found.break_even.items()
    ]
    return (
        f"a {DRAFT_MODEL} pays from this acceptance on (tokens of its chain): "
        f"{', '.join(points)}"
    )


def _reading(agreements: Sequence[Agreement]) -> str:
    def mean(name: str) -> float:
        return float(np.mean([v for read in agreements for v in getattr(read, name)]))

    return (
        f"draft model: its token would be accepted at {mean('acceptance'):.0%} of the "
        f"places; entropy {mean('draft_entropy'):.2f} bits, the target's "
        f"{mean('target_entropy'):.2f}; {mean('is_target_choice'):.0%} of the tokens "
        "are the target's first choice"
    )


def _bits_per_byte(excerpts: Sequence[Excerpt]) -> float:
    """Return bits per byte of what is written, messages before it learned from."""
    bits, num_bytes = 0.0, 0
    for excerpt in excerpts:
        before = "\n".join(excerpt.turns).encode()
        text = excerpt.text.encode()
        bits += ngram_bits(before + text, 256, len(before)) * len(text)
        num_bytes += len(text)
    return bits / num_bytes
