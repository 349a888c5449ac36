"""What ``planner.py`` measures, as JSON lines, and the tables that are made of it."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from common import Ratio, by_category, table

BASE = "hf_generate"
PLAIN = "autoregressive"
OURS = r"(sampled_)?planner.*"
FIXED = r"(chain|tree|lookup|recycling).*|autoregressive"
EXTERNAL = r"(hf|economize|flashspec)_.*"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a text leaves another one.

    Attributes:
        index: Position of the first other token.
        margin: How far the target's logit of the other text's token was above that of
            this text's; ``None`` where one of them had ended.
    """

    index: int
    margin: float | None


@dataclass(frozen=True, slots=True)
class Turn:
    """One method on one prompt.

    Attributes:
        run: Which process, by its start.
        setting: Models, lengths and sampling: only equal ones compare.
        method: The method.
        prompt: Name of the prompt.
        category: Its category.
        num_prompt_tokens: Its length.
        tokens: The new tokens.
        total_s: Seconds of the whole call.
        prefill_s: Seconds of the target's forwards that read the prompt.
        forward_s: Seconds of all forwards of both models.
        num_target_forwards: The target's forwards.
        num_draft_forwards: The draft's.
        foreign: Share of the processors' time that other processes used meanwhile.
        reasons: How many steps were drafted why, if the method says.
        differences: By method, where its text was left; ``None`` where it was not.
    """

    run: str
    setting: str
    method: str
    prompt: str
    category: str
    num_prompt_tokens: int
    tokens: tuple[int, ...]
    total_s: float
    prefill_s: float
    forward_s: float
    num_target_forwards: int
    num_draft_forwards: int
    foreign: float
    reasons: Mapping[str, int] = field(default_factory=dict)
    differences: Mapping[str, Difference | None] = field(default_factory=dict)

    @property
    def may_prefill_more(self) -> bool:
        """Whether its prefill may be slower than a plain one, by its own doing."""
        return self.method.startswith(("economize", "flashspec"))


def write(turns: Iterable[Turn], file: Path) -> None:
    """Append turns to a file of JSON lines."""
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(asdict(turn)) + "\n" for turn in turns)


def read(files: Iterable[str]) -> list[Turn]:
    """Read the turns of several files."""
    turns = []
    for file in files:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            row["tokens"] = tuple(row["tokens"])
            row["differences"] = {
                name: None if found is None else Difference(**found)
                for name, found in row["differences"].items()
            }
            turns.append(Turn(**row))
    return turns


@dataclass(frozen=True)
class Results:
    """All turns of one setting.

    Speed-ups are those over the base on the same prompt in the same process; a method
    that was measured on a prompt more than once has the geometric mean.

    Attributes:
        turns: The turns; every prompt was given to the base as well.
    """

    turns: Sequence[Turn]

    @cached_property
    def _of_prompt(self) -> Mapping[tuple[str, str], Mapping[str, Turn]]:
        found: dict[tuple[str, str], dict[str, Turn]] = defaultdict(dict)
        for turn in self.turns:
            found[turn.run, turn.prompt][turn.method] = turn
        return found

    @cached_property
    def base(self) -> str:
        """The method that all are compared with."""
        return BASE if BASE in self.methods else PLAIN

    def decode_s(self, turn: Turn) -> float:
        """Return the seconds of a call beyond a plain prefill.

        That is its own, except for peers that may prefill more than plainly: theirs is
        the median of the others that ran the same modules on the same prompt.
        """
        if not turn.may_prefill_more:
            return turn.total_s - turn.prefill_s
        others = self._of_prompt[turn.run, turn.prompt].values()
        plain = [o.prefill_s for o in others if o.method.startswith("hf_")]
        return turn.total_s - statistics.median(plain)

    def seconds_per_token(self, turn: Turn) -> float:
        """Return decode seconds per token after the first."""
        return self.decode_s(turn) / max(1, len(turn.tokens) - 1)

    def of_method(self, method: str) -> list[Turn]:
        """Return a method's turns."""
        return [turn for turn in self.turns if turn.method == method]

    @cached_property
    def methods(self) -> list[str]:
        """Names of the methods, in the order of the turns."""
        return list(dict.fromkeys(turn.method for turn in self.turns))

    @cached_property
    def categories(self) -> list[str]:
        """Names of the categories, in the order of the turns."""
        return list(dict.fromkeys(turn.category for turn in self.turns))

    @cached_property
    def speedups(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """By method, category and prompt."""
        found: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        for turn in self.turns:
            base = self._of_prompt[turn.run, turn.prompt].get(self.base)
            if base is not None:
                ratio = self.seconds_per_token(base) / self.seconds_per_token(turn)
                found[turn.method][turn.category][turn.prompt].append(ratio)
        return {
            method: {
                category: {
                    prompt: statistics.geometric_mean(ratios)
                    for prompt, ratios in prompts.items()
                }
                for category, prompts in categories.items()
            }
            for method, categories in found.items()
        }

    def ratio(self, method: str, other: str, categories: Sequence[str]) -> Ratio | None:
        """Return how many times as fast a method is, over the prompts both had."""
        mine, theirs = self.speedups.get(method, {}), self.speedups.get(other, {})
        ratios = {
            category: [
                speedup / theirs[category][prompt]
                for prompt, speedup in mine[category].items()
                if prompt in theirs[category]
            ]
            for category in categories
            if category in mine and category in theirs
        }
        ratios = {category: found for category, found in ratios.items() if found}
        return by_category(ratios) if ratios else None

    def best(self, pattern: str, category: str) -> str | None:
        """Return the fastest method of a category whose name fits."""
        means = {
            method: statistics.geometric_mean(found[category].values())
            for method, found in self.speedups.items()
            if re.fullmatch(pattern, method)
            if category in found
        }
        return max(means, key=means.__getitem__) if means else None


def show(turns: Sequence[Turn]) -> None:
    """Print all tables, setting by setting."""
    for setting in dict.fromkeys(turn.setting for turn in turns):
        results = Results([turn for turn in turns if turn.setting == setting])
        print(f"\n# {setting}")
        print(f"\n## Speed-up over {results.base}\n\n{speedup_table(results)}")
        print(f"\n## Where the time goes, and texts\n\n{detail_table(results)}")
        for ours in results.speedups:
            if re.fullmatch(OURS, ours):
                print(f"\n## {ours} against others\n\n{rival_table(results, ours)}")
                print(f"\nreasons: {reasons(results.of_method(ours))}")
        print(f"\n{disturbance(results)}", flush=True)


def speedup_table(results: Results) -> str:
    """Return the speed-ups by category."""
    rows = []
    for method, found in results.speedups.items():
        means = [
            f"{statistics.geometric_mean(found[category].values()):.2f}"
            if category in found
            else "-"
            for category in results.categories
        ]
        ratios = {
            category: list(prompts.values()) for category, prompts in found.items()
        }
        num_prompts = sum(map(len, ratios.values()))
        rows.append([method, str(by_category(ratios)), str(num_prompts), *means])
    header = ["method", "geomean (95% interval)", "prompts", *results.categories]
    return table(header, rows)


def detail_table(results: Results) -> str:
    """Return tokens per forward, time outside of forwards, and equal texts."""
    rows = []
    for method in results.methods:
        turns = results.of_method(method)
        decode_s = sum(map(results.decode_s, turns))
        outside_s = sum(turn.total_s - turn.forward_s for turn in turns)
        num_tokens = sum(len(turn.tokens) for turn in turns)
        num_forwards = sum(turn.num_target_forwards for turn in turns)
        num_drafts = sum(turn.num_draft_forwards for turn in turns)
        seen = num_forwards > 0  # economize calls the layers, not the module
        rows.append(
            [
                method,
                f"{1000 * decode_s / max(1, num_tokens - len(turns)):.1f}",
                f"{num_tokens / num_forwards:.2f}" if seen else "-",
                f"{num_drafts / num_forwards:.2f}" if seen else "-",
                f"{100 * outside_s / decode_s:.1f}%" if seen else "-",
                equal_texts(turns, BASE),
                equal_texts(turns, PLAIN),
            ]
        )
    header = [
        "method",
        "ms/token",
        "tokens/forward",
        "drafts/forward",
        "outside",
        f"as {BASE} (margin)",
        f"as {PLAIN} (margin)",
    ]
    return table(header, rows)


def equal_texts(turns: Sequence[Turn], other: str) -> str:
    """Return how many texts are those of another method, and the largest margin."""
    compared = [turn for turn in turns if other in turn.differences]
    if not compared:
        return "-"
    parted = [found for t in compared if (found := t.differences[other]) is not None]
    margins = [abs(found.margin) for found in parted if found.margin is not None]
    largest = f" ({max(margins):.3f})" if margins else ""
    return f"{len(compared) - len(parted)}/{len(compared)}{largest}"


def rival_table(results: Results, ours: str) -> str:
    """Return a method's distance to its best rivals, category by category."""
    rows = []
    for category in results.categories:
        cells = [category]
        for pattern in (EXTERNAL, FIXED):
            rival = results.best(pattern, category)
            cells += _against(results, ours, rival, [category])
        rows.append([*cells, _ratio(results, ours, PLAIN, [category])])
    everywhere = _ratio(results, ours, PLAIN, results.categories)
    rows.append(["all", "", "", "", "", everywhere])
    header = [
        "category",
        "best peer",
        "times as fast",
        "best fixed",
        "times as fast",
        PLAIN,
    ]
    return table(header, rows)


def _against(
    results: Results, ours: str, rival: str | None, categories: Sequence[str]
) -> list[str]:
    if rival is None:
        return ["-", "-"]
    speedup = _ratio(results, rival, results.base, categories)
    return [f"{rival} {speedup}", _ratio(results, ours, rival, categories)]


def _ratio(results: Results, method: str, other: str, categories: Sequence[str]) -> str:
    found = results.ratio(method, other, categories)
    return "-" if found is None else str(found)


def reasons(turns: Sequence[Turn]) -> str:
    """Return why steps were drafted as they were, most frequent first."""
    counts: Counter[str] = Counter()
    for turn in turns:
        counts.update(turn.reasons)
    total = counts.total()
    shares = [f"{name} {100 * n / total:.0f}%" for name, n in counts.most_common(8)]
    return ", ".join(shares) or "none given"


def disturbance(results: Results) -> str:
    """Return how much other processes took of the machine."""
    shares = [turn.foreign for turn in results.turns]
    disturbed = sum(share > 0.05 for share in shares)
    return (
        f"other processes used {100 * statistics.mean(shares):.1f}% of the processors "
        f"on average, {100 * max(shares):.1f}% at most; above 5% in {disturbed} of "
        f"{len(shares)} turns"
    )
