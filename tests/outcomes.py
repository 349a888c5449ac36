"""Hand-made records: steps, results and outcomes without any model."""

from treespec.outcome import PromptOutcome
from treespec.types import GenerationResult, NodeTrace, StepRecord

STEP_S = 0.010
PREFILL_S = 0.200


def make_step(accepted, shape, index=0, next_kind=None, **changes):
    """Return a step that accepted nodes of a tree with ``shape`` layers."""
    depth = len(shape)
    fields = {
        "step": index,
        "num_candidates": sum(shape),
        "num_nodes": sum(shape),
        "depth": depth,
        "width": max(shape, default=0),
        "nodes_by_depth": tuple(shape),
        "num_accepted": accepted,
        "num_committed": accepted + 1,
        "accepted_ranks": (0,) * accepted,
        "accepted_sources": ("draft",) * accepted,
        "next_kind": next_kind or ("bonus" if accepted == depth else "recovered"),
        "num_draft_forwards": depth,
        "draft_s": 0.2 * STEP_S,
        "plan_s": 0.0,
        "verify_s": 0.7 * STEP_S,
        "accept_s": 0.02 * STEP_S,
        "commit_s": 0.03 * STEP_S,
        "step_s": STEP_S,
        "max_depth": depth,
        "max_width": max(shape, default=1),
        "max_nodes": sum(shape),
        "budget_by": "constant",
        "judged_sources": (),
        "judged_ranks": (),
        "judged_depths": (),
        "judged_probs": (),
        "judged_accepted": (),
        "num_unread": 0,
    }
    return StepRecord(**{**fields, **changes})


def make_steps(accepted_per_step, shape):
    """Return one step per entry, all with the same tree."""
    return tuple(
        make_step(accepted, shape, index)
        for index, accepted in enumerate(accepted_per_step)
    )


def make_result(steps, finish_reason="length", text="words", traces=()):
    """Return the result whose tokens and times follow from ``steps``."""
    times = [PREFILL_S]
    for step in steps:
        times += [times[-1] + step.step_s] * step.num_committed
    return GenerationResult(
        prompt_tokens=(5, 6, 7),
        tokens=tuple(range(len(times))),
        text=text,
        finish_reason=finish_reason,
        seed=0,
        prefill_s=PREFILL_S,
        decode_s=times[-1] - PREFILL_S,
        steps=tuple(steps),
        token_times_s=tuple(times),
        traces=tuple(traces),
    )


def make_outcome(
    prompt_id="p0",
    category="qa",
    *,
    accepted=(2, 0, 1),
    shape=(2, 4),
    num_baseline_tokens=None,
    lossless="identical",
    divergence=None,
    traced=False,
):
    """Return a prompt decoded with trees and, one token a step, without."""
    speculative = make_result(
        make_steps(accepted, shape), traces=make_traces() if traced else ()
    )
    num_tokens = num_baseline_tokens or len(speculative.tokens)
    baseline = make_result(make_steps((0,) * (num_tokens - 1), ()))
    return PromptOutcome(
        id=prompt_id,
        category=category,
        speculative=speculative,
        baseline=baseline,
        lossless=lossless,
        divergence=divergence,
    )


def make_traces():
    """Return two nodes of one tree."""
    return (
        NodeTrace(0, 1, 0, 1, 0, 11, "draft", 0.1 + 0.2, 0.75, "accepted", 0.8),
        NodeTrace(0, 2, 0, 1, 1, 12, "draft", 0.25, 1e-12, "rejected", 0.8),
    )
