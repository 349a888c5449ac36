"""Steps along a text that is known: what speculation would have done if it came out.

No model is run. For prompt lookup the walk is exact: what it drafts depends on nothing
but the text. For a draft model it follows from the probabilities with which its token
is accepted at each place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from treespec.costs import Costs
from treespec.drafters.prompt_lookup import PromptLookup, blend
from treespec.drafters.suffix_automaton import SuffixAutomaton
from treespec.errors import TreespecError, require_integer
from treespec.stats import Floats


@dataclass(frozen=True, slots=True)
class Written:
    """A text, and what of it the target would write.

    The prefill yields the first written token, so the steps begin behind it.

    Attributes:
        tokens: The whole text.
        start: Place of the first written token.
    """

    tokens: tuple[int, ...]
    start: int

    def __post_init__(self) -> None:
        """Check the place."""
        if not 0 <= self.start < len(self.tokens):
            raise TreespecError(
                f"start must be a place in the text, 0 to {len(self.tokens) - 1}, "
                f"got {self.start}"
            )

    @property
    def num_decoded(self) -> int:
        """Tokens that steps commit: all that are written but the first."""
        return len(self.tokens) - self.start - 1


@dataclass(frozen=True, slots=True)
class WalkStep:
    """A step that may begin at some place.

    Attributes:
        length: Committed tokens before it.
        weight: Probability that a step begins there.
        num_drafted: Tokens that it drafts.
        num_accepted: How many of them are accepted, on average.
    """

    length: int
    weight: float
    num_drafted: int
    num_accepted: float


@dataclass(frozen=True, slots=True)
class Walk:
    """All steps along one text.

    Attributes:
        written: The text.
        steps: The steps, in its order.
        runs_model: Whether each drafted token costs a forward of the draft model, the
            first of which reads the prompt.
    """

    written: Written
    steps: tuple[WalkStep, ...]
    runs_model: bool

    @property
    def num_steps(self) -> float:
        """Steps on average."""
        return sum(step.weight for step in self.steps)

    @property
    def num_accepted(self) -> float:
        """Accepted tokens on average, those of all steps together."""
        return sum(step.weight * step.num_accepted for step in self.steps)


def lookup_walk(written: Written, lookup: PromptLookup, depth: int) -> Walk:
    """Return the steps of prompt lookup in chains, as the decoder would take them.

    Raises:
        TreespecError: The depth is below 1.
    """
    require_integer("depth", depth, 1)
    tokens, length = written.tokens, written.start + 1
    index = SuffixAutomaton(lookup.max_ngram)
    index.extend(tokens[:length])
    steps = []
    while length < len(tokens):
        most = min(depth, len(tokens) - length - 1)
        guesses = _copied(index, lookup, most)
        num_right = _num_right(guesses, tokens[length:])
        steps.append(WalkStep(length, 1.0, len(guesses), num_right))
        index.extend(tokens[length : length + num_right + 1])
        length += num_right + 1
    return Walk(written, tuple(steps), runs_model=False)


def _copied(index: SuffixAutomaton, lookup: PromptLookup, most: int) -> list[int]:
    """Return the likeliest continuation of the indexed text, at most so long."""
    match, guesses = index.end, list[int]()
    while len(guesses) < most:
        contexts = index.contexts(match, lookup.min_ngram)
        candidates = blend(contexts, lookup.max_candidates)
        if not candidates:
            break
        guesses.append(candidates[0][0])
        match = index.follow(match, guesses[-1])
    return guesses


def _num_right(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    for place, (guess, token) in enumerate(zip(guesses, tokens, strict=False)):
        if guess != token:
            return place
    return len(guesses)


def chain_walk(written: Written, acceptance: Sequence[float], depth: int) -> Walk:
    """Return the steps of a draft model's chains, weighted by their probability.

    Args:
        written: The text.
        acceptance: For each written token the probability that what is drafted in its
            place is accepted.  # [W]
        depth: Tokens of a chain.

    Raises:
        TreespecError: The depth is below 1, or there is not one number per token.
    """
    require_integer("depth", depth, 1)
    tokens, start = written.tokens, written.start
    if len(acceptance) != len(tokens) - start:
        raise TreespecError(
            f"acceptance must have a number per written token, {len(tokens) - start}, "
            f"got {len(acceptance)}"
        )
    weights = [0.0] * (len(tokens) + 1)
    weights[min(start + 1, len(tokens))] = 1.0
    steps = []
    for length in range(start + 1, len(tokens)):
        weight = weights[length]
        if not weight:
            continue
        most = min(depth, len(tokens) - length - 1)
        arrives = [1.0]
        for place in range(length, length + most):
            arrives.append(arrives[-1] * acceptance[place - start])
        for num_right, (here, further) in enumerate(pairwise([*arrives, 0.0])):
            weights[length + num_right + 1] += weight * (here - further)
        steps.append(WalkStep(length, weight, most, sum(arrives[1:])))
    return Walk(written, tuple(steps), runs_model=True)


def block_seconds(costs: Costs, walk: Walk, block: int) -> list[list[float]]:
    """Return the seconds of plain decoding and of the walk, block by block.

    Args:
        costs: What forwards cost.
        walk: The steps.
        block: Tokens of a block; the last one may be shorter.

    Returns:
        A row per block: plain seconds, the walk's seconds.  # [B, 2]
    """
    first = walk.written.start + 1
    num_blocks = -(-walk.written.num_decoded // block)
    rows = [[0.0, 0.0] for _ in range(num_blocks)]
    for length in range(first, len(walk.written.tokens)):
        rows[(length - first) // block][0] += costs.target(1, length) + costs.step_s
    for step in walk.steps:
        seconds = costs.target(1 + step.num_drafted, step.length) + costs.step_s
        if walk.runs_model and step.num_drafted:
            # Before the first step the draft model has read nothing.
            num_read, before = (first, 0) if step.length == first else (1, step.length)
            seconds += costs.draft(num_read, before)
            seconds += (step.num_drafted - 1) * costs.draft(1, step.length)
        rows[(step.length - first) // block][1] += step.weight * seconds
    return rows


def pooled_speedup(sums: Floats) -> Floats:
    """Return plain seconds over the walk's, from sums of ``block_seconds``."""
    ratio: Floats = sums[..., 0] / sums[..., 1]
    return ratio
