"""Every outcome of every draw: how the kit turns randomness into sums.

What is tested takes all its randomness from an ``AbstractChance``. Here that object
replays a script of outcomes and notes which others were possible, so that running an
experiment until no script is left visits every outcome once, with its exact weight in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from treespec.chance import NO_TOKEN, AbstractChance
from treespec.testing.failure import ConformanceError

Outcome = TypeVar("Outcome")


class ScriptedChance(AbstractChance):
    """Replays the outcomes of a script, then takes the first possible one each time.

    Attributes:
        weight: Probability of everything that happened so far.
        taken: The outcomes so far: the script that leads here again.
        untried: Scripts that lead to the outcomes passed over.
    """

    def __init__(self, script: tuple[int, ...]) -> None:
        self.weight = 1.0
        self.untried: list[tuple[int, ...]] = []
        self._script = script
        self.taken: tuple[int, ...] = ()

    def accepts(self, probability: Tensor | float) -> bool:
        """Return the scripted outcome: false is 0, true is 1."""
        # As a uniform is compared with it: 0/0 is no reason to accept.
        accepted = min(1.0, float(probability)) if probability > 0 else 0.0
        return bool(self._choose([1 - accepted, accepted]))

    def draw(self, probs: Tensor) -> Tensor:
        """Return the scripted token of every row."""
        if probs.dim() == 1:
            return torch.tensor(self._choose(probs.tolist()))
        rows = probs.reshape(-1, probs.shape[-1]).tolist()
        return torch.tensor([self._choose(row) for row in rows]).view(probs.shape[:-1])

    def draw_without_replacement(self, probs: Tensor, num_draws: int) -> Tensor:
        """Return the scripted tokens of every row, drawn one after the other."""
        return torch.stack([self._draw_in_turn(row, num_draws) for row in probs])

    def _draw_in_turn(self, law: Tensor, num_draws: int) -> Tensor:
        tokens = torch.full((num_draws,), NO_TOKEN)
        for place in range(num_draws):
            if law.sum() <= 0:
                break
            tokens[place] = self._choose((law / law.sum()).tolist())
            law = law.index_fill(0, tokens[place], 0.0)
        return tokens

    def _choose(self, weights: list[float]) -> int:
        total = sum(weights)
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        if not possible or any(map(math.isnan, weights)):
            raise ConformanceError(
                f"a draw was asked from weights that are no law: {weights}; a residual "
                "without mass is rounding and means to accept, and NaN must raise "
                "NumericalError"
            )
        if len(self.taken) < len(self._script):
            choice = self._script[len(self.taken)]
            if choice not in possible:
                raise ConformanceError(
                    "the same draws led to another question, so there is state or "
                    "randomness outside of chance; take every draw from chance"
                )
        else:
            choice, *others = possible
            self.untried += [(*self.taken, other) for other in others]
        self.taken += (choice,)
        self.weight *= weights[choice] / total
        return choice


def replays(
    experiment: Callable[[AbstractChance], Outcome],
) -> Iterator[tuple[ScriptedChance, Outcome]]:
    """Yield every outcome of an experiment with the chance that led to it.

    Args:
        experiment: Takes all its randomness from the chance that it is given, so that
            the same script leads to the same outcome.
    """
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        chance = ScriptedChance(scripts.pop())
        outcome = experiment(chance)
        scripts += chance.untried
        yield chance, outcome


def outcomes(
    experiment: Callable[[AbstractChance], Outcome],
) -> Iterator[tuple[float, Outcome]]:
    """Yield every outcome of an experiment with its probability."""
    for chance, outcome in replays(experiment):
        yield chance.weight, outcome
