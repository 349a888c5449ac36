"""Is a rule's law the target's? And if not, where is it wrong?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from treespec.acceptance import AbstractAcceptanceRule
from treespec.testing.drawing import describe, digits, draw_tree, row
from treespec.testing.failure import ConformanceError
from treespec.testing.fingerprints import hint
from treespec.testing.laws import (
    Law,
    Round,
    autoregressive_law,
    continued_law,
    distance,
    output_law,
    rounds,
)
from treespec.testing.rule_cases import RuleCase
from treespec.testing.toys import Text


def measure(rule: AbstractAcceptanceRule, case: RuleCase) -> float:
    """Return how far the rule's law is from the target's."""
    return distance(_law(rule, case), _wanted(case))


def check_law(rule: AbstractAcceptanceRule, case: RuleCase) -> float:
    """Return the deviation of a case.

    Raises:
        ConformanceError: It is more than rounding, or the rule wrote a text that the
            target never writes, however rarely.
    """
    law, wanted = _law(rule, case), _wanted(case)
    deviation = distance(law, wanted)
    if deviation > case.tolerance or _impossible(law, wanted):
        fault = _first_fault(law, wanted, case.tolerance)
        raise ConformanceError(_message(rule, case, fault))
    return deviation


def _impossible(law: Law, wanted: Law) -> list[Text]:
    """Return the texts that a rule writes, but the target never."""
    return [text for text, prob in law.items() if prob > 0 and not wanted.get(text)]


def _law(rule: AbstractAcceptanceRule, case: RuleCase) -> Law:
    if case.rounds:
        return output_law(rule, case.setting, case.text, case.length)
    played = rounds(rule, case.setting, case.text)
    return continued_law(case.setting, case.text, played, case.length)


def _wanted(case: RuleCase) -> Law:
    return autoregressive_law(case.setting, case.text, case.length)


@dataclass(frozen=True, slots=True)
class Fault:
    """The first token whose law is wrong.

    Attributes:
        before: The new tokens before it.
        token: The token whose probability is furthest off.
        got: The law of that token, given the tokens before.
        wanted: The target's.
    """

    before: Text
    token: int
    got: list[float]
    wanted: list[float]

    @property
    def deviation(self) -> float:
        """How far the token's probability is off."""
        return abs(self.got[self.token] - self.wanted[self.token])


def _first_fault(law: Law, wanted: Law, tolerance: float) -> Fault:
    length = len(next(iter(wanted)))
    for count in range(1, length + 1):
        got, want = _marginal(law, count), _marginal(wanted, count)
        text = max(want, key=lambda text: abs(got[text] - want[text]))
        if abs(got[text] - want[text]) > tolerance / length:
            break
        impossible = _impossible(got, want)
        if impossible:
            text = impossible[0]
            break
    before = text[:-1]
    vocab_size = len(_marginal(wanted, 1))
    return Fault(
        before,
        text[-1],
        _conditional(law, before, vocab_size),
        _conditional(wanted, before, vocab_size),
    )


def _marginal(law: Law, count: int) -> defaultdict[Text, float]:
    marginal: defaultdict[Text, float] = defaultdict(float)
    for text, prob in law.items():
        marginal[text[:count]] += prob
    return marginal


def _conditional(law: Law, before: Text, vocab_size: int) -> list[float]:
    joint = _marginal(law, len(before) + 1)
    mass = _marginal(law, len(before))[before]
    return [joint[(*before, token)] / mass for token in range(vocab_size)]


def _message(rule: AbstractAcceptanceRule, case: RuleCase, fault: Fault) -> str:
    setting, text = case.setting, case.text + fault.before
    num_digits = digits(fault.deviation)
    got, wanted = (
        f"{law[fault.token]:.{num_digits}f}" for law in (fault.got, fault.wanted)
    )
    lines = [
        f"{rule.name} is not lossless for {setting.proposal} children: after the text "
        f"{list(text)} token {fault.token} has probability {got}, wanted {wanted}, "
        f"deviation {fault.deviation:.1e}",
        f"smallest case: {case.name}; children by depth {list(setting.widths)}, "
        f"{setting.vocab_size} tokens, {describe(setting.sampling)}",
        f"  wanted {row(fault.wanted, num_digits)}",
        f"  got    {row(fault.got, num_digits)}",
    ]
    mistake = hint(rule, setting.proposal, fault.deviation)
    if mistake:
        lines.append(f"this looks as if {mistake}")
    outcome = _example(fault, rounds(rule, setting, case.text))
    laws = setting.sampling.probs(setting.verify(outcome.tree, case.text))
    lines += [
        f"a tree of this case after {list(case.text)}, where {list(outcome.committed)} "
        "was committed:",
        draw_tree(outcome.tree, laws.tolist()),
    ]
    return "\n".join(lines)


def _example(fault: Fault, played: Iterable[tuple[float, Round]]) -> Round:
    """Return the likeliest outcome that has to do with the fault."""
    wrong = (*fault.before, fault.token)

    def relevance(outcome: tuple[float, Round]) -> tuple[bool, bool, float]:
        weight, one = outcome
        start = one.committed[: len(wrong)]
        return (start == wrong, start == wrong[: len(start)], weight)

    return max(played, key=relevance)[1]
