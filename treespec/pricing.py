"""Seconds by the cost profile: of recorded steps, and of an all-knowing drafter.

Measured times hold the noise of the machine. Where plans and bounds are compared with
runs, the same profile prices both, so that what is left is the difference of decisions.

The prefill yields the first token, so a text of ``num_tokens`` new tokens leaves
``num_tokens - 1`` to decode. A step that verifies k right tokens commits k + 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate

from treespec.costs import Costs
from treespec.types import GenerationResult, StepRecord

_NUM_UNREAD = 2
"""After a chain that was accepted whole: its last token, and the bonus token."""


def priced_s(costs: Costs, result: GenerationResult) -> float:
    """Return the seconds that decoding a text takes by the profile.

    The first draft forward of a step reads the tokens that were unread. The following
    ones are taken to read a layer of the verified tree each, and one row where there
    is none: what was drafted and pruned is not in the records.
    """
    return sum(_step_s(costs, step, length) for step, length in _lengths(result))


def planned_s(costs: Costs, result: GenerationResult) -> float | None:
    """Return the seconds that the policy expected the steps to take.

    A step without a forecast, such as one whose budget was zero, is priced. ``None`` if
    no step has a forecast.
    """
    if all(step.expected_s is None for step in result.steps):
        return None
    return sum(
        _step_s(costs, step, length) if step.expected_s is None else step.expected_s
        for step, length in _lengths(result)
    )


def free_draft_s(costs: Costs, num_prompt_tokens: int, num_tokens: int) -> float:
    """Return the least seconds of a text whose right drafts cost nothing.

    No strategy is faster by this profile: every draft is the target's own next token,
    and the text is split into forwards in the best way.
    """
    first, num_decoded = num_prompt_tokens + 1, max(num_tokens - 1, 0)
    best = [0.0] + [math.inf] * num_decoded
    for start in range(num_decoded):
        for end in range(start + 1, num_decoded + 1):
            verify_s = _verify_s(costs, end - start, first + start)
            best[end] = min(best[end], best[start] + verify_s)
    return best[num_decoded]


def chain_draft_s(
    costs: Costs, num_prompt_tokens: int, num_tokens: int, context: int | None = None
) -> float:
    """Return the least seconds of a text whose right drafts a draft model writes.

    As ``free_draft_s``, but k drafts cost k forwards of the draft model, and its first
    one reads the text so far. It need not be used at all. A drafter that needs no
    model may be faster than this.

    Args:
        costs: The cost profile.
        num_prompt_tokens: Tokens of the prompt.
        num_tokens: New tokens, the first one included.
        context: Most tokens of the text that the draft model reads; ``None``: all.
    """

    def draft_s(num_rows: int, length: int) -> float:
        return costs.draft(
            num_rows, length if context is None else min(length, context)
        )

    first, num_decoded = num_prompt_tokens + 1, max(num_tokens - 1, 0)
    lengths = range(first, first + num_decoded)
    # Of a forward of one row, summed over the positions before each.
    sums = list(accumulate((draft_s(1, n) for n in lengths), initial=0.0))
    unopened = [0.0] + [math.inf] * num_decoded
    opened = [math.inf] * (num_decoded + 1)
    for start in range(num_decoded):
        length = first + start
        plain_s = _verify_s(costs, 1, length)
        unopened[start + 1] = unopened[start] + plain_s
        opened[start + 1] = min(opened[start + 1], opened[start] + plain_s)
        catching_up = opened[start] + draft_s(_NUM_UNREAD, length - _NUM_UNREAD)
        num_read = length if context is None else min(length, context)
        before = min(catching_up, unopened[start] + draft_s(num_read, 0))
        for end in range(start + 2, num_decoded + 1):
            # The step's drafts are all of its tokens but the last.
            chain_s = sums[end - 1] - sums[start + 1]
            took_s = before + chain_s + _verify_s(costs, end - start, length)
            opened[end] = min(opened[end], took_s)
    return min(unopened[num_decoded], opened[num_decoded])


def _lengths(result: GenerationResult) -> Iterator[tuple[StepRecord, int]]:
    """Return the steps, each with the number of committed tokens before it."""
    length = len(result.prompt_tokens) + 1
    for step in result.steps:
        yield step, length
        length += step.num_committed


def _verify_s(costs: Costs, num_rows: int, length: int) -> float:
    return costs.target(num_rows, length) + costs.step_s


def _step_s(costs: Costs, step: StepRecord, length: int) -> float:
    seconds = _verify_s(costs, 1 + step.num_nodes, length)
    num_forwards = step.num_draft_forwards
    if num_forwards:
        num_unread = max(step.num_unread, 1)
        seconds += costs.draft(num_unread, max(length - num_unread, 0))
    for place in range(num_forwards - 1):
        width = step.nodes_by_depth[place] if place < step.depth else 1
        seconds += costs.draft(width, length + 1 + place)
    return seconds
