"""A run as one HTML file that needs nothing else: data, style and script inside."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from treespec.analysis.trees import MARKS, StepTree
from treespec.analysis.trees_text import PHASES
from treespec.analysis.viewer_words import Words
from treespec.analysis.visible import PRINTED, visible_label, visible_text
from treespec.outcome import PromptOutcome
from treespec.sinks.reader import Run

_KINDS = list(MARKS)
_SCRIPT = ("base", "text", "tree", "moves", "keys")
_PARTS = ("drafter", "policy", "controller", "acceptance")
_COUNTS = (
    "step",
    "num_candidates",
    "num_nodes",
    "num_accepted",
    "num_committed",
    "num_draft_forwards",
    "num_unread",
    "max_depth",
    "max_width",
    "max_nodes",
    "budget_by",
    "next_kind",
)


def run_page(run: Run, trees: Sequence[Sequence[StepTree]], words: Words) -> str:
    """Return the HTML of a run.

    Args:
        run: The run.
        trees: The steps of each prompt, in the order of the prompts.
        words: What tokens say.
    """
    data = _as_script_data(run_data(run, trees, words))
    style, script = _asset("viewer.css"), _script()
    parts = {
        "STYLE_HASH": _digest(style),
        "SCRIPT_HASH": _digest(script),
        "TITLE": escape(visible_text(f"treespec: {run.folder.absolute().name}")),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": data,
    }
    page = _asset("viewer.html")
    return re.sub(r"@([A-Z_]+)@", lambda match: parts[match[1]], page)


def run_data(
    run: Run, trees: Sequence[Sequence[StepTree]], words: Words
) -> dict[str, Any]:
    """Return everything that the page shows; all strings are visible text.

    Tokens and sources are places in ``labels`` and ``sources``, what became of a node
    is a place in ``kinds``, columns of a step hold a value per node.
    """
    results = [outcome.speculative for outcome in run.outcomes]
    used = {token for result in results for token in result.tokens}
    used |= {token for steps in trees for step in steps for token in step.tokens}
    ids = sorted(used)
    labels = words.labels(ids)
    sources = sorted(
        {trace.source for steps in trees for s in steps for trace in s.traces}
    )
    places = {token: place for place, token in enumerate(ids)}
    source_places = {source: place for place, source in enumerate(sources)}
    return {
        "name": visible_text(run.folder.absolute().name),
        "note": visible_text(words.note),
        "facts": _facts(run),
        "ids": ids,
        "labels": [labels[token] for token in ids],
        "sources": [visible_label(source) for source in sources],
        "kinds": _KINDS,
        "marks": [MARKS[kind] for kind in _KINDS],
        "printed": PRINTED,
        "phases": [*PHASES, "other"],
        "prompts": [
            {
                **_prompt(outcome, words),
                "steps": [_step(step, places, source_places) for step in steps],
            }
            for outcome, steps in zip(run.outcomes, trees, strict=True)
        ],
    }


def _prompt(outcome: PromptOutcome, words: Words) -> dict[str, Any]:
    result = outcome.speculative
    return {
        "id": visible_text(outcome.id),
        "category": visible_text(outcome.category),
        "lossless": outcome.lossless,
        "finish": result.finish_reason,
        "prompt": "".join(words.pieces(result.prompt_tokens)),
        "pieces": words.pieces(result.tokens),
        "prefill": _figures(result.prefill_s),
        "decode": _figures(result.decode_s),
    }


def _step(
    tree: StepTree, places: Mapping[int, int], sources: Mapping[str, int]
) -> dict[str, Any]:
    record, layout = tree.record, tree.layout()
    seconds = [getattr(record, f"{name}_s") for name in PHASES]
    optima = {
        str(trace.parent): _figures(trace.optimal_acceptance)
        for trace in tree.traces
        if trace.optimal_acceptance is not None
    }
    return {
        **{name: getattr(record, name) for name in _COUNTS},
        "step_s": _figures(record.step_s),
        "times": [
            *(_figures(s) for s in seconds),
            _figures(max(0.0, record.step_s - sum(seconds))),
        ],
        "expected_accepted": _figures(record.expected_accepted),
        "expected_s": _figures(record.expected_s),
        "reason": None if record.reason is None else visible_text(record.reason),
        "start": tree.start,
        "parents": tree.parents,
        "tokens": [places[token] for token in tree.tokens],
        "status": [_KINDS.index(kind) for kind in tree.kinds],
        "x": [_figures(x) for x in layout.x],
        "ranks": [trace.rank for trace in tree.traces],
        "source": [sources[trace.source] for trace in tree.traces],
        "draft": [_figures(trace.draft_prob) for trace in tree.traces],
        "target": [_figures(trace.target_prob) for trace in tree.traces],
        "optimal": optima,
    }


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return what the head of the page says of the run."""
    summary = run.summary
    parts = [(name, _class_name(run.config.get(name))) for name in _PARTS]
    counted: list[tuple[str, str, Any]] = [
        ("speed-up", "{:.2f}x", summary.get("speedup")),
        ("tokens per forward", "{:.2f}", summary.get("mean_acceptance_length")),
        ("tokens per second", "{:.1f}", summary.get("tokens_per_second")),
    ]
    numbers = [(name, f.format(value)) for name, f, value in counted if value]
    models = [
        ("target", _model_name(run, "target")),
        ("draft", _model_name(run, "draft")),
    ]
    facts = [*numbers, *models, *parts]
    return [(name, visible_text(value)) for name, value in facts if value]


def _model_name(run: Run, which: str) -> str:
    """Return a model's name without the folders of the machine that it ran on."""
    pair = run.config.get("pair")
    given = pair.get(which) if isinstance(pair, dict) else None
    if not isinstance(given, dict):
        return ""
    if given.get("path"):
        return Path(str(given["path"])).name
    return str(given.get("hub_id") or given.get("wheel") or "")


def _class_name(part: Any) -> str:
    target = part.get("_target_") if isinstance(part, dict) else None
    return str(target).rpartition(".")[2] if target else ""


def _figures(value: float | None) -> float | None:
    """Return a number with four digits that count; JSON knows no infinity."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def _as_script_data(data: dict[str, Any]) -> str:
    """Return JSON in ASCII in which nothing can end or open a tag."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _script() -> str:
    """Return the script: its files share one scope that nothing else sees."""
    body = "\n".join(_asset(f"viewer_{part}.js") for part in _SCRIPT)
    return f'"use strict";\n(() => {{\n{body}}})();'


def _asset(name: str) -> str:
    return files("treespec.analysis").joinpath(name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    """Return what a content security policy lets this very text in by."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
