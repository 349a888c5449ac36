"""A regret report as text: plain, at most 88 columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap

from treespec.errors import TreespecError
from treespec.metrics import tokens_per_second
from treespec.profile import Profile
from treespec.recorded_profile import recorded_profile
from treespec.regret import CategoryRegret, RegretReport, regret
from treespec.stats import Interval
from treespec.sweep import Contender, read_sweep

_WIDTH = 88
_CATEGORY, _BEST, _STRATEGY = 14, 17, 54
_REGRET_WORDS = (
    "regret: seconds per token over those of the best fixed strategy there, less 1; "
    "the interval is paired over prompts. speed-up: the same, each over the plain "
    "decoding of its own run. by costs: the same, of seconds by the cost profile. "
    "kept: the share of first drafts that were accepted."
)
_BOUND_WORDS = (
    "planned: what it expected. by costs: its steps by the cost profile. free drafts, "
    "draft model: the least time by the profile if all drafts were right, and cost "
    "nothing or were written by the draft model; in brackets, measured time over it."
)
_USAGE = "write treespec regret SWEEP_FOLDER, with planner=RUN and costs=FILE if needed"


def regret_text(arguments: Sequence[str]) -> str:
    """Return the report that the words after ``treespec regret`` ask for.

    Raises:
        TreespecError: They ask for nothing, or the runs do not compare.
    """
    options = {"planner": "", "costs": ""}
    folders = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in options:
            options[name] = value
        else:
            folders.append(argument)
    if len(folders) != 1:
        raise TreespecError(
            f"regret needs one folder, got {len(folders)} ({', '.join(folders)}): "
            f"{_USAGE}"
        )
    sweep = read_sweep(Path(folders[0]), options["planner"] or None)
    if options["costs"]:
        profile = Profile.read(Path(options["costs"]))
    else:
        profile = recorded_profile(sweep.planner_config, sweep.planner_environment)
    return render(regret(sweep, profile.costs))


def render(report: RegretReport) -> str:
    """Return the tables, each with what its words mean."""
    parts = [
        _strategies(report),
        [*_regrets(report), *wrap(_REGRET_WORDS, _WIDTH)],
        [*_bounds(report.rows), *wrap(_BOUND_WORDS, _WIDTH)],
        wrap(_break_even(report), _WIDTH),
        [
            line
            for reason in report.sweep.left_out
            for line in wrap(f"left out: {reason}", _WIDTH, subsequent_indent="  ")
        ],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _strategies(report: RegretReport) -> list[str]:
    """List what was compared; further tables name a strategy by its number."""
    lines = [" no.  ms/token  run               strategy"]
    for number, contender in enumerate(_numbered(report)):
        note = _note(report, contender)
        name = contender.name[: _STRATEGY - len(note)]
        time, key = _token_ms(contender), contender.run_key[:16]
        lines.append(f"{number:>4}  {time:>8}  {key:<16}  {name}{note}")
    return lines


def _numbered(report: RegretReport) -> list[Contender]:
    sweep = report.sweep
    return [sweep.planner, *sweep.fixed, *sweep.adaptive]


def _note(report: RegretReport, contender: Contender) -> str:
    if contender is report.sweep.planner:
        return " (in question)"
    return "" if contender.kind == "fixed" else f" ({contender.kind}, not compared)"


def _regrets(report: RegretReport) -> list[str]:
    header = (
        f"{'category':<{_CATEGORY}}  {'best in hindsight':<{_BEST}}  {'regret':>7}  "
        f"{'95% interval':<16}  {'speed-up':>8}  {'by costs':>8}  {'kept':>4}"
    )
    return [header, *(_regret(report, row) for row in report.rows)]


def _regret(report: RegretReport, row: CategoryRegret) -> str:
    found, name = row.regret, row.category[:_CATEGORY]
    if found is None:
        return f"{name:<{_CATEGORY}}  {'nothing to decode':<{_BEST}}"
    ids = [(rival.run_key, rival.name) for rival in _numbered(report)]
    number = ids.index((found.best.run_key, found.best.name))
    best = f"{number} {found.best.name}"[:_BEST]
    return (
        f"{name:<{_CATEGORY}}  {best:<{_BEST}}  {_percent(found.ratio):>7}  "
        f"{_interval(found.interval):<16}  {_percent(found.of_speedup):>8}  "
        f"{_percent(found.priced):>8}  {_share(row.first_choice_acceptance):>4}"
    )


def _bounds(rows: Sequence[CategoryRegret]) -> list[str]:
    header = (
        f"{'category':<{_CATEGORY}}  prompts  ms/token   planned  by costs  "
        f"{'free drafts':>14}  {'draft model':>14}"
    )
    return [header, *(_bound(row) for row in rows if row.num_decoded)]


def _bound(row: CategoryRegret) -> str:
    bounds, num_tokens = row.bounds, row.num_decoded
    plain = (bounds.measured_s, bounds.planned_s, bounds.priced_s)
    measured, planned, priced = (_ms(seconds, num_tokens) for seconds in plain)
    least = (bounds.free_draft_s, bounds.chain_draft_s)
    free, chain = (
        "-"
        if seconds is None
        else f"{_ms(seconds, num_tokens)} ({bounds.measured_s / seconds:.2f}x)"
        for seconds in least
    )
    return (
        f"{row.category[:_CATEGORY]:<{_CATEGORY}}  {row.num_prompts:>7}  "
        f"{measured:>8}  {planned:>8}  {priced:>8}  {free:>14}  {chain:>14}"
    )


def _break_even(report: RegretReport) -> str:
    kept = [f"{source} {_share(rate)}" for source, rate in report.acceptance.items()]
    first = f"First drafts that were kept: {_listed(kept)}." if kept else ""
    if not report.break_even:
        return first
    points = [
        "never" if least is None else _share(least)
        for least in report.break_even.values()
    ]
    return (
        f"Break-even: a chain of {_listed(map(str, report.break_even))} drafts of the "
        f"draft model pays from an acceptance of {_listed(points)} on. {first}"
    )


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def _token_ms(contender: Contender) -> str:
    results = [outcome.speculative for outcome in contender.outcomes]
    rate = tokens_per_second(results)
    return "-" if not rate else f"{1e3 / rate:,.1f}"


def _ms(seconds: float | None, num_tokens: int) -> str:
    return "-" if seconds is None else f"{1e3 * seconds / num_tokens:,.1f}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f}%"


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{_percent(interval.low)} to {_percent(interval.high)}"
