"""Does a controller keep its contract?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from treespec.acceptance import Greedy
from treespec.controllers import AbstractController, replay
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftModel, PromptLookup
from treespec.policies import TopKTree
from treespec.testing.controller_cases import STORIES, Event
from treespec.testing.failure import ConformanceError, reported
from treespec.testing.purity import leaves_alone, snapshot
from treespec.testing.toys import random_model, table_model
from treespec.types import Budget, StepRecord
from treespec.verifiers import TreeAttention


@dataclass(frozen=True, slots=True)
class ControllerReport:
    """What was played to a controller that passed; ``str`` makes it one line.

    Attributes:
        controller: Its name.
        largest: Its largest budget.
        num_stories: Sequences of steps that it was told of.
        num_steps: Steps in them.
        num_texts: Texts that were those of plain decoding.
    """

    controller: str
    largest: Budget
    num_stories: int
    num_steps: int
    num_texts: int

    def __str__(self) -> str:
        return (
            f"{self.controller}: {self.num_steps} steps in {self.num_stories} stories, "
            f"every budget within depth {self.largest.max_depth}, width "
            f"{self.largest.max_width}, {self.largest.max_nodes} nodes; "
            f"{self.num_texts} texts as without it"
        )


def check_controller(controller: AbstractController[Any]) -> ControllerReport:
    """Refuse a controller that breaks its contract.

    It is told of steps: all accepted and all rejected, cut ones and empty ones, some
    that took no time, or NaN seconds. Every budget must lie within ``largest``; the
    same steps must give the same budgets, and an old state the old budget, because what
    it remembers is in the state that it returns. Then texts are decoded with it: they
    must be those of plain greedy decoding.

    Returns:
        What was played; ``print`` it.

    Raises:
        ConformanceError: Tells what is wrong, and after which steps.
    """
    if not isinstance(controller, AbstractController):
        raise ConformanceError(
            "check_controller wants an AbstractController, got a "
            f"{type(controller).__name__}; derive from "
            "treespec.controllers.AbstractController"
        )
    name, draws = type(controller).__name__, "draws random numbers, which it must not"
    with reported(controller), leaves_alone(name, controller, draws):
        for story, events in STORIES.items():
            _check_story(controller, story, events)
        return ControllerReport(
            controller=name,
            largest=controller.largest,
            num_stories=len(STORIES),
            num_steps=sum(map(len, STORIES.values())),
            num_texts=_check_texts(controller),
        )


@dataclass(frozen=True, slots=True)
class _Telling:
    """One pass through a story.

    Attributes:
        states: States before each step, and after the last one.
        budgets: The budget that each state gave.
        records: What was observed.
    """

    states: list[Any]
    budgets: list[Budget]
    records: list[StepRecord]


def _check_story(
    controller: AbstractController[Any], story: str, events: Sequence[Event]
) -> None:
    first, second = (_tell(controller, story, events) for _ in range(2))
    if first.budgets != second.budgets:
        step = _first_difference(first.budgets, second.budgets)
        raise _failure(
            controller,
            f"told of the same steps again, it gave {second.budgets[step]} where it "
            f"had given {first.budgets[step]}; what it remembers must be in its state, "
            "and nothing may be drawn at random",
            f"{story}, before step {step}",
        )
    for step, (state, budget) in enumerate(
        zip(first.states, first.budgets, strict=True)
    ):
        again = _budget(controller, state, story)
        if again != budget:
            raise _failure(
                controller,
                f"the state before step {step} gave {budget} at first, and {again} "
                "after later steps; observe must return a new state and leave the old "
                "one as it was, and nothing may be drawn at random",
                story,
            )
    for step, record in enumerate(first.records):
        with reported(controller, "observe"):
            state = controller.observe(first.states[step], record)
        if _budget(controller, state, story) != first.budgets[step + 1]:
            raise _failure(
                controller,
                "an old state that observes its step again gives another budget than "
                "the first time; what it remembers must be in its state, and nothing "
                "may be drawn at random",
                f"{story}, step {step}",
            )


def _tell(
    controller: AbstractController[Any], story: str, events: Sequence[Event]
) -> _Telling:
    with reported(controller, "init"):
        states = [controller.init()]
    budgets = [_budget(controller, states[0], story)]
    records = []
    for step, event in enumerate(events):
        where = f"{story}, after step {step}"
        records.append(event.record(step, budgets[-1]))
        with reported(controller, f"observe ({where})"):
            states.append(controller.observe(states[-1], records[-1]))
        budgets.append(_budget(controller, states[-1], where))
    return _Telling(states, budgets, records)


def _budget(controller: AbstractController[Any], state: Any, where: str) -> Budget:
    """Return the budget that a state gives, once it is within the largest."""
    before = snapshot(state)
    with reported(controller, f"budget ({where})"):
        budget, largest = controller.budget(state), controller.largest
    if snapshot(state) != before:
        raise _failure(
            controller,
            "budget changes the state that it is asked about; only observe returns "
            "another one",
            where,
        )
    for name, value in (("budget", budget), ("largest", largest)):
        if not isinstance(value, Budget):
            raise _failure(controller, f"{name} must be a Budget, got {value!r}", where)
    for key in ("max_depth", "max_width", "max_nodes"):
        given, most = getattr(budget, key), getattr(largest, key)
        if given > most:
            raise _failure(
                controller,
                f"its budget has {key}={given}, but its largest has {most}; caches are "
                "sized by largest, so no budget may exceed it",
                where,
            )
    return budget


def _check_texts(controller: AbstractController[Any]) -> int:
    """Return how many texts were those of plain decoding.

    Raises:
        ConformanceError: One was not.
    """
    num_texts = 0
    model = random_model(6, seed=1)
    for drafter in (DraftModel(table_model(model, 6)), PromptLookup()):
        decoder = SpeculativeDecoder(
            table_model(model, 6),
            drafter,
            TopKTree(2),
            Greedy(),
            TreeAttention(),
            controller,
        )
        prompts = [[1, 2, 1, 2, 1], [3]]
        plain = decoder.autoregressive().generate(prompts, max_new_tokens=30)
        with reported(controller, f"decoding with {type(drafter).__name__}"):
            results = decoder.generate(prompts, max_new_tokens=30)
        for result, expected in zip(results, plain, strict=True):
            if result.tokens != expected.tokens:
                raise _failure(
                    controller,
                    "the greedy text is not that of plain decoding",
                    f"prompt {list(result.prompt_tokens)}\n"
                    f"  plain {list(expected.tokens)}\n"
                    f"  got   {list(result.tokens)}",
                )
            _check_replay(controller, result.steps)
        num_texts += len(prompts)
    return num_texts


def _check_replay(
    controller: AbstractController[Any], records: Sequence[StepRecord]
) -> None:
    """Refuse a controller whose budgets do not follow from the records."""
    budgets = replay(controller, records)
    for record, budget in zip(records, budgets, strict=True):
        had = Budget(record.max_depth, record.max_width, record.max_nodes)
        most_depth = had.max_depth
        if record.budget_by != "limit":
            most_depth = budget.max_depth
        if replace(budget, max_depth=min(budget.max_depth, most_depth)) != had:
            raise _failure(
                controller,
                f"replaying the records of a text gives {budget} where the step had "
                f"{had}; budgets must follow from records alone",
                f"step {record.step} of a text of {len(records)}",
            )


def _first_difference(one: Sequence[Budget], other: Sequence[Budget]) -> int:
    pairs = zip(one, other, strict=True)
    return next(step for step, (a, b) in enumerate(pairs) if a != b)


def _failure(
    controller: AbstractController[Any], says: str, case: str
) -> ConformanceError:
    name = type(controller).__name__
    return ConformanceError(f"{name}: {says}\n  {case}")
