r"""Time treespec against transformers, side by side in one process.

    python benchmarks/against_transformers.py --target DIR --draft DIR \
        --prompts humaneval.jsonl

Prints, for greedy decoding at batch 1 with raw completions:

1. autoregressive decoding against ``generate``, short and at ``--long-context`` tokens;
2. a chain of 5 drafts against assisted generation with 5 drafts (constant schedule,
   confidence threshold 0);
3. the time outside of the two models' forwards, and a profile of one step;
4. peak memory against weights plus caches.

Every comparison is paired: the methods take turns on the same prompt, in rotated order,
and the ratio is taken turn by turn. Forwards are timed by hooks on the modules, the
same for both sides; forwards of more than 16 rows are prefill and left out of the
decode time of both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
)

from common import Forwards, machine, rotated
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import Run, SpeculativeDecoder
from treespec.drafters import DraftModel, PromptLookup
from treespec.models.huggingface import HuggingFaceModel
from treespec.policies import Chain
from treespec.sampling import Sampling
from treespec.verifiers import TreeAttention

PREFILL_ROWS = 16
NUM_DRAFTS = 5


@dataclass(frozen=True)
class Turn:
    """One method on one prompt."""

    tokens: tuple[int, ...]
    decode_s: float
    outside_s: float
    num_forwards: int


class Bench:
    """The pair of models, and the methods that take turns on it."""

    def __init__(self, args: argparse.Namespace) -> None:
        dtype = getattr(torch, args.dtype)
        self.rss_before = rss("VmRSS")
        self.tokenizer = AutoTokenizer.from_pretrained(args.target)
        self.target = load(args.target, dtype)
        self.draft = load(args.draft, dtype)
        self.forwards = (Forwards(), Forwards())
        for watcher, module in zip(
            self.forwards, (self.target, self.draft), strict=True
        ):
            watcher.watch(module)
        target, draft = HuggingFaceModel(self.target), HuggingFaceModel(self.draft)
        chain = SpeculativeDecoder(
            target,
            DraftModel(draft),
            Chain(),
            Greedy(),
            TreeAttention(),
            Constant(max_depth=NUM_DRAFTS, max_nodes=NUM_DRAFTS),
        )
        plain = SpeculativeDecoder(
            target,
            PromptLookup(),
            Chain(),
            Greedy(),
            TreeAttention(),
            Constant(max_depth=0),
        )
        self.chain, self.plain = chain, plain
        self.profile: list[object] = []

    def treespec(self, decoder: SpeculativeDecoder) -> Callable[..., Turn]:
        """Return the method that decodes with one of our decoders."""

        def run(prompt: list[int], num_tokens: int) -> Turn:
            def generate() -> tuple[int, ...]:
                result = decoder.generate([prompt], max_new_tokens=num_tokens)[0]
                self.profile = list(result.steps)
                return result.tokens

            return self._timed(generate)

        return run

    def transformers(self, assisted: bool) -> Callable[..., Turn]:
        """Return the method that decodes with stock ``generate``."""
        extra = {"assistant_model": self.draft} if assisted else {}

        def run(prompt: list[int], num_tokens: int) -> Turn:
            for module in (self.target, self.draft):
                module.set_attn_implementation("sdpa")
            settings = self.draft.generation_config
            settings.num_assistant_tokens = NUM_DRAFTS
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0
            return self._timed(lambda: self._generate(prompt, num_tokens, extra))

        return run

    def fill(self, num_tokens: int) -> None:
        """Draw keys and values of a long context: time does not depend on them."""
        config = self.target.config
        head = config.hidden_size // config.num_attention_heads
        shape = (2, config.num_hidden_layers, config.num_key_value_heads)
        self.context = torch.randn(*shape, num_tokens, head).to(self.target.dtype)

    def treespec_after_context(self, prompt: list[int], num_tokens: int) -> Turn:
        """Decode after the drawn context, all of the prompt but its last token."""
        run = Run(self.plain, [prompt], Sampling(), num_tokens, 0, ())
        run.scheduler.admit(run._enter)
        sequence, cache = run.requests[0].sequence, run.target.cache
        slots = sequence.region.take(len(prompt) - 1)
        cache.place(slots, range(len(slots)))
        sequence.line.extend(slots)
        for layer, (keys, values) in enumerate(zip(*self.context, strict=True)):
            cache.write(layer, torch.tensor(slots), keys, values)

        def generate() -> tuple[int, ...]:
            for _ in run.steps():
                pass
            return run.requests[0].result().tokens

        return self._timed(generate)

    def transformers_after_context(self, prompt: list[int], num_tokens: int) -> Turn:
        """Decode after the same context with stock ``generate``."""
        self.target.set_attn_implementation("sdpa")
        cache = DynamicCache(config=self.target.config)
        for layer, (keys, values) in enumerate(zip(*self.context, strict=True)):
            cache.update(keys[None].clone(), values[None].clone(), layer)
        extra = {self.plain.target._cache_argument: cache}
        return self._timed(lambda: self._generate(prompt, num_tokens, extra))

    def _generate(
        self, prompt: list[int], num_tokens: int, extra: dict[str, object]
    ) -> tuple[int, ...]:
        """Decode greedily with stock ``generate``, and never end early."""
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=num_tokens,
            eos_token_id=self.target.config.vocab_size - 1,
            pad_token_id=0,
        )
        ids = torch.tensor([prompt])
        output = self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            **extra,
        )
        return tuple(output[0, len(prompt) :].tolist())

    def _timed(self, generate: Callable[[], tuple[int, ...]]) -> Turn:
        for watcher in self.forwards:
            watcher.clear()
        start = time.perf_counter()
        tokens = generate()
        total = time.perf_counter() - start
        inside = sum(watcher.seconds for watcher in self.forwards)
        prefill = sum(
            forward.seconds
            for watcher in self.forwards
            for forward in watcher.seen
            if forward.num_rows > PREFILL_ROWS
        )
        return Turn(
            tokens,
            decode_s=total - prefill,
            outside_s=total - inside,
            num_forwards=len(self.forwards[0].seen),
        )


def load(folder: str, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """Return a model in evaluation mode."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return model.requires_grad_(False)


def rss(name: str) -> int:
    """Return a memory figure of this process in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def compare(
    title: str,
    methods: dict[str, Callable[..., Turn]],
    prompts: Sequence[list[int]],
    num_tokens: int,
    repeats: int,
) -> dict[str, list[Turn]]:
    """Let the methods take turns; print ratios of the first to the others."""
    print(f"\n## {title}", flush=True)
    turns: dict[str, list[Turn]] = {name: [] for name in methods}
    names = list(methods)
    for index, prompt in enumerate(list(prompts) * repeats):
        for name in rotated(names, index):
            turn = methods[name](prompt, num_tokens)
            turns[name].append(turn)
            print(
                f"{name:24s} prompt {index % len(prompts)} "
                f"{1000 * turn.decode_s / num_tokens:8.1f} ms/token "
                f"outside forwards {100 * turn.outside_s / turn.decode_s:5.2f}% "
                f"target forwards {turn.num_forwards}",
                flush=True,
            )
    first = names[0]
    for name in names[1:]:
        ratios = [
            b.decode_s / a.decode_s
            for a, b in zip(turns[first], turns[name], strict=True)
        ]
        same = sum(
            a.tokens == b.tokens for a, b in zip(turns[first], turns[name], strict=True)
        )
        print(
            f"{first} is {statistics.median(ratios):.3f}x as fast as {name} "
            f"(median of {len(ratios)}, {min(ratios):.3f} to {max(ratios):.3f}); "
            f"{same} of {len(ratios)} texts equal"
        )
    return turns


def report_memory(bench: Bench, prompt: list[int], num_tokens: int) -> None:
    """Print peak memory of one run against weights plus caches."""
    Path("/proc/self/clear_refs").write_text("5")
    bench.treespec(bench.chain)(prompt, num_tokens)
    weights = sum(
        p.numel() * p.element_size()
        for module in (bench.target, bench.draft)
        for p in module.parameters()
    )
    slots = len(prompt) + num_tokens + NUM_DRAFTS
    caches = slots * sum(slot_bytes(m) for m in (bench.target, bench.draft))
    peak = rss("VmHWM") - bench.rss_before
    print("\n## Memory")
    print(
        f"weights {weights / 1e6:.0f} MB + caches {caches / 1e6:.0f} MB; peak of the "
        "process while decoding, less what it used before loading: "
        f"{peak / 1e6:.0f} MB ({100 * (peak / (weights + caches) - 1):+.1f}%)"
    )


def slot_bytes(module: transformers.PreTrainedModel) -> int:
    """Return the bytes of one key/value slot in all layers."""
    config = module.config
    head = config.hidden_size // config.num_attention_heads
    width = 2 * config.num_key_value_heads * head * module.dtype.itemsize
    return config.num_hidden_layers * width


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", required=True, help="JSONL with turns")
    parser.add_argument("--num-prompts", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--long-context", type=int, default=3500)
    parser.add_argument("--long-tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", default="long,chain,short,memory")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    print(f"{machine()}, {args.dtype}")
    bench = Bench(args)
    lines = Path(args.prompts).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    texts = [row["turns"][0] for row in rows]
    prompts = [bench.tokenizer.encode(t) for t in texts[: args.num_prompts]]
    plain = {
        "treespec autoregressive": bench.treespec(bench.plain),
        "transformers generate": bench.transformers(assisted=False),
    }
    for method in plain.values():
        method(prompts[0][:8], 4)
    parts = args.only.split(",")
    if "short" in parts:
        compare("Autoregressive", plain, prompts, args.max_new_tokens, args.repeats)
    if "long" in parts:
        long = bench.tokenizer.encode("\n".join(texts))[: args.long_context]
        bench.fill(len(long) - 1)
        methods = {
            "treespec autoregressive": bench.treespec_after_context,
            "transformers generate": bench.transformers_after_context,
        }
        title = f"Autoregressive after {len(long)} tokens"
        compare(title, methods, [long], args.long_tokens, 3 * args.repeats)
    if "chain" in parts:
        chains = {
            "treespec chain": bench.treespec(bench.chain),
            "transformers assisted": bench.transformers(assisted=True),
        }
        for method in chains.values():
            method(prompts[0][:8], 8)
        compare("Chain of 5", chains, prompts, args.max_new_tokens, args.repeats)
        bench.treespec(bench.chain)(prompts[0], args.max_new_tokens)
        print_profile(bench.profile)
    if "memory" in parts:
        report_memory(bench, prompts[0], args.max_new_tokens)


def print_profile(steps: Sequence[object]) -> None:
    """Print where the time of a step goes."""
    print("\n## One step of the chain (mean)")
    phases = ("draft_s", "plan_s", "verify_s", "accept_s", "commit_s", "step_s")
    means = {p: statistics.mean(getattr(s, p) for s in steps) for p in phases}
    rest = means["step_s"] - sum(means[p] for p in phases[:-1])
    for phase in phases:
        share = 100 * means[phase] / means["step_s"]
        print(f"{phase:10s} {1000 * means[phase]:9.2f} ms {share:6.2f}%")
    print(f"{'rest':10s} {1000 * rest:9.2f} ms {100 * rest / means['step_s']:6.2f}%")


if __name__ == "__main__":
    main()
