"""What ``treespec profile`` does: measures a job's pair, and tells it in tables.

Forwards stand beside the least that the machine allows; the article's closed form says
when a chain pays.
"""

from __future__ import annotations

from collections.abc import Sequence

from treespec.closed_form import (
    break_even_acceptance,
    break_even_tokens,
    token_s,
    tokens_per_forward,
)
from treespec.costs import CostCurve, Costs
from treespec.job import Job
from treespec.neighbours import beside
from treespec.preparing import check, costs_of, devices, prepare
from treespec.profile import Point, Profile
from treespec.profile_cache import KeptProfile
from treespec.roofline import Roofline

GAMMAS = (5, 10)
"""Lengths of the chains that the closed form is told for."""
ALPHA = 0.8
"""Acceptance rate of the example."""


def profile_of_job(job: Job) -> KeptProfile:
    """Return the profile of a job's pair: kept, or measured now.

    Raises:
        TreespecError: The job cannot work, or too few timings are seconds.
    """
    check(job)
    with beside(devices(job)) as neighbours:
        return costs_of(job, prepare(job), neighbours, force=job.settings.force)


def render_profile(profile: Profile) -> str:
    """Return a profile's tables."""
    costs = profile.costs
    runs_model = profile.draft_roofline is not None
    drafter = "draft forwards" if runs_model else "the drafter's expansions"
    target = costs.target_curve, profile.target, profile.target_roofline
    draft = costs.draft_curve, profile.draft, profile.draft_roofline
    blocks = [
        _table("target forwards", *target),
        _table(drafter, *draft),
        f"a step outside of forwards: {1000 * costs.step_s:.2f} ms",
        _closed_form(costs),
    ]
    return "\n\n".join(blocks)


def _table(
    what: str, curve: CostCurve, points: Sequence[Point], roofline: Roofline | None
) -> str:
    lines = [f"{what}: median, fit, and the least that this machine allows"]
    lines.append("rows  after  timed  measured ms    fit ms  floor ms  times the floor")
    for point in points:
        fit_s = curve.at(point.num_rows, point.length)
        floor_ms = times = "-"
        if roofline is not None:
            floor_s = roofline.floor_s(point.num_rows)
            floor_ms, times = _ms(floor_s), f"{point.seconds / floor_s:.2f}"
        lines.append(
            f"{point.num_rows:4}  {point.length:5}  {point.num_timings:5}  "
            f"{_ms(point.seconds):>11}  {_ms(fit_s):>8}  {floor_ms:>8}  {times:>15}"
        )
    lines.append(
        f"fit: off by {100 * curve.error:.1f}% (root mean square); 1000 more tokens of "
        f"text cost {_ms(1000 * curve.token_s[0])} ms at 1 row"
    )
    if roofline is not None:
        lines.append(
            f"floor: {roofline.weight_bytes / 1e6:,.0f} MB of weights at "
            f"{roofline.bytes_per_s / 1e9:.1f} GB/s, or {roofline.num_macs / 1e6:,.0f} "
            f"million multiply-adds a row at {roofline.macs_per_s / 1e9:.0f} billion/s"
        )
    return "\n".join(lines)


def _closed_form(costs: Costs) -> str:
    lines = ["a chain of gamma drafts: (gamma D + T) / m seconds per token"]
    lines.append(f"D {_ms(costs.draft(1))} ms, plain T {_ms(costs.target(1))} ms")
    head = f"ms per token at {ALPHA:.0%}"
    lines.append(f"gamma  break-even m  break-even acceptance  {head}")
    for gamma in GAMMAS:
        rate = break_even_acceptance(costs, gamma)
        told = "never" if rate is None else f"{rate:.1%}"
        each_s = token_s(costs, gamma, tokens_per_forward(ALPHA, gamma))
        lines.append(
            f"{gamma:5}  {break_even_tokens(costs, gamma):12.2f}  {told:>21}  "
            f"{_ms(each_s):>{len(head)}}"
        )
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    """Return milliseconds to three digits or so, whatever their size."""
    value = 1000 * seconds
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"
