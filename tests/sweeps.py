"""Sweep folders of hand-made runs: a planner and what it is compared with."""

from dataclasses import replace

from tests.outcomes import make_outcome, make_result
from tests.sinks.runs import make_run, record
from treespec.costs import Costs
from treespec.sinks.run_folder import RunFolderSink

COSTS = Costs.through({1: 0.010, 8: 0.012}, {1: 0.001, 64: 0.001}, step_s=0.0005)
PLANNER = {"_target_": "treespec.policies.Planner"}
CHAIN = {"_target_": "treespec.policies.Chain", "min_confidence": 0.0}
TREE = {"_target_": "treespec.policies.TopKTree", "top_k": 2}


def constant(max_depth=3):
    """Return the configuration of a controller that keeps one budget."""
    return {"_target_": "treespec.controllers.Constant", "max_depth": max_depth}


def write_run(folder, key, outcomes, **config):
    """Leave a finished run; unless told otherwise, one of a fixed chain."""
    parts = {"policy": CHAIN, "controller": constant(), **config}
    run = make_run(folder, key, **parts)
    record([RunFolderSink()], run, outcomes)
    return run.folder


def scaled(outcome, factor):
    """Return a prompt whose every step took longer by a factor, on both sides."""
    sides = {}
    for name in ("speculative", "baseline"):
        result = getattr(outcome, name)
        steps = [replace(s, step_s=factor * s.step_s) for s in result.steps]
        sides[name] = make_result(steps)
    return replace(outcome, **sides)


def prompts(accepted_by_category, **changes):
    """Return a prompt per entry, named after its category and place."""
    return [
        make_outcome(f"{category}{place}", category, accepted=accepted, **changes)
        for category, texts in accepted_by_category.items()
        for place, accepted in enumerate(texts)
    ]


def write_sweep(folder):
    """Leave a planner, two chains and a tree on prompts of two categories.

    Twelve tokens are decoded per prompt, in steps of 10 ms. In ``qa`` the planner takes
    4 steps, the chain of 3 takes 3, the tree 6. In ``story`` the planner takes 6, the
    chain of 3 takes 12, the tree 8.
    """
    write_run(
        folder,
        "planner",
        prompts({"qa": [(2,) * 4], "story": [(1,) * 6]}),
        policy=PLANNER,
    )
    write_run(folder, "chain3", prompts({"qa": [(3,) * 3], "story": [(0,) * 12]}))
    write_run(
        folder,
        "tree",
        prompts({"qa": [(1,) * 6], "story": [(1,) * 4 + (0,) * 4]}),
        policy=TREE,
    )
