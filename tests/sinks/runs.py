"""A run's identity for sink tests, and a recorder of it."""

from dataclasses import replace

from tests.outcomes import make_outcome
from treespec.metrics import summarize
from treespec.outcome import Divergence, Quality, Repeat
from treespec.sinks.base import RunInfo, recording


def make_run(folder, run_key="k1", **config):
    """Return the identity of a run below ``folder``."""
    return RunInfo(
        run_key=run_key,
        sweep_name="sweep",
        folder=folder / run_key,
        config={"seed": 0, "policy": {"max_depth": 3, "min_prob": 1e-05}, **config},
        environment={
            "versions": {"torch": "2.13.0", "treespec": "0.1.0"},
            "git": {"commit": "abc", "dirty": False},
            "dtype": "float32",
            "attn_implementation": "treespec",
            "target": {"model": "org/name", "revision": "main", "sha256": None},
        },
        tags=("lossless", "cpu"),
    )


def make_outcomes():
    """Return prompts of two categories, one of them a tie, one traced."""
    return [
        make_outcome("a", "qa", accepted=(2, 0, 1), traced=True),
        make_outcome("b", "qa", accepted=(1, 1)),
        make_outcome(
            "c",
            "story",
            accepted=(0, 0, 2),
            num_baseline_tokens=4,
            lossless="tie",
            divergence=Divergence(index=3, margin=0.001, noise=0.01),
        ),
        replace(
            make_outcome("\u00e9\u2028", "story", accepted=()),
            quality=Quality(-1.5, None),
            repeats=(Repeat(0.3, 0.1 + 0.2, True), Repeat(0.25, 0.5, False)),
        ),
    ]


def record(sinks, run, outcomes):
    """Record a whole run and return its summary."""
    with recording(sinks, run) as recorded:
        for outcome in outcomes:
            recorded.prompt(outcome)
        recorded.summary = summarize(outcomes, wall_s=1.5, peak_memory_bytes=None)
    return recorded.summary
