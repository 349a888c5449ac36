r"""Compare ways to draft on a real pair of models: acceptance, nodes, speed-up.

    python benchmarks/drafting.py --target DIR --draft DIR \
        --prompts humaneval.jsonl spec_bench.jsonl

Greedy, one request at a time, in one process. On every prompt the methods take turns,
autoregressive decoding among them, in rotated order; a method's speed-up on a prompt is
the ratio of decode seconds per token, prefill of the target apart (a method's own extra
prefill is charged to it). Drafts are held as stored and, if asked for, quantized.

Prints per method: tokens per target forward, drafted and verified nodes per step, the
shares of drafting and of everything outside of drafting and verifying, and the
speed-up: per category, the geometric mean over categories, and its 95% BCa interval
over prompts. Texts that differ from autoregressive decoding are counted: in bf16 near
ties flip with the number of rows.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from common import CATEGORIES, Task, by_category, machine, read_tasks, rotated, table
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import (
    AbstractDrafter,
    Cascade,
    DraftModel,
    EarlyExit,
    PromptLookup,
    TokenRecycling,
    all_sources,
)
from treespec.models.loading import LoadedModel, load
from treespec.models.source import ModelSource
from treespec.policies import AbstractDraftPolicy, BestFirst, Chain, Planner, TopKTree
from treespec.timings import measure_costs
from treespec.types import Budget, GenerationResult
from treespec.verifiers import TreeAttention

PLAIN = "autoregressive"
WARMUP_TOKENS = 12
LOOKUP = PromptLookup(max_ngram=64, min_ngram=2)


@dataclass(frozen=True, slots=True)
class Method:
    """One way to draft."""

    drafter: AbstractDrafter
    policy: AbstractDraftPolicy
    budget: Budget


@dataclass(frozen=True, slots=True)
class Turn:
    """One method on one prompt."""

    category: str
    result: GenerationResult
    speedup: float
    same: bool


def methods(
    target: LoadedModel, drafts: Mapping[str, LoadedModel], nodes: int, min_gain: float
) -> dict[str, Method]:
    """Return every way to draft by its name."""
    found = {}
    chain, best_first = Chain(), BestFirst(3, beam=3, min_gain=min_gain)
    tree = Budget(max_depth=8, max_width=9, max_nodes=nodes)
    for kind, loaded in drafts.items():
        model = DraftModel(loaded.model)
        for depth in (3, 5, 8):
            budget = Budget(depth, 1, depth)
            found[f"{kind} chain {depth}"] = Method(model, chain, budget)
        layers = Budget(max_depth=4, max_width=3, max_nodes=nodes)
        found[f"{kind} top-k tree"] = Method(model, TopKTree(3), layers)
        found[f"{kind} best-first"] = Method(model, best_first, tree)
        mixture = Cascade((LOOKUP, model), min_confidence=(0.5,))
        found[f"{kind} lookup then model"] = Method(mixture, best_first, tree)
        every = all_sources(loaded.model, context=128)
        found[f"{kind} planner"] = Method(every, Planner(), Budget(16, 8, 32))
    early = EarlyExit(target.model, exit_layer=3)
    found["early exit at 3 layers"] = Method(early, chain, Budget(3, 1, 3))
    found["lookup"] = Method(LOOKUP, best_first, tree)
    recycling = TokenRecycling()
    found["recycling"] = Method(recycling, best_first, tree)
    both = Cascade((LOOKUP, recycling), min_confidence=(0.5,))
    found["lookup then recycling"] = Method(both, best_first, tree)
    return found


def decoder_of(target: LoadedModel, method: Method) -> SpeculativeDecoder:
    """Return the decoder of a method."""
    budget = method.budget
    return SpeculativeDecoder(
        target=target.model,
        drafter=method.drafter,
        policy=method.policy,
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=Constant(budget.max_depth, budget.max_width, budget.max_nodes),
        eos_ids=target.eos_ids,
    )


def planned(decoder: SpeculativeDecoder) -> SpeculativeDecoder:
    """Return a decoder whose policy knows what forwards cost here, if it asks."""
    policy = decoder.policy
    if not policy.wants_costs:
        return decoder
    return replace(decoder, policy=policy.with_costs(measure_costs(decoder)))


def per_token_s(result: GenerationResult) -> float:
    """Return decode seconds per token after the first."""
    return result.decode_s / max(1, len(result.tokens) - 1)


def compare(
    decoders: Mapping[str, SpeculativeDecoder], tasks: Sequence[Task], num_tokens: int
) -> dict[str, list[Turn]]:
    """Let the methods take turns on every prompt."""
    turns: dict[str, list[Turn]] = defaultdict(list)
    names = list(decoders)
    for number, task in enumerate(tasks):
        results = {
            name: decoders[name].generate([task.tokens], max_new_tokens=num_tokens)[0]
            for name in rotated(names, number)
        }
        plain = results[PLAIN]
        for name, result in results.items():
            speedup = per_token_s(plain) / per_token_s(result)
            same = result.tokens == plain.tokens
            turns[name].append(Turn(task.category, result, speedup, same))
        shown = " ".join(f"{name}: {turns[name][-1].speedup:.2f}" for name in names)
        print(f"  {task.category} {task.name}: {shown}", flush=True)
    return turns


def show(turns: Mapping[str, Sequence[Turn]]) -> None:
    """Print the table."""
    categories = list(dict.fromkeys(turn.category for turn in turns[PLAIN]))
    shares = ["tok/fwd", "cand", "nodes", "draft", "rest", "same"]
    header = ["method", "geomean (95% interval)", *shares, *categories]
    rows = [row(name, found, categories) for name, found in turns.items()]
    print("\n" + table(header, rows))


def row(name: str, turns: Sequence[Turn], categories: Sequence[str]) -> list[str]:
    """Return the cells of one method's line."""
    steps = [step for turn in turns for step in turn.result.steps]
    seconds = sum(step.step_s for step in steps)
    draft = sum(step.draft_s for step in steps) / seconds
    verify = sum(step.verify_s for step in steps) / seconds
    speedups = {
        category: [turn.speedup for turn in turns if turn.category == category]
        for category in categories
    }
    return [
        name,
        str(by_category(speedups)),
        f"{statistics.mean(step.num_committed for step in steps):.2f}",
        f"{statistics.mean(step.num_candidates for step in steps):.1f}",
        f"{statistics.mean(step.num_nodes for step in steps):.1f}",
        f"{100 * draft:.0f}%",
        f"{100 * (1 - draft - verify):.1f}%",
        f"{sum(turn.same for turn in turns)}/{len(turns)}",
        *(f"{statistics.geometric_mean(of):.2f}" for of in speedups.values()),
    ]


def chosen(names: Iterable[str], wanted: str | None) -> Callable[[str], bool]:
    """Return whether a method is wanted: all, or those whose names were given."""
    if wanted is None:
        return lambda name: True
    parts = [part.strip() for part in wanted.split(",")]
    unknown = [part for part in parts if part not in set(names)]
    if unknown:
        raise SystemExit(f"unknown method {unknown[0]!r}; there are {', '.join(names)}")
    return lambda name: name in parts


def main() -> None:
    """Compare all ways to draft."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", required=True, nargs="+", help="JSONL files")
    parser.add_argument("--categories", default=",".join(CATEGORIES))
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--nodes", type=int, default=8, help="nodes of a tree")
    parser.add_argument(
        "--min-gain",
        type=float,
        default=0.4,
        help="best-first stops when a draft forward hopes for no more tokens than this",
    )
    parser.add_argument("--methods", help="names, comma separated; default all")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--target-quantization")
    parser.add_argument("--drafts", default="bf16,int8")
    args = parser.parse_args()
    print(f"{machine()}, target {args.dtype} {args.target_quantization or ''}")
    target = load(
        ModelSource(
            path=args.target, dtype=args.dtype, quantization=args.target_quantization
        )
    )
    drafts = {
        kind: load(
            ModelSource(
                path=args.draft,
                dtype=args.dtype,
                quantization="int8" if kind == "int8" else None,
            ),
            exact=False,
        )
        for kind in args.drafts.split(",")
    }
    every = methods(target, drafts, args.nodes, args.min_gain)
    wants = chosen(list(every), args.methods)
    decoders = {
        name: planned(decoder_of(target, method))
        for name, method in every.items()
        if wants(name)
    }
    first = next(iter(decoders.values()))
    decoders = {PLAIN: first.autoregressive(), **decoders}
    tasks = read_tasks(
        args.prompts, args.categories.split(","), args.per_category, target.tokenizer
    )
    for decoder in decoders.values():
        decoder.generate([tasks[0].tokens[:64]], max_new_tokens=WARMUP_TOKENS)
    turns = compare(decoders, tasks, args.max_new_tokens)
    show(turns)


if __name__ == "__main__":
    main()
