"""Does a real decoder write texts by the target's law? By counting, with known error.

Where laws cannot be enumerated, many texts are sampled with fixed seeds and the joint
law of their first tokens is held against the target's own, which plain forwards give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from treespec.decoder import SpeculativeDecoder
from treespec.errors import TreespecError, require_integer
from treespec.intake import Prompt
from treespec.sampling import Sampling
from treespec.testing.cells import CellLaw, Text, target_law
from treespec.testing.drawing import table
from treespec.testing.failure import ConformanceError, told
from treespec.types import GenerationResult, ProposalKind

LEAST_EXPECTED = 5
"""Cells that expect fewer texts are pooled: the chi-square law would not hold."""
LEAST_RECOVERED = 0.2
"""In fewer rounds the residual, which is what goes wrong, is hardly tried."""
NUM_WORST = 5


@dataclass(frozen=True, slots=True)
class LawReport:
    """How well counted texts fit the target's law.

    Attributes:
        num_texts: Texts that were sampled, all batches together.
        num_cells: Cells of the test, pooled ones included.
        p_value: The smallest one of all batches.
        threshold: The p-value below which the decoder would have failed.
        total_variation: Distance between the counted law and the target's, over cells.
        recovered_share: Share of the rounds with a drafted node that ended with a
            recovered token.
        vacuous: Whether children were drawn, and too few rounds rejected one.
    """

    num_texts: int
    num_cells: int
    p_value: float
    threshold: float
    total_variation: float
    recovered_share: float
    vacuous: bool

    def __str__(self) -> str:
        """Return the report in one line."""
        warning = "; VACUOUS: use a draft that agrees less" if self.vacuous else ""
        return (
            f"{self.num_texts} texts in {self.num_cells} cells: smallest p-value "
            f"{self.p_value:.3g} (fails below {self.threshold:.2g}), total variation "
            f"{self.total_variation:.3f}, {self.recovered_share:.0%} of the rounds "
            f"ended with a recovered token{warning}"
        )


def check_decoder(
    decoder: SpeculativeDecoder,
    prompt: Prompt,
    sampling: Sampling,
    num_tokens: int = 3,
    num_texts: int = 2000,
    num_batches: int = 3,
    false_alarm: float = 1e-4,
) -> LawReport:
    """Refuse a decoder whose sampled texts do not follow the target's law.

    The joint law of the first tokens is tested by a chi-square test per batch. A right
    decoder fails with probability ``false_alarm`` at most (Bonferroni over the
    batches), up to the chi-square approximation: with cells that expect as few as 5
    texts its tail may be a few times heavier. Seeds are
    fixed: the same check has the same result. Of large vocabularies only texts that
    carry mass are looked at, all others share cells.

    Takes one forward of the target for each text whose next token is looked at: up to
    ``num_texts / 5`` texts of every length below ``num_tokens``, 801 by default. Then
    ``num_texts * num_batches`` texts are decoded, ``decoder.max_concurrent`` in a
    forward, each in up to ``num_tokens + max_depth`` forwards of the target: 5250 at
    most by default with 8 at once and a depth of 4, beside those of a draft model.

    Args:
        decoder: The decoder, with its real parts.
        prompt: A text or token ids.
        sampling: Its sampling, at a temperature above 0: there texts can be compared.
        num_tokens: How many of the first new tokens are compared. More are decoded,
            so that trees get their full depth.
        num_texts: Texts per batch.
        num_batches: Batches, each with seeds of its own.
        false_alarm: Most probable failure of a right decoder, the whole check together.

    Returns:
        The p-value, the distance, and whether rejections were tried at all.

    Raises:
        ConformanceError: The law is another one; shows the worst cells. Or a part of
            the decoder raised an error.
        TreespecError: An argument is impossible.
    """
    if sampling.greedy:
        raise TreespecError(
            "check_decoder counts samples, so sampling.temperature must be above 0, "
            f"got {sampling.temperature}; at temperature 0 compare the tokens of "
            "decoder.generate with those of decoder.autoregressive().generate"
        )
    for name, value in (("num_tokens", num_tokens), ("num_batches", num_batches)):
        require_integer(name, value, 1)
    require_integer("num_texts", num_texts, 2 * LEAST_EXPECTED)
    if not 0 < false_alarm < 1:
        raise TreespecError(f"false_alarm must be in (0, 1), got {false_alarm!r}")
    length = num_tokens + decoder.controller.largest.max_depth
    law = target_law(decoder, prompt, sampling, num_tokens, LEAST_EXPECTED / num_texts)
    results: list[GenerationResult] = []
    p_values = []
    for batch in range(num_batches):
        seeds = [batch * num_texts + place for place in range(num_texts)]
        drawn = _generate(decoder, [prompt] * num_texts, sampling, length, seeds)
        texts = [result.tokens[:num_tokens] for result in drawn]
        _check_possible(decoder, texts, law)
        p_values.append(_p_value(Counter(map(law.cell, texts)), law))
        results += drawn
    counts = Counter(law.cell(result.tokens[:num_tokens]) for result in results)
    report = _report(
        decoder, results, counts, law, min(p_values), false_alarm / num_batches
    )
    if report.p_value < report.threshold:
        raise ConformanceError(
            f"the decoder ({_parts(decoder)}) does not follow the target's law: "
            f"{report}\n{_worst_cells(decoder, counts, law)}"
        )
    return report


def _generate(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    length: int,
    seeds: Sequence[int],
) -> list[GenerationResult]:
    """Decode; an error of a part, other than the user's, becomes the kit's."""
    try:
        return decoder.generate(prompts, sampling, length, seeds)
    except TreespecError:
        raise
    except Exception as error:
        raise ConformanceError(
            f"the decoder ({_parts(decoder)}) raised {told(error)}"
        ) from error


def _check_possible(
    decoder: SpeculativeDecoder, texts: Sequence[Text], law: CellLaw
) -> None:
    """Refuse a text that the target never writes: no count is too small for that."""
    for text in texts:
        if not law.allows(text):
            raise ConformanceError(
                f"the decoder ({_parts(decoder)}) wrote what the target never writes "
                f"under this sampling: {_shown(decoder, text)}"
            )


def _pooled(
    counts: Mapping[Text, int], law: CellLaw
) -> tuple[list[float], list[float]]:
    """Return what was counted and what was expected, cells of too few texts pooled."""
    num_texts = sum(counts.values())
    observed, expected = [], []
    rest_observed, rest_expected = 0.0, 0.0
    for cell, prob in sorted(law.cells.items(), key=lambda item: -item[1]):
        if num_texts * prob >= LEAST_EXPECTED:
            observed.append(float(counts[cell]))
            expected.append(num_texts * prob)
        else:
            rest_observed += counts[cell]
            rest_expected += num_texts * prob
    if rest_expected >= LEAST_EXPECTED or not expected:
        observed.append(rest_observed)
        expected.append(rest_expected)
    else:
        observed[-1] += rest_observed
        expected[-1] += rest_expected
    return observed, expected


def _p_value(counts: Mapping[Text, int], law: CellLaw) -> float:
    """Return the p-value of Pearson's chi-square test."""
    observed, expected = (
        torch.tensor(column).double() for column in _pooled(counts, law)
    )
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = expected.shape[0] - 1
    if freedom == 0:
        return 1.0
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, statistic / 2))


def _report(
    decoder: SpeculativeDecoder,
    results: Sequence[GenerationResult],
    counts: Mapping[Text, int],
    law: CellLaw,
    p_value: float,
    threshold: float,
) -> LawReport:
    observed, expected = _pooled(counts, law)
    pairs = zip(observed, expected, strict=True)
    rounds = [step for r in results for step in r.steps if step.num_nodes]
    num_recovered = sum(step.next_kind == "recovered" for step in rounds)
    recovered_share = num_recovered / max(len(rounds), 1)
    is_drawn = decoder.policy.proposal is not ProposalKind.DETERMINISTIC
    return LawReport(
        num_texts=len(results),
        num_cells=len(expected),
        p_value=p_value,
        threshold=threshold,
        total_variation=sum(abs(o - e) for o, e in pairs) / 2 / len(results),
        recovered_share=recovered_share,
        vacuous=is_drawn and recovered_share < LEAST_RECOVERED,
    )


def _worst_cells(
    decoder: SpeculativeDecoder, counts: Mapping[Text, int], law: CellLaw
) -> str:
    """Return the cells that count and law disagree about most, one a line."""
    num_texts = sum(counts.values())

    def excess(cell: Text) -> float:
        expected = num_texts * law.cells[cell]
        return (counts[cell] - expected) ** 2 / max(expected, 1.0)

    worst = sorted(law.cells, key=excess, reverse=True)[:NUM_WORST]
    rows = [["text", "expected", "seen"]]
    for cell in worst:
        more = "" if cell in law.whole else " + another token"
        expected = f"{num_texts * law.cells[cell]:.1f}"
        rows.append([f"{_shown(decoder, cell)}{more}", expected, str(counts[cell])])
    return table(rows)


def _shown(decoder: SpeculativeDecoder, text: Text) -> str:
    """Return the ids of a text, and the tokens themselves if there is a tokenizer."""
    if decoder.tokenizer is None:
        return str(list(text))
    tokens = [decoder.tokenizer.decode([token]) for token in text]
    return f"{list(text)} {tokens}"


def _parts(decoder: SpeculativeDecoder) -> str:
    parts = (decoder.drafter, decoder.policy, decoder.acceptance, decoder.verifier)
    return ", ".join(type(part).__name__ for part in parts)
