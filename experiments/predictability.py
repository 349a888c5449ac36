"""What a text tells of the speed-up before anything is decoded, prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

import rules
from again import job_of
from drawing import missing_notes
from engine import Answer, Measured, Study
from paired import MIN_UNITS, UNKNOWN, Estimate, correlation, decode_row, estimate
from treespec.agreement import Agreement, read_both
from treespec.analysis.chart import Chart, Guide, Panel, Points
from treespec.costs import Costs
from treespec.drafters import PromptLookup
from treespec.errors import TreespecError
from treespec.feasibility import predicted_speedup
from treespec.forwards import draft_models
from treespec.ngram import ngram_bits
from treespec.outcome import PromptOutcome
from treespec.preparing import prepare
from treespec.sinks.reader import Run
from treespec.walk import Walk, Written, chain_walk, lookup_walk

DRAFT, LOOKUP = "draft_model", "prompt_lookup"


@dataclass(frozen=True, slots=True)
class Text:
    """What is known of one prompt's text without decoding it.

    Attributes:
        id: The prompt.
        category: Its kind.
        written: The target's own text, as plain decoding wrote it.
        ngram_bits: Bits per token by an n-gram model that has read the prompt.
        agreement: Both models on it; ``None`` without a draft model.
    """

    id: str
    category: str
    written: Written
    ngram_bits: float
    agreement: Agreement | None

    @property
    def draft_bits(self) -> float:
        """Mean entropy of the draft's law."""
        return (
            math.nan if self.agreement is None else mean(self.agreement.draft_entropy)
        )

    @property
    def draft_acceptance(self) -> float:
        """Mean probability that the draft's token is accepted."""
        return math.nan if self.agreement is None else mean(self.agreement.acceptance)


@dataclass(frozen=True, slots=True)
class Forecasts:
    """A job's measured and predicted speed-ups.

    Attributes:
        job: Its name.
        ids: The prompts, in order.
        measured: Speed-up of each.
        predicted: Speed-up of each, by its text and the costs; NaN where a job is not
            one that can be predicted.
        pooled: Measured speed-up over all prompts.
        predicted_pooled: The prediction over all.
    """

    job: str
    ids: tuple[str, ...]
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    pooled: Estimate
    predicted_pooled: Estimate

    @property
    def errors(self) -> list[float]:
        """Logarithm of predicted over measured, prompt by prompt."""
        pairs = zip(self.predicted, self.measured, strict=True)
        return [math.log(p / m) for p, m in pairs if p > 0 and m > 0]


def answer(measured: Measured) -> Answer:
    """Return correlations, and the error of the predictions."""
    costs = _costs(measured)
    texts = _texts(measured)
    found = [_forecasts(job, run, texts, costs) for job, run in measured.runs.items()]
    links = _correlations(found, texts)
    errors = _errors(found)
    frames = {
        "Correlation with the speed-up, over prompts": links.drop(
            columns=["low", "high"], errors="ignore"
        ),
        "Predicted and measured speed-up": errors,
        "Prompts": _prompts(found, texts),
    }
    text = "\n\n".join(
        part for part in (_links_told(links), _errors_told(errors, found)) if part
    )
    charts = {
        "prediction": _prediction_chart(found, errors, measured),
        "entropy": _entropy_chart(found, texts, frames["Prompts"], measured),
    }
    return Answer(_summary(links, errors), text, frames, charts)


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN of nothing."""
    return float(np.mean(values)) if values else math.nan


def _costs(measured: Measured) -> Costs | None:
    """Return the costs that the planner was told; ``None`` without them."""
    run = measured.runs.get(measured.settings["costs_of"])
    found = None if run is None else run.environment.get("costs")
    return None if found is None else Costs.from_json(found)


def _texts(measured: Measured) -> dict[str, Text]:
    """Return every prompt's text, read by both models if there is a draft."""
    run = measured.runs.get(DRAFT) or next(iter(measured.runs.values()))
    outcomes = [outcome for outcome in run.outcomes if len(outcome.baseline.tokens) > 1]
    if not outcomes:
        raise TreespecError("there is no answer, as no text has a second token")
    job = job_of(run)
    decoder = prepare(job).decoder if DRAFT in measured.runs else None
    drafts = [] if decoder is None else draft_models(decoder.drafter)
    vocab_size = int(run.environment["models"]["target"]["vocab_size"])
    texts = {}
    for outcome in outcomes:
        written = _written(outcome)
        agreement = None
        if decoder is not None and drafts:
            agreement = read_both(decoder.target, drafts[0], written, job.sampling)
        bits = ngram_bits(written.tokens, vocab_size, written.start)
        texts[outcome.id] = Text(outcome.id, outcome.category, written, bits, agreement)
    return texts


def _written(outcome: PromptOutcome) -> Written:
    before = outcome.baseline.prompt_tokens
    return Written((*before, *outcome.baseline.tokens), len(before))


def _forecasts(
    job: str, run: Run, texts: Mapping[str, Text], costs: Costs | None
) -> Forecasts:
    outcomes = [
        outcome
        for outcome in run.outcomes
        if outcome.id in texts and min(decode_row(outcome)) > 0
    ]
    rows = np.array([decode_row(outcome) for outcome in outcomes]).reshape(-1, 4)
    walks = [_walk(job, run, texts[outcome.id]) for outcome in outcomes]
    known = [walk for walk in walks if walk is not None]
    predicted = [math.nan] * len(outcomes)
    pooled = Estimate(math.nan)
    if costs is not None and len(known) == len(walks) and known:
        predicted = [predicted_speedup([walk], costs)[0] for walk in known]
        value, interval = predicted_speedup(known, costs)
        ends = () if interval is None else (interval.low, interval.high)
        pooled = Estimate(value, *ends)
    return Forecasts(
        job,
        tuple(outcome.id for outcome in outcomes),
        tuple((a / b) / (c / d) for a, b, c, d in rows),
        tuple(predicted),
        estimate(rows, lambda s: (s[..., 0] / s[..., 1]) / (s[..., 2] / s[..., 3])),
        pooled,
    )


def _walk(job: str, run: Run, text: Text) -> Walk | None:
    """Return the steps that feasibility predicts; ``None`` for what it cannot."""
    depth = int(run.config["controller"]["max_depth"])
    if job == LOOKUP:
        kept = {k: v for k, v in run.config["drafter"].items() if k != "_target_"}
        return lookup_walk(text.written, PromptLookup(**kept), depth)
    if job == DRAFT and text.agreement is not None:
        return chain_walk(text.written, text.agreement.acceptance, depth)
    return None


def _correlations(
    found: Sequence[Forecasts], texts: Mapping[str, Text]
) -> pd.DataFrame:
    rows = []
    for one in found:
        of_job = [texts[name] for name in one.ids]
        drafts = [] if one.job == LOOKUP else of_job
        logs = [math.log(speed) for speed in one.measured]
        for what, values in (
            ("n-gram cross-entropy", [text.ngram_bits for text in of_job]),
            ("draft entropy", [text.draft_bits for text in drafts]),
            ("draft acceptance", [text.draft_acceptance for text in drafts]),
            ("predicted speed-up", list(one.predicted)),
        ):
            link = correlation(values, logs) if values else UNKNOWN
            if math.isfinite(link.value):
                rows.append(
                    {
                        "job": one.job,
                        "of": what,
                        **link.columns("correlation"),
                        "low": link.low,
                        "high": link.high,
                        "prompts": len(of_job),
                    }
                )
    return pd.DataFrame(rows)


def _errors(found: Sequence[Forecasts]) -> pd.DataFrame:
    rows = []
    for one in found:
        errors = one.errors
        if not errors:
            continue
        ratio = estimate(
            np.array([[error, 1.0] for error in errors]),
            lambda s: np.exp(s[..., 0] / s[..., 1]),
        )
        rows.append(
            {
                "job": one.job,
                **one.pooled.columns("measured"),
                **one.predicted_pooled.columns("predicted"),
                **ratio.columns("predicted over measured, geometric mean"),
                "off by, typically (%)": 100
                * math.expm1(mean([abs(e) for e in errors])),
                "same verdict (share of prompts)": mean(
                    [
                        float((p > 1) == (m > 1))
                        for p, m in zip(one.predicted, one.measured, strict=True)
                    ]
                ),
                "prompts": len(errors),
            }
        )
    return pd.DataFrame(rows)


def _prompts(found: Sequence[Forecasts], texts: Mapping[str, Text]) -> pd.DataFrame:
    rows = []
    for text in texts.values():
        row = {
            "prompt": text.id,
            "n-gram bits per token": text.ngram_bits,
            "draft entropy (bits)": text.draft_bits,
            "draft accepted": text.draft_acceptance,
        }
        for one in found:
            if text.id in one.ids:
                place = one.ids.index(text.id)
                row[f"{one.job}, measured"] = one.measured[place]
                if math.isfinite(one.predicted[place]):
                    row[f"{one.job}, predicted"] = one.predicted[place]
        rows.append(row)
    return pd.DataFrame(rows)


def _links_told(links: pd.DataFrame) -> str:
    if not len(links):
        return f"There are too few prompts for a correlation, below {MIN_UNITS}."
    parts = []
    for row in links.to_dict("records"):
        known = row["low"] > 0 or row["high"] < 0
        word = "" if known else ", not told apart from none"
        parts.append(
            f"- {row['job']}, {row['of']}: {row['correlation']:+.2f} "
            f"({row['correlation, 95%']}{word})"
        )
    return (
        "Correlation with the logarithm of the speed-up, over prompts (95% bootstrap "
        "intervals):\n\n" + "\n".join(parts)
    )


def _errors_told(errors: pd.DataFrame, found: Sequence[Forecasts]) -> str:
    if not len(errors):
        return "Nothing was predicted: the run whose costs are needed failed."
    parts = [
        f"For {row['job']} it predicts {row['predicted']:.2f}x over all prompts, "
        f"measured {row['measured']:.2f}x ({row['measured, 95%']}); a prompt's "
        f"prediction is typically off by {row['off by, typically (%)']:.0f}%, and says "
        "rightly whether speculation pays for "
        f"{row['same verdict (share of prompts)']:.0%} of them"
        for row in errors.to_dict("records")
    ]
    best = max(found, key=lambda one: one.pooled.value)
    told = ". ".join(parts)
    return (
        f"treespec feasibility is given the text that the target itself wrote, so this "
        f"is its error where the texts are just right; others add theirs. {told}. "
        f"Fastest was {best.job} with {best.pooled.told('x')}."
    )


def _summary(links: pd.DataFrame, errors: pd.DataFrame) -> str:
    parts = []
    for job, what in (
        (LOOKUP, "n-gram cross-entropy"),
        (DRAFT, "n-gram cross-entropy"),
        (DRAFT, "draft entropy"),
    ):
        rows = [
            r for r in links.to_dict("records") if (r["job"], r["of"]) == (job, what)
        ]
        parts += [
            f"{what} and {job} {row['correlation']:+.2f} ({row['correlation, 95%']})"
            for row in rows
        ]
    told = f"Correlation with the speed-up: {'; '.join(parts)}. " if parts else ""
    off = [
        f"{row['job']} {row['predicted']:.2f}x for {row['measured']:.2f}x measured, "
        f"off by {row['off by, typically (%)']:.0f}% per prompt"
        for row in errors.to_dict("records")
    ]
    return told + (f"Predictions: {'; '.join(off)}." if off else "Nothing predicted.")


def _prediction_chart(
    found: Sequence[Forecasts], frame: pd.DataFrame, measured: Measured
) -> Chart:
    marks = [
        Points(
            name=one.job,
            x=one.predicted,
            y=one.measured,
            join="none",
            style=style,
            labels=one.ids,
        )
        for style, one in enumerate(found)
        if one.errors
    ]
    num_prompts = max((len(one.ids) for one in found), default=0)
    panel = Panel(
        "Predicted speed-up (times)",
        "Measured speed-up (times)",
        tuple(marks),
        (
            Guide("diagonal", name="as predicted"),
            Guide("y", 1.0, "without speculation"),
        ),
    )
    return Chart(
        f"Predicted and measured speed-up (n = {num_prompts} prompts)",
        (panel,) if marks else (),
        missing_notes(measured.missing) or ("nothing was predicted",) * (not marks),
        frame,
    )


def _entropy_chart(
    found: Sequence[Forecasts],
    texts: Mapping[str, Text],
    frame: pd.DataFrame,
    measured: Measured,
) -> Chart:
    marks = [
        Points(
            name=one.job,
            x=tuple(texts[name].ngram_bits for name in one.ids),
            y=one.measured,
            join="none",
            style=style,
            labels=one.ids,
        )
        for style, one in enumerate(found)
    ]
    panel = Panel(
        "n-gram cross-entropy of the text given its prompt (bits per token)",
        "Measured speed-up (times)",
        tuple(marks),
        (Guide("y", 1.0, "without speculation"),),
    )
    return Chart(
        f"Predictable texts and speed (n = {len(texts)} prompts)",
        (panel,),
        missing_notes(measured.missing),
        frame,
    )


STUDY = Study(
    answer=answer,
    rules={"costs_of": rules.job},
)
