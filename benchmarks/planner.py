r"""Time the planner against fixed strategies and against other people's packages.

    python benchmarks/planner.py --target DIR --draft DIR \
        --prompts humaneval.jsonl spec_bench.jsonl --out turns.jsonl
    python benchmarks/planner.py --show turns.jsonl more.jsonl

Batch 1, in one process: on every prompt the methods take turns, in rotated order. A
speed-up is the ratio of decode seconds per token after the first to those of
``generate`` of transformers: the whole call without the target's plain reading of the
prompt. What else a method does with the prompt, such as its draft's reading, is charged
to it. Peers run on stock modules, treespec on its own; both hold the draft in int8.

Without ``--draft`` the target is alone. ``--random-draft`` gives the draft random
weights: what a useless one costs. With ``--temperature`` above 0 texts differ, so only
time compares. Every prompt's turns are appended to ``--out``; ``--show`` makes tables
of any number of such files, so that ``--categories`` may be measured one by one.

Methods: autoregressive, chain_D, top_k_WxD_N (W children each, D deep, N nodes),
tree_WxD or tree_WxD_N (the likeliest nodes), early_exit_E_chain_D, lookup, recycling,
lookup_then_recycling, lookup_then_model_WxD or lookup_then_model_WxD_N; bf16_ before a
name: with the draft as it is stored; planner, planner_context_N (the draft reads the
last N tokens), planner_no_model, sampled_planner; and hf_generate, hf_assisted_D,
hf_assisted_dynamic, hf_prompt_lookup_D, hf_prompt_lookup_D_ngram_N, economize_lookup_D,
economize_lookup_D_latest, economize_draft_D, economize_draft_D_conf,
economize_hybrid, economize_hybrid_conf, flashspec_composite, flashspec_draft_D.
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from common import CATEGORIES, Forwards, Load, Task, machine, read_tasks, rotated
from ours import Ours, is_ours, load_ours, ours
from peers import Stock, is_peer, load_stock, peer
from treespec.forwards import draft_models
from treespec.models.loading import ModelInfo, inspect, locate
from treespec.models.source import ModelSource
from turns import BASE, PLAIN, Difference, Turn, read, show, write

PAIR = (
    "hf_generate,hf_assisted_3,hf_assisted_5,hf_assisted_8,hf_assisted_dynamic,"
    "hf_prompt_lookup_8,hf_prompt_lookup_8_ngram_3,economize_draft_5_conf,"
    "economize_hybrid,economize_hybrid_conf,flashspec_composite,autoregressive,"
    "chain_1,chain_2,chain_3,chain_5,tree_2x3,tree_3x8,lookup,recycling,"
    "lookup_then_recycling,lookup_then_model_3x8,planner,planner_no_model"
)
ALONE = (
    "hf_generate,hf_prompt_lookup_8,hf_prompt_lookup_8_ngram_3,economize_lookup_8,"
    "autoregressive,lookup,recycling,lookup_then_recycling,planner"
)
SAMPLED = "hf_generate,autoregressive,planner,sampled_planner"
USELESS = "autoregressive,planner"
WARMUP_TOKENS = 8
ROTATION = 7  # places by which the order moves on from prompt to prompt


@dataclass(frozen=True, slots=True)
class Output:
    """What a call gave: its tokens, and why steps were drafted as they were."""

    tokens: tuple[int, ...]
    reasons: Mapping[str, int] = field(default_factory=dict)


Method = Callable[[Sequence[int], int], Output]


@dataclass(slots=True)
class Bench:
    """The models in memory, watched, and the methods that run on them.

    Attributes:
        args: The command line.
        info: What is known of the target.
        stock: Modules for the peers, if one was asked for.
        mine: Models for treespec, if one of its methods was asked for.
        targets: Forwards of all targets.
        drafts: Forwards of all drafts.
        methods: By name.
    """

    args: argparse.Namespace
    info: ModelInfo
    stock: Stock | None
    mine: Ours | None
    targets: Forwards = field(default_factory=Forwards)
    drafts: Forwards = field(default_factory=Forwards)
    methods: dict[str, Method] = field(default_factory=dict)

    def prepare(self, names: Sequence[str], warmup: Sequence[int]) -> None:
        """Build the methods and run each once; leave out what cannot run."""
        for name in names:
            try:
                method = self._method(name)
                method(warmup, WARMUP_TOKENS)
            except ImportError as error:
                print(f"{name} is left out: {error}", flush=True)
                continue
            self.methods[name] = method

    def _method(self, name: str) -> Method:
        if is_peer(name):
            assert self.stock is not None
            decode, eos_ids = peer(name, self.stock), self.info.eos_ids
            return lambda prompt, n: Output(cut(decode(prompt, n), eos_ids, n))
        assert self.mine is not None
        decoder, sampling = ours(name, self.mine), self.mine.sampling
        for model in draft_models(decoder.drafter):
            self.drafts.watch_model(model)

        def run(prompt: Sequence[int], num_tokens: int) -> Output:
            result = decoder.generate([prompt], sampling, num_tokens)[0]
            reasons = Counter(step.reason for step in result.steps if step.reason)
            return Output(result.tokens, dict(reasons))

        return run

    def turn(self, name: str, task: Task, run: str) -> Turn:
        """Run a method on a prompt."""
        gc.collect()
        self.targets.clear()
        self.drafts.clear()
        torch.manual_seed(0)  # what transformers samples from
        before = Load.now()
        output = self.methods[name](task.tokens, self.args.max_new_tokens)
        after = Load.now()
        return Turn(
            run=run,
            setting=setting(self.args),
            method=name,
            prompt=task.name,
            category=task.category,
            num_prompt_tokens=len(task.tokens),
            tokens=output.tokens,
            total_s=after.wall_s - before.wall_s,
            # Some leave the prompt's last token to the first step.
            prefill_s=self.targets.reading_s(len(task.tokens) - 1),
            forward_s=self.targets.seconds + self.drafts.seconds,
            num_target_forwards=len(self.targets.seen),
            num_draft_forwards=len(self.drafts.seen),
            foreign=after.foreign_since(before),
            reasons=output.reasons,
        )

    def compared(self, turns: Sequence[Turn], task: Task) -> list[Turn]:
        """Say of greedy turns where their texts leave those of the two references."""
        found: dict[str, dict[str, Difference | None]] = {t.method: {} for t in turns}
        for reference in turns:
            if reference.method in (BASE, PLAIN) and self.args.temperature == 0:
                others = [turn for turn in turns if turn is not reference]
                for name, difference in self._differences(reference, others, task):
                    found[name][reference.method] = difference
        return [replace(turn, differences=found[turn.method]) for turn in turns]

    def _differences(
        self, reference: Turn, others: Sequence[Turn], task: Task
    ) -> list[tuple[str, Difference | None]]:
        first = {o.method: first_difference(o.tokens, reference.tokens) for o in others}
        if all(index is None for index in first.values()):
            return [(other.method, None) for other in others]
        logits = self._logits(task.tokens, reference.tokens)
        found = []
        for other in others:
            index, difference = first[other.method], None
            if index is not None:
                margin = None
                if index < min(len(other.tokens), len(reference.tokens)):
                    row, mine = logits[index], other.tokens[index]
                    margin = float(row[reference.tokens[index]] - row[mine])
                difference = Difference(index, margin)
            found.append((other.method, difference))
        return found

    @torch.inference_mode()
    def _logits(self, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Read a text at once; return the logits before each new token."""
        if self.stock is not None:
            module = self.stock.target
        else:
            assert self.mine is not None
            module = self.mine.target.module
            module.set_attn_implementation("sdpa")  # the decoder sets its own again
        ids = torch.tensor([[*prompt, *tokens[:-1]]])
        output = module(input_ids=ids, logits_to_keep=len(tokens), use_cache=False)
        return output.logits[0].float()


def cut(
    tokens: Sequence[int], eos_ids: Sequence[int], num_tokens: int
) -> tuple[int, ...]:
    """Return the tokens up to the one that ends the text."""
    kept = tuple(map(int, tokens[:num_tokens]))
    ends = [index for index, token in enumerate(kept) if token in eos_ids]
    return kept[: ends[0] + 1] if ends else kept


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """Return where two texts part, if they do."""
    shared = min(len(tokens), len(others))
    parted = (i for i in range(shared) if tokens[i] != others[i])
    return next(parted, None if len(tokens) == len(others) else shared)


def setting(args: argparse.Namespace) -> str:
    """Return what must be equal for turns to compare."""
    draft = "alone"
    if args.draft is not None:
        draft = f"and {Path(args.draft).name} int8"
    return (
        f"{Path(args.target).name} {args.dtype} {draft}"
        f"{' with random weights' if args.random_draft else ''}, "
        f"temperature {args.temperature:g}, {args.max_new_tokens} tokens"
    )


def load_bench(args: argparse.Namespace, names: Sequence[str]) -> Bench:
    """Read the models that the methods need."""
    info = inspect(locate(ModelSource(path=args.target), "target"), "target")
    stock = mine = None
    if any(map(is_peer, names)):
        stock = load_stock(
            args.target, args.draft, args.dtype, info.eos_ids, args.temperature
        )
    if not all(map(is_peer, names)):
        mine = load_ours(args.target, args.draft, args.dtype, args.temperature)
    bench = Bench(args, info, stock, mine)
    if stock is not None:
        bench.targets.watch(stock.target)
        if stock.draft is not None:
            bench.drafts.watch(stock.draft)
    if mine is not None:
        bench.targets.watch_model(mine.target)
    return bench


def measure(args: argparse.Namespace) -> list[Turn]:
    """Let the methods take turns on every prompt."""
    names = chosen(args)
    bench = load_bench(args, names)
    tasks = read_tasks(
        args.prompts,
        args.categories.split(","),
        args.per_category,
        bench.info.tokenizer,
        args.max_text_tokens,
    )
    bench.prepare(names, tasks[0].tokens[:64])
    run, turns = time.strftime("%Y-%m-%dT%H:%M:%S"), []
    for number, task in enumerate(tasks):
        order = rotated(list(bench.methods), ROTATION * number)
        of_task = {name: bench.turn(name, task, run) for name in order}
        in_order = [of_task[name] for name in bench.methods]
        found = bench.compared(in_order, task)
        if args.out is not None:
            write(found, args.out)
        turns += found
        shown = " ".join(f"{t.method}: {t.total_s - t.prefill_s:.2f}" for t in found)
        print(f"  {task.category} {task.name}: {shown}", flush=True)
    return turns


def chosen(args: argparse.Namespace) -> list[str]:
    """Return the names of the methods."""
    default = PAIR
    if args.random_draft:
        default = USELESS
    elif args.temperature > 0:
        default = SAMPLED
    elif args.draft is None:
        default = ALONE
    names = (args.methods or default).split(",")
    for name in names:
        if not is_peer(name) and not is_ours(name):
            raise SystemExit(f"unknown method {name!r}; --help names them all")
    return names


def save_random(folder: str, parent: str) -> str:
    """Write a model of the same shape with random weights; return its folder."""
    torch.manual_seed(0)
    copy = str(Path(parent) / Path(folder).name)
    config = AutoConfig.from_pretrained(folder)
    AutoModelForCausalLM.from_config(config).save_pretrained(copy)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(copy)
    return copy


def parse_arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--show", nargs="+", help="files of turns: only make tables")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--random-draft", action="store_true")
    parser.add_argument("--prompts", nargs="+", help="JSONL files")
    parser.add_argument("--categories", default=",".join(CATEGORIES))
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--max-text-tokens", type=int, default=900)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--methods", help="names, comma separated")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, help="JSON lines, appended to")
    args = parser.parse_args()
    if args.show is None and (args.target is None or args.prompts is None):
        parser.error("give --target and --prompts, or --show")
    if args.random_draft and args.draft is None:
        parser.error("--random-draft needs --draft, whose shape it has")
    return args


def main() -> None:
    """Measure, or show what was measured."""
    args = parse_arguments()
    if args.show is not None:
        show(read(args.show))
        return
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)  # peers use older names
    print(machine(), flush=True)
    with TemporaryDirectory() as folder:
        if args.random_draft:
            args.draft = save_random(args.draft, folder)
        show(measure(args))


if __name__ == "__main__":
    main()
