"""Hand-made runs with trees, on disk as a job would leave them."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.outcomes import make_outcome, make_result, make_step
from tests.sinks.runs import make_run, record
from tests.tiny import tiny_tokenizer
from treespec.analysis.layout import depths_of
from treespec.outcome import PromptOutcome
from treespec.sinks.run_folder import RunFolderSink
from treespec.types import GenerationResult, NodeTrace, StepRecord

SPECIAL = ("<unk>", "<s>", "</s>", " ", "a")
NASTY = (
    "</script><img src=x onerror=alert(1)>",
    "<!--",
    "\n",
    "\x1b[31m",
    "\u2028",
    "\u202e",
    "\u0301",
    "漢字",
    "שלום",
    "👩\u200d💻",
    "&lt;",
    "␊",
)
TOKENS = (*SPECIAL, *NASTY)
FIRST_NASTY = len(SPECIAL)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One step: nodes 1, 2, ... with their parents, and what became of them.

    ``next_token`` is ``None`` where the step was cut: after ``path``, before ``cut``.
    """

    parents: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    next_token: int | None = 4
    cut: tuple[int, ...] = ()


SMALL = (
    Drawn((0, 0, 1, 1), (5, 6, 7, 8), (1, 3), 9),
    Drawn((0, 1), (10, 11), (), 12),
    Drawn((), (), (), 4),
    Drawn((0, 1, 2), (13, 14, 15), (1,), None, (2,)),
)
"""A bonus token, a recovered one, a step without drafts, a step that was cut."""


def drawn_step(index: int, drawn: Drawn, **changes: Any) -> StepRecord:
    depths = depths_of([-1, *drawn.parents])
    shape = [count for _, count in sorted(Counter(depths[1:]).items())]
    last = drawn.path[-1] if drawn.path else 0
    kind = "recovered" if last in drawn.parents else "bonus"
    own = drawn.next_token is not None
    return replace(
        make_step(len(drawn.path), shape, index, kind),
        num_committed=len(drawn.path) + own,
        next_kind=kind if own else None,
        **changes,
    )


def drawn_traces(index: int, drawn: Drawn) -> list[NodeTrace]:
    parents = [-1, *drawn.parents]
    depths, reached = depths_of(parents), {0, *drawn.path, *drawn.cut}
    traces = []
    for node, token in enumerate(drawn.tokens, start=1):
        verdict = "rejected" if parents[node] in reached else "unreached"
        if node in drawn.path:
            verdict = "accepted"
        if node in drawn.cut:
            verdict = "cut"
        trace = NodeTrace(
            step=index,
            node=node,
            parent=parents[node],
            depth=depths[node],
            rank=parents[:node].count(parents[node]),
            token=token,
            source="draft" if node % 2 else "lookup",
            draft_prob=0.5,
            target_prob=0.25,
            verdict=verdict,
            optimal_acceptance=0.75 if parents[node] in reached else None,
        )
        traces.append(trace)
    return traces


def drawn_result(steps: tuple[Drawn, ...], **changes: Any) -> GenerationResult:
    """Return a generation; ``changes`` are those of its records."""
    tokens, traces = [4], []
    for index, drawn in enumerate(steps):
        tokens += [drawn.tokens[node - 1] for node in drawn.path]
        tokens += [] if drawn.next_token is None else [drawn.next_token]
        traces += drawn_traces(index, drawn)
    records = [drawn_step(i, drawn, **changes) for i, drawn in enumerate(steps)]
    result = make_result(records, traces=traces)
    return replace(result, tokens=tuple(tokens), prompt_tokens=(1, 4, 3, 4))


def drawn_outcome(
    steps: tuple[Drawn, ...] = SMALL, prompt_id: str = "p0", **changes: Any
) -> PromptOutcome:
    result = drawn_result(steps, **changes)
    plain = make_outcome(prompt_id, num_baseline_tokens=len(result.tokens))
    return replace(plain, speculative=result)


def save_tokenizer(folder: Path) -> Path:
    tiny_tokenizer(TOKENS).save_pretrained(folder)
    return folder


def save_run(
    folder: Path, outcomes: list[PromptOutcome], *, trace: str = "nodes", path: str = ""
) -> Path:
    """Write a run folder; ``path`` is where its target is said to be."""
    target = {"path": path or str(folder / "nowhere"), "hub_id": None}
    run = make_run(folder, trace=trace, pair={"target": target, "draft": None})
    record([RunFolderSink()], run, outcomes)
    return run.folder
