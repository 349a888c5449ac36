"""Trees for terminals: one node a line, as an outline."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from treespec.analysis.layout import outline
from treespec.analysis.trees import MARKS, StepTree

PHASES = ("draft", "plan", "verify", "accept", "commit")
"""The timed parts of a step, in their order."""
LEGEND = "  ".join(f"{mark} {kind}" for kind, mark in MARKS.items() if kind != "root")


def step_text(tree: StepTree, label: Callable[[int], str]) -> str:
    """Return a step as text: what it did and cost, and its tree.

    The tree stands last in a line: labels are of any width and direction.

    Args:
        tree: The step.
        label: From a token id to visible text.
    """
    lines = [*_headline(tree), f"{'draft':>8} {'target':>8}  rank  source"]
    source_width = max((len(trace.source) for trace in tree.traces), default=6)
    for row in outline(tree.parents):
        trace = tree.trace(row.node)
        figures = " " * (8 + 1 + 8 + 2 + 4 + 2 + source_width)
        if trace is not None:
            figures = (
                f"{probability(trace.draft_prob):>8} "
                f"{probability(trace.target_prob):>8}  {trace.rank:>4}  "
                f"{trace.source:<{source_width}}"
            )
        kind = tree.kinds[row.node]
        name = f" ({kind})" if kind in ("bonus", "recovered", "cut") else ""
        token = label(tree.tokens[row.node])
        lines.append(f"{figures}  {MARKS[kind]}  {row.branch}{token}{name}")
    return "\n".join(lines)


def _headline(tree: StepTree) -> Iterator[str]:
    record = tree.record
    tokens = "token" if record.num_committed == 1 else "tokens"
    yield (
        f"step {record.step}: {record.num_accepted} of {record.num_nodes} drafted "
        f"nodes accepted, {record.num_committed} {tokens} committed"
    )
    parts = ", ".join(f"{name} {ms}" for name, ms in phase_times(tree).items())
    yield f"  {milliseconds(record.step_s)}: {parts}"
    yield f"  {budget_text(tree)}"
    if forecast := forecast_text(tree):
        yield f"  {forecast}"


def phase_times(tree: StepTree) -> dict[str, str]:
    """Return the seconds of a step's parts as text, what is left over included."""
    seconds = {name: getattr(tree.record, f"{name}_s") for name in PHASES}
    rest = max(0.0, tree.record.step_s - sum(seconds.values()))
    return {name: milliseconds(s) for name, s in {**seconds, "other": rest}.items()}


def budget_text(tree: StepTree) -> str:
    """Return what a step was allowed to spend, and who said so."""
    record = tree.record
    return (
        f"budget: depth {record.max_depth}, width {record.max_width}, "
        f"nodes {record.max_nodes} (by {record.budget_by})"
    )


def forecast_text(tree: StepTree) -> str:
    """Return what the policy expected of the tree; empty if it did not say."""
    record = tree.record
    parts = []
    if record.reason is not None:
        parts.append(record.reason)
    if record.expected_accepted is not None:
        parts.append(f"{record.expected_accepted:.2f} accepted expected")
    if record.expected_s is not None:
        parts.append(f"{milliseconds(record.expected_s)} expected")
    return ", ".join(parts)


def milliseconds(seconds: float) -> str:
    """Return a duration in milliseconds with three digits that count."""
    value = seconds * 1000
    if 0 < value < 0.01:
        return "< 0.01 ms"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def probability(prob: float) -> str:
    """Return a probability so that small ones do not become 0."""
    return f"{prob:.3f}" if prob == 0 or prob >= 0.001 else f"{prob:.0e}"
