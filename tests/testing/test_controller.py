"""Controllers that keep their contract pass, and each way to break it is found."""

import random
import sys
from dataclasses import dataclass, field, replace

import pytest

from treespec.controllers import (
    AbstractController,
    AdaptiveDepth,
    Bandit,
    Constant,
    HeuristicDepth,
    OffSwitch,
)
from treespec.testing import ConformanceError, check_controller
from treespec.types import OFF, Budget

BUDGETS = [[0, 1, 0], [2, 2, 3], [4, 2, 8]]


@dataclass
class Steps(AbstractController):
    """One deeper after a step that kept all, one less deep after any other.

    Its faults are subclasses, each with one method changed.
    """

    most: int = 4

    @property
    def largest(self):
        return Budget(self.most, 2, 6)

    def init(self):
        return 1

    def budget(self, state):
        return replace(self.largest, max_depth=state)

    def observe(self, state, record):
        kept_all = record.num_accepted == record.depth
        return max(0, min(self.most, state + (1 if kept_all else -1)))


@pytest.mark.parametrize(
    "controller",
    [
        Constant(4, 2, 6),
        Constant(0),
        Constant(3, 2, 0),
        Steps(),
        AdaptiveDepth(max_width=2),
        AdaptiveDepth(max_nodes=5, rate=1.0),
        HeuristicDepth(),
        Bandit(BUDGETS),
        Bandit(BUDGETS, step_costs=[1.0, 1.2, 1.5]),
        OffSwitch(Constant(4, 2, 6)),
        OffSwitch(AdaptiveDepth(), plain_s=0.01),
        OffSwitch(OffSwitch(Bandit(BUDGETS))),
    ],
    ids=repr,
)
def test_controllers_that_keep_their_contract_pass(controller) -> None:
    report = check_controller(controller)
    assert report.num_stories == 8
    assert report.num_texts == 4
    name = type(controller).__name__
    assert str(report).startswith(f"{name}: {report.num_steps} steps in 8 stories")


class NoLimit(Steps):
    """Public case 45: buffers were sized by the first budget, not by the largest."""

    def observe(self, state, record):
        return state + 1 if record.num_accepted else max(0, state - 1)


class TooWide(Steps):
    def budget(self, state):
        return Budget(1, 3, 6)


@dataclass
class OnItself(Steps):
    depth: int = 1

    def budget(self, state):
        return Budget(self.depth, 2, 6)

    def observe(self, state, record):
        self.depth = super().observe(self.depth, record)


@dataclass
class Counts(Steps):
    seen: list[int] = field(default_factory=list)

    def observe(self, state, record):
        self.seen.append(record.num_accepted)
        return super().observe(state, record)


class ChangesItsState(Steps):
    def init(self):
        return [1]

    def budget(self, state):
        return super().budget(state[0])

    def observe(self, state, record):
        state[0] = super().observe(state[0], record)
        return state


class CountsQuestions(Steps):
    """Right whenever it is asked once per step, as a decoder does."""

    def init(self):
        return [0]

    def budget(self, state):
        state[0] += 1
        return self.largest

    def observe(self, state, record):
        return [*state]


class LooksElsewhere(Steps):
    """Decides by what no record has: how deep the decoder's call stack is."""

    def budget(self, state):
        above = sys._getframe(1).f_code.co_name
        return replace(self.largest, max_depth=1 if above == "_plan" else 2)


class Poisoned(Steps):
    """Public case 45: NaN seconds must not poison a moving average."""

    def init(self):
        return 1.0

    def budget(self, state):
        return super().budget(round(min(state, 4)))

    def observe(self, state, record):
        return 0.5 * state + 0.5 * record.step_s


class DividesByTime(Steps):
    def observe(self, state, record):
        return 1 if 1 / record.step_s > 0 else 0


class DividesByNodes(Steps):
    def observe(self, state, record):
        return round(record.num_accepted / record.num_nodes)


class TakesTheLastKind(Steps):
    def observe(self, state, record):
        return 1 if record.next_kind.startswith("bonus") else 0


class MindsTheLimit(Steps):
    """Public case 45: the last steps of a text have a smaller budget than asked for."""

    def observe(self, state, record):
        assert record.max_depth == state
        return state


class KnowsOneSource(Steps):
    """Right in every story, but a decoder's drafters have names of their own."""

    def observe(self, state, record):
        names = {"draft_model": 1}
        return max([names[name] for name in record.accepted_sources], default=1)


class Moody(Steps):
    def budget(self, state):
        return Budget(round(random.Random().random() * 4), 2, 6)


class Gambles(Steps):
    def budget(self, state):
        return Budget(random.randrange(4), 2, 6)


class NoLargest(Steps):
    @property
    def largest(self):
        raise LookupError("forgotten")


class NoBudget(Steps):
    def budget(self, state):
        return state


class TooSmallAPromise(Steps):
    @property
    def largest(self):
        return OFF

    def budget(self, state):
        return replace(OFF, max_depth=state)


@pytest.mark.parametrize(
    ("faulty", "says"),
    [
        (NoLimit, "its budget has max_depth=5, but its largest has 4"),
        (TooWide, "its budget has max_width=3, but its largest has 2"),
        (TooSmallAPromise, "its budget has max_depth=1, but its largest has 0"),
        (OnItself, "told of the same steps again, it gave"),
        (Counts, "Counts changes its own object when it is used"),
        (CountsQuestions, "budget changes the state that it is asked about"),
        (LooksElsewhere, "replaying the records of a text gives"),
        (ChangesItsState, "observe must return a new state"),
        (Poisoned, "budget (steps whose seconds are NaN"),
        (DividesByTime, "raised ZeroDivisionError"),
        (DividesByNodes, "raised ZeroDivisionError"),
        (TakesTheLastKind, "raised AttributeError"),
        (MindsTheLimit, "(steps that the remaining length limited, after step 0)"),
        (KnowsOneSource, "decoding with PromptLookup raised KeyError"),
        (Moody, "nothing may be drawn at random"),
        (Gambles, "Gambles draws random numbers, which it must not"),
        (NoLargest, "raised LookupError: forgotten (test_controller.py:"),
        (NoBudget, "budget must be a Budget, got 1"),
        (object, "wants an AbstractController, got a object"),
    ],
)
def test_a_faulty_controller_is_found(faulty, says: str) -> None:
    with pytest.raises(ConformanceError) as found:
        check_controller(faulty())
    assert says in str(found.value).splitlines()[0]


def test_the_error_says_after_which_steps() -> None:
    with pytest.raises(ConformanceError) as found:
        check_controller(NoLimit())
    first, case = str(found.value).splitlines()
    assert first.startswith("NoLimit: its budget"), "its kind is told by the shell"
    assert case == ("  50 steps that accept all, then 50 that reject all, after step 3")
