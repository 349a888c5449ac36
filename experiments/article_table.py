"""The article's table: latency and throughput without, with 5 and with 10 drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

import rules
from engine import Answer, Measured, Study
from serving import Served, Side, prompt_ids, ratio, served
from treespec.analysis import plots
from treespec.closed_form import acceptance_for
from treespec.sinks.lines import number, times
from treespec.sinks.reader import Run
from words import speedup

GAMMAS = {"gamma_5": 5, "gamma_10": 10}
LOADS = (1, 2, 4, 8)
PLAIN = "autoregressive"


def answer(measured: Measured) -> Answer:
    """Return the article's table as it is here."""
    runs = {name: measured.run(name) for name in GAMMAS}
    rates = {method: _rates(measured, method) for method in (PLAIN, *GAMMAS)}
    best = {method: _best(found) for method, found in rates.items()}
    summary = "; ".join(
        f"{gamma} drafts: {speedup(runs[name].summary)} in decoding (article: "
        f"{times(_article(measured, name))} in latency), "
        f"{times(ratio(best[name], best[PLAIN]))} in requests/s (article: "
        f"{times(_article_rate(measured, name))})"
        for name, gamma in GAMMAS.items()
    )
    return Answer(
        summary=summary,
        text=_text(measured, runs),
        tables={
            "By task": pd.DataFrame(_by_task(measured, runs)),
            "Beside the article": pd.DataFrame(_beside(measured, runs, best)),
            "Requests per second by requests at once": pd.DataFrame(_loads(rates)),
            "What acceptance would explain the article": pd.DataFrame(
                _explained(measured)
            ),
        },
        charts={
            "speedup": plots.speedup_by_category(measured.results.only(*GAMMAS)),
        },
    )


def _by_task(measured: Measured, runs: Mapping[str, Run]) -> Iterator[dict[str, Any]]:
    spoken = measured.settings["tasks"]
    first = next(iter(runs.values()))
    for category in [*first.summary["categories"], None]:
        task = "all" if category is None else spoken.get(category, category)
        for method in (PLAIN, *runs):
            run = first if method == PLAIN else runs[method]
            group = run.summary["categories"][category] if category else run.summary
            side = "baseline_latency_ms" if method == PLAIN else "latency_ms"
            yield {
                "task": task,
                "method": _spoken(method),
                "prompts": group["num_prompts"],
                "mean latency (ms)": group[side]["mean"],
                "P50 (ms)": group[side]["p50"],
                "P99 (ms)": group[side]["p99"],
                "speed-up of decoding (95%)": "1.00x"
                if method == PLAIN
                else speedup(group),
                "drafted/forward": 0.0 if method == PLAIN else group["mean_nodes"],
                "tokens/forward": 1.0
                if method == PLAIN
                else group["mean_acceptance_length"],
            }


def _beside(
    measured: Measured, runs: Mapping[str, Run], best: Mapping[str, float | None]
) -> Iterator[dict[str, Any]]:
    article = measured.settings["article"]
    first = next(iter(runs.values()))
    for method in (PLAIN, *runs):
        # Each against the plain decoding that took turns with it.
        run = first if method == PLAIN else runs[method]
        plain = served([run], "baseline").mean_ms
        own = plain if method == PLAIN else served([run], "speculative").mean_ms
        yield {
            "method": _spoken(method),
            "mean latency (ms)": own,
            "article (ms)": article[method]["latency_ms"],
            "times as fast": times(ratio(plain, own)),
            "article": times(_article(measured, method)),
            "best requests/s": number(best[method], 3),
            "article (requests/s)": article[method]["requests_per_s"],
            "times as many": times(ratio(best[method], best[PLAIN])),
            "article (times)": times(_article_rate(measured, method)),
        }


def _loads(rates: Mapping[str, Mapping[int, Served]]) -> Iterator[dict[str, Any]]:
    for method, found in rates.items():
        cells = {
            f"{load} at once": number(found[load].requests_per_s, 3)
            if load in found
            else None
            for load in LOADS
        }
        yield {"method": _spoken(method), **cells}


def _explained(measured: Measured) -> Iterator[dict[str, Any]]:
    """Return the constant acceptance at which a chain has the article's speed-ups."""
    for cost in measured.settings["cost_ratios"]:
        rates = {
            f"acceptance for {_spoken(name)}": number(_needed(measured, name, cost))
            for name in GAMMAS
        }
        yield {"draft forward (target forwards)": cost, **rates}


def _needed(measured: Measured, method: str, cost: float) -> float | None:
    """Return the acceptance that the article's speed-up takes, if any is enough."""
    gamma = GAMMAS[method]
    wanted = _article(measured, method)
    return acceptance_for(wanted * (1 + gamma * cost), gamma)


def _text(measured: Measured, runs: Mapping[str, Run]) -> str:
    article = measured.settings["article"]
    kept = " and ".join(
        f"{number(run.summary['acceptance_rate_of_evaluated'])} ({_spoken(name)})"
        for name, run in runs.items()
    )
    cost = _cost_ratio(runs["gamma_5"])
    lines = [
        f"The article reports {article[PLAIN]['latency_ms']} ms without speculation, "
        f"{article['gamma_5']['latency_ms']} ms with 5 and "
        f"{article['gamma_10']['latency_ms']} ms with 10 drafts. Latency holds the "
        "reading of the prompt, which speculation cannot shorten; the speed-up of "
        "decoding leaves it out.",
        f"Here a drafted token that was compared was accepted at a rate of {kept}, and "
        f"a draft forward took {number(cost)} of a plain step.",
        _note(measured, cost),
    ]
    return "\n\n".join(lines)


def _note(measured: Measured, cost: float | None) -> str:
    """Say whether one constant acceptance would give both of the article's rows."""
    costs = [*measured.settings["cost_ratios"], *([cost] if cost else [])]
    pairs = [tuple(_needed(measured, name, c) for name in GAMMAS) for c in costs]
    free = pairs[costs.index(min(costs))]
    gaps = [abs(a - b) for a, b in pairs if a is not None and b is not None]
    if not gaps:
        return "No acceptance is enough for the article's speed-ups at these costs."
    same = "one constant acceptance nearly explains both rows"
    other = (
        "no constant acceptance explains both rows: the longer chain would have to be "
        "accepted more readily than the shorter one"
    )
    return (
        "By the closed form (a step of gamma draft forwards and one target forward "
        "commits (1 - a^(gamma + 1)) / (1 - a) tokens) the article's speed-ups take an "
        f"acceptance of {number(free[0])} with 5 and {number(free[1])} with 10 drafts "
        f"if a draft forward costs {number(min(costs))} of a target forward. The two "
        f"differ by at least {number(min(gaps))} over the costs of the last table: "
        f"{same if min(gaps) < 0.01 else other}."
    )


def _cost_ratio(run: Run) -> float | None:
    """Return a draft forward's seconds over a plain step's; not of first steps."""
    steps = [s for o in run.outcomes for s in o.speculative.steps[1:]]
    plain = [s.step_s for o in run.outcomes for s in o.baseline.steps]
    drafted = ratio(
        sum(s.draft_s for s in steps), sum(s.num_draft_forwards for s in steps)
    )
    return ratio(drafted, ratio(sum(plain), len(plain)))


def _rates(measured: Measured, method: str) -> dict[int, Served]:
    """Return what was served with so many requests at once, on the same prompts."""
    found: dict[int, Served] = {}
    common = [prompt_ids(run) for run in measured.runs.values()]
    prompts = [p for p in common[0] if all(p in ids for ids in common)]
    for load in LOADS:
        names = GAMMAS if method == PLAIN else (method,)
        jobs = [n if load == 1 else f"{n}_at_{load}" for n in names]
        runs = [measured.runs[job] for job in jobs if job in measured.runs]
        if runs:
            side: Side = "baseline" if method == PLAIN else "speculative"
            found[load] = served(runs, side, prompts)
    return found


def _best(found: Mapping[int, Served]) -> float | None:
    rates = [s.requests_per_s for s in found.values() if s.requests_per_s is not None]
    return max(rates, default=None)


def _article(measured: Measured, method: str) -> float:
    article = measured.settings["article"]
    plain, own = article[PLAIN]["latency_ms"], article[method]["latency_ms"]
    return float(plain / own)


def _article_rate(measured: Measured, method: str) -> float:
    article = measured.settings["article"]
    return float(article[method]["requests_per_s"] / article[PLAIN]["requests_per_s"])


def _spoken(method: str) -> str:
    return f"{GAMMAS[method]} drafts" if method in GAMMAS else method


STUDY = Study(
    answer=answer,
    rules={
        "article": rules.record(
            **{
                m: rules.record(
                    latency_ms=rules.positive, requests_per_s=rules.positive
                )
                for m in (PLAIN, *GAMMAS)
            }
        ),
        "cost_ratios": rules.many(rules.number(0), least=1),
        "tasks": rules.named(rules.text),
    },
)
