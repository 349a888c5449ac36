"""A regret report as text: plain, at most 88 columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from treespec.analysis.visible import shorten
from treespec.errors import TreespecError, unknown_name
from treespec.metrics import tokens_per_second
from treespec.profile import Profile
from treespec.recorded_profile import recorded_profile
from treespec.regret import CategoryRegret, RegretReport, regret
from treespec.sinks.lines import percent
from treespec.stats import Interval
from treespec.sweep import Contender, read_sweep

_WIDTH = 88
_KEY, _STRATEGY = 16, 54
_CATEGORY, _CATEGORY_AND_BEST = 18, 31
_REGRET_WORDS = {
    "best fixed": "the fixed strategy with the fewest seconds there, in hindsight, by "
    "its no.",
    "regret": "seconds per token of the run in question over those of that strategy, "
    "less 1: +10% is a tenth slower; below 0 no fixed strategy was as fast",
    "95% interval": "of the regret, paired over prompts; from 5 prompts on",
    "speed-up": "the regret of speed-ups, each over the plain decoding of its own run: "
    "a machine that was slower during one run does not count",
    "by costs": "the regret of seconds that the cost profile gives the recorded "
    "steps: no clock counts",
    "kept": "share of first drafts that the run in question had accepted",
}
_BOUND_WORDS = {
    "ms/token": "measured",
    "planned": "what the planner expected",
    "by costs": "its steps by the cost profile",
    "free drafts": "the least by the profile if all drafts were right and cost "
    "nothing; in brackets how much longer was measured",
    "draft model": "the same, if the draft model wrote them",
}
HELP = """\
treespec regret SWEEP [key=value ...] tells how far a planner was from the best fixed
strategy of a sweep, chosen in hindsight per category, and from all-knowing drafts.

  treespec -m policy=planner,chain controller.max_depth=3,5 sweep_name=plans
  treespec regret outputs/plans planner=RUN

  planner=RUN            the run in question, by its folder's name; needed unless just
                         one run of the sweep has a planner
  costs=FILE             a cost profile; otherwise the newest kept one of the run's
                         models, drafter, threads and machine (treespec profile)

The runs must have decoded the same prompts with the same models and settings.
"""
_USAGE = "see treespec regret --help"


def regret_text(arguments: Sequence[str]) -> str:
    """Return the report, or the help, that the words after ``regret`` ask for.

    Raises:
        TreespecError: They ask for nothing, or the runs do not compare.
    """
    if not {"-h", "--help"}.isdisjoint(arguments):
        return HELP
    options = {"planner": "", "costs": ""}
    folders = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in options:
            options[name] = value
        elif equals and "/" not in name:
            raise unknown_name("key of regret", name, options)
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
        [*_regrets(report), "", *_explained(_REGRET_WORDS)],
        [*_bounds(report), "", *_explained(_BOUND_WORDS)],
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
        name = contender.name + _note(report, contender)
        time, key = _token_ms(contender), shorten(contender.run_key, _KEY)
        first, *rest = wrap(name, _STRATEGY)
        lines.append(f"{number:>4}  {time:>8}  {key:<{_KEY}}  {first}")
        lines += [" " * (_WIDTH - _STRATEGY) + line for line in rest]
    return lines


def _explained(words: Mapping[str, str]) -> list[str]:
    """Return the meaning of each column."""
    width = max(map(len, words))
    return [
        line
        for name, meaning in words.items()
        for line in wrap(
            f"{name:<{width}}  {meaning}",
            _WIDTH,
            initial_indent="  ",
            subsequent_indent=" " * (width + 4),
        )
    ]


def _numbered(report: RegretReport) -> list[Contender]:
    sweep = report.sweep
    return [sweep.planner, *sweep.fixed, *sweep.adaptive]


def _note(report: RegretReport, contender: Contender) -> str:
    if contender is report.sweep.planner:
        return " (in question)"
    return "" if contender.kind == "fixed" else f" ({contender.kind}, not compared)"


def _regrets(report: RegretReport) -> list[str]:
    width = _category_width(report)
    header = (
        f"{'category':<{width}}  {'best fixed':<{_CATEGORY_AND_BEST - width}}  "
        f"{'regret':>7}  {'95% interval':<18}  {'speed-up':>8}  {'by costs':>8}  "
        f"{'kept':>4}"
    )
    return [header, *(_regret(report, row, width) for row in report.rows)]


def _category_width(report: RegretReport) -> int:
    """Return the room that categories take in both tables."""
    longest = max((len(row.category) for row in report.rows), default=0)
    return min(_CATEGORY, max(len("category"), longest))


def _regret(report: RegretReport, row: CategoryRegret, width: int) -> str:
    found, name = row.regret, shorten(row.category, width)
    if found is None:
        return f"{name:<{width}}  nothing to decode"
    ids = [(rival.run_key, rival.name) for rival in _numbered(report)]
    number = ids.index((found.best.run_key, found.best.name))
    room = _CATEGORY_AND_BEST - width
    best = f"{number} {shorten(found.best.name, room - len(f'{number} '))}"
    return (
        f"{name:<{width}}  {best:<{room}}  {_percent(found.ratio):>7}  "
        f"{_interval(found.interval):<18}  {_percent(found.of_speedup):>8}  "
        f"{_percent(found.priced):>8}  {percent(row.first_choice_acceptance):>4}"
    )


def _bounds(report: RegretReport) -> list[str]:
    width = _category_width(report)
    header = (
        f"{'category':<{width}}  prompts  ms/token  planned  by costs  "
        f"{'free drafts':>14}  {'draft model':>14}"
    )
    rows = (_bound(row, width) for row in report.rows if row.num_decoded)
    return [header, *rows]


def _bound(row: CategoryRegret, width: int) -> str:
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
        f"{shorten(row.category, width):<{width}}  {row.num_prompts:>7}  "
        f"{measured:>8}  {planned:>7}  {priced:>8}  {free:>14}  {chain:>14}"
    )


def _break_even(report: RegretReport) -> str:
    kept = [f"{source} {percent(rate)}" for source, rate in report.acceptance.items()]
    first = f"First drafts that were kept: {_listed(kept)}." if kept else ""
    if not report.break_even:
        return first
    points = [
        "never" if least is None else percent(least)
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


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f}%"


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{_percent(interval.low)} to {_percent(interval.high)}"
