"""Memory, requests per machine, and the price of a million tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

import rules
from engine import Answer, Measured, Study
from latency_throughput import METHODS, Cell, cells_of
from serving import ratio
from treespec.analysis.chart import Chart, Panel, Points
from treespec.closed_form import acceptance_for, tokens_per_forward
from treespec.errors import TreespecError
from treespec.sinks.lines import number, percent, times

LOADS = (1, 4, 8)
GAMMA, CHAIN = 5, "gamma_5"
PLAIN = "without speculation"
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that can be had."""

    name: str
    price_per_hour: float
    memory_gib: float


@dataclass(frozen=True, slots=True)
class Budget:
    """What a way to decode needs of a machine, and the cheapest that has it.

    Attributes:
        name: The way.
        weight_gib: Its weights.
        cache_gib: The caches of one request.
        machine: The machine; ``None`` if none is large enough for one request.
        num_requests: How many requests' caches fit beside the weights there.
    """

    name: str
    weight_gib: float
    cache_gib: float
    machine: Machine | None
    num_requests: int


def answer(measured: Measured) -> Answer:
    """Return what tokens cost, and when speculation pays for its memory."""
    cells = cells_of(measured, METHODS, LOADS)
    if not cells:
        raise TreespecError("there is no answer without any job that was done")
    budgets = _budgets(measured, cells[0])
    prices = list(_prices(cells, budgets))
    wanted = _break_even(budgets)
    return Answer(
        summary=_summary(prices, wanted),
        text=_text(measured, budgets, prices, wanted),
        tables={
            "Memory and machines": pd.DataFrame(_memory(budgets)),
            "Price of a million tokens": pd.DataFrame(prices).drop(columns="saving"),
            "Sensitivity to price": pd.DataFrame(_by_price(measured, cells)),
            "Sensitivity to acceptance": pd.DataFrame(
                _by_acceptance(measured, cells, wanted)
            ),
        },
        charts={"price": _chart(prices, cells)},
    )


def _budgets(measured: Measured, cell: Cell) -> dict[str, Budget]:
    """Return what the target alone and the pair need."""
    models = cell.run.environment["models"]
    return {
        PLAIN: _budget(measured, PLAIN, [models["target"]]),
        "pair": _budget(measured, "pair", list(models.values())),
    }


def _budget(
    measured: Measured, name: str, models: Sequence[Mapping[str, Any]]
) -> Budget:
    settings = measured.settings
    weight_gib = sum(model["weight_bytes"] for model in models) / _GIB
    per_token = sum(model["cache_bytes_per_token"] for model in models)
    cache_gib = per_token * settings["tokens_per_request"] / _GIB
    machines = sorted(
        (Machine(**machine) for machine in settings["machines"]),
        key=lambda machine: machine.price_per_hour,
    )
    for machine in machines:
        room = machine.memory_gib * (1 - settings["reserve"]) - weight_gib
        if room >= cache_gib:
            return Budget(name, weight_gib, cache_gib, machine, int(room / cache_gib))
    return Budget(name, weight_gib, cache_gib, None, 0)


def _break_even(budgets: Mapping[str, Budget]) -> float | None:
    """Return how many times as many tokens/s the pair must make to cost the same."""
    plain, pair = budgets[PLAIN].machine, budgets["pair"].machine
    if plain is None or pair is None:
        return None
    return ratio(pair.price_per_hour, plain.price_per_hour)


def _prices(
    cells: Sequence[Cell], budgets: Mapping[str, Budget]
) -> Iterator[dict[str, Any]]:
    for cell in cells:
        plain = _price(budgets[PLAIN], cell.plain.tokens_per_s)
        own = _price(budgets["pair"], cell.speculative.tokens_per_s)
        share = ratio(own, plain)
        yield {
            "method": METHODS[cell.method],
            "requests at once": cell.load,
            "tokens/s without": cell.plain.tokens_per_s,
            "tokens/s with": cell.speculative.tokens_per_s,
            "times as many": times(cell.gain),
            "price without (per million tokens)": number(plain),
            "price with (per million tokens)": number(own),
            "saved": "-" if share is None else percent(1 - share),
            "saving": None if share is None else 1 - share,
        }


def _price(budget: Budget, tokens_per_s: float | None) -> float | None:
    if budget.machine is None or not tokens_per_s:
        return None
    return budget.machine.price_per_hour / 3600 / tokens_per_s * 1e6


def _memory(budgets: Mapping[str, Budget]) -> Iterator[dict[str, Any]]:
    for budget in budgets.values():
        machine = budget.machine
        yield {
            "what": budget.name,
            "weights (GiB)": number(budget.weight_gib, 3),
            "caches of a request (MiB)": number(1024 * budget.cache_gib),
            "cheapest machine": "none is large enough" if not machine else machine.name,
            "price (per hour)": number(None if not machine else machine.price_per_hour),
            "requests that fit": budget.num_requests,
        }


def _by_price(measured: Measured, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Return what is saved if the pair's machine costs so many times the other's."""
    for priced in measured.settings["price_ratios"]:
        saved = {
            f"{METHODS[cell.method]}, {cell.load} at once": percent(
                None if not cell.gain else 1 - priced / cell.gain
            )
            for cell in cells
        }
        yield {"machine's price (times)": priced, **saved}


def _by_acceptance(
    measured: Measured, cells: Sequence[Cell], wanted: float | None
) -> Iterator[dict[str, Any]]:
    """Return what a chain would give if more or fewer of its tokens were accepted.

    The step keeps the seconds that were measured; tokens follow the closed form.
    """
    for cell in cells:
        measured_rate = cell.run.summary["acceptance_rate_of_evaluated"]
        step = _step_ratio(cell)
        if cell.method != CHAIN or measured_rate is None or step is None:
            continue
        for change in measured.settings["acceptance_changes"]:
            rate = min(max(measured_rate + change, 0.0), 1.0)
            gain = tokens_per_forward(rate, GAMMA) / step
            needed = None if wanted is None else acceptance_for(wanted * step, GAMMA)
            yield {
                "requests at once": cell.load,
                "acceptance": rate,
                "speed-up by the closed form": times(gain),
                "acceptance that breaks even": number(needed),
                "pays": "-" if wanted is None else "yes" if gain > wanted else "no",
            }


def _step_ratio(cell: Cell) -> float | None:
    """Return the seconds of a step with drafts over those of one without."""
    speculative = [s.step_s for o in cell.run.outcomes for s in o.speculative.steps]
    plain = [s.step_s for o in cell.run.outcomes for s in o.baseline.steps]
    means = (ratio(sum(seconds), len(seconds)) for seconds in (speculative, plain))
    return ratio(*means)


def _summary(prices: Sequence[Mapping[str, Any]], wanted: float | None) -> str:
    known = [row for row in prices if row["saving"] is not None]
    need = f"the pair must make {times(wanted)} the tokens/s to cost the same"
    if not known:
        return f"no price: no machine is large enough; {need}"
    best = max(known, key=lambda row: float(row["saving"]))
    worst = min(known, key=lambda row: float(row["saving"]))
    return (
        f"{need}; tokens cost {_changed(best)} at best ({best['method']}, "
        f"{best['requests at once']} at once) and {_changed(worst)} at worst "
        f"({worst['method']}, {worst['requests at once']} at once)"
    )


def _changed(row: Mapping[str, Any]) -> str:
    """Return by how much speculation changes the price."""
    saving = float(row["saving"])
    return f"{percent(abs(saving))} {'less' if saving > 0 else 'more'}"


def _text(
    measured: Measured,
    budgets: Mapping[str, Budget],
    prices: Sequence[Mapping[str, Any]],
    wanted: float | None,
) -> str:
    plain, pair = budgets[PLAIN], budgets["pair"]
    more = pair.weight_gib - plain.weight_gib
    paying = [row for row in prices if row["saving"] is not None and row["saving"] > 0]
    return "\n\n".join(
        [
            "Prices per hour and sizes of machines are the study's settings, no one's "
            "offers: give your own with `settings.machines=[...]`. A machine is "
            "taken to be as fast as the one that was measured, whatever its memory.",
            f"The draft model adds {number(more)} GiB of weights to "
            f"{number(plain.weight_gib)} GiB, and "
            f"{number(1024 * (pair.cache_gib - plain.cache_gib), 1)} MiB to the "
            f"{number(1024 * plain.cache_gib, 1)} MiB of caches of a request of "
            f"{measured.settings['tokens_per_request']} tokens. Its machine costs "
            f"{times(wanted)} that of the target alone: so many times as many tokens/s "
            "break even.",
            f"Speculation made tokens cheaper in {len(paying)} of {len(prices)} cases, "
            "each measured once, so without an interval. "
            "The sensitivity to acceptance keeps the measured seconds of a step, and "
            "takes acceptance to be constant and independent from token to token.",
        ]
    )


def _chart(prices: Sequence[Mapping[str, Any]], cells: Sequence[Cell]) -> Chart:
    panel = Panel(
        x_label="Requests at once",
        y_label="Price of tokens, over that without speculation (times)",
        marks=tuple(
            Points(
                name,
                tuple(float(row["requests at once"]) for row in _known(prices, name)),
                tuple(1 - float(row["saving"]) for row in _known(prices, name)),
                style=style,
            )
            for style, name in enumerate(
                dict.fromkeys(METHODS[cell.method] for cell in cells)
            )
        ),
        x_scale="log",
    )
    num_prompts = len(cells[0].run.outcomes)
    return Chart(f"What tokens cost (n = {num_prompts} prompts a load)", (panel,))


def _known(prices: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [
        row for row in prices if row["method"] == name and row["saving"] is not None
    ]


STUDY = Study(
    answer=answer,
    rules={
        "machines": rules.many(
            rules.record(
                name=rules.text,
                price_per_hour=rules.positive,
                memory_gib=rules.positive,
            ),
            least=1,
        ),
        "tokens_per_request": rules.whole,
        "reserve": rules.number(0, 0.99),
        "price_ratios": rules.many(rules.positive),
        "acceptance_changes": rules.many(rules.number(-1, 1)),
    },
)
