"""A walk along a known text is what the decoder does when the target writes it."""

import random

import numpy as np
import pytest

from treespec.acceptance import Greedy
from treespec.closed_form import tokens_per_forward
from treespec.controllers import Constant
from treespec.costs import Costs
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import PromptLookup
from treespec.errors import TreespecError
from treespec.models.table import TableModel
from treespec.policies import Chain
from treespec.pricing import priced_s
from treespec.types import GenerationResult
from treespec.verifiers import TreeAttention
from treespec.walk import (
    Written,
    block_seconds,
    chain_walk,
    lookup_walk,
    pooled_speedup,
)

NUM_TOKENS = 6
COSTS = Costs.through({1: 1.0, 9: 1.8}, {1: 0.3}, step_s=0.01)


def repetitive(length: int, seed: int) -> tuple[int, ...]:
    generator = random.Random(seed)
    phrases = [[generator.randrange(NUM_TOKENS) for _ in range(4)] for _ in range(3)]
    tokens = [token for _ in range(length) for token in generator.choice(phrases)]
    return tuple(tokens[:length])


def decoded(written: Written, lookup: PromptLookup, depth: int) -> GenerationResult:
    """Decode with a target that writes the text, whatever it is given to read."""
    tokens = written.tokens

    def table(text: tuple[int, ...]) -> list[float]:
        wanted = tokens[len(text)] if len(text) < len(tokens) else 0
        return [float(token == wanted) for token in range(NUM_TOKENS)]

    decoder = SpeculativeDecoder(
        target=TableModel(table, NUM_TOKENS),
        drafter=lookup,
        policy=Chain(),
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=Constant(max_depth=depth, max_width=1, max_nodes=depth),
    )
    prompt = list(tokens[: written.start])
    (result,) = decoder.generate([prompt], max_new_tokens=len(tokens) - written.start)
    assert result.tokens == tokens[written.start :]
    return result


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_the_walk_of_lookup_is_step_by_step_that_of_the_decoder(
    depth: int, seed: int
) -> None:
    written, lookup = Written(repetitive(120, seed), 20), PromptLookup()
    steps = decoded(written, lookup, depth).steps
    walk = lookup_walk(written, lookup, depth)
    assert [(s.num_nodes, s.num_accepted) for s in steps] == [
        (s.num_drafted, s.num_accepted) for s in walk.steps
    ]


def test_its_seconds_are_those_of_the_decoder_by_the_same_costs() -> None:
    written, lookup = Written(repetitive(120, 4), 20), PromptLookup()
    result = decoded(written, lookup, 3)
    rows = np.array(block_seconds(COSTS, lookup_walk(written, lookup, 3), 32))
    plain = sum(COSTS.target(1, n) + 0.01 for n in range(21, 120))
    assert len(rows) == 4
    assert rows.sum(axis=0) == pytest.approx([plain, priced_s(COSTS, result)])
    assert float(pooled_speedup(rows.sum(axis=0))) > 1


def test_the_draft_models_reading_of_the_prompt_is_charged() -> None:
    """Left out, five tokens behind a prompt of 400 looked worth a draft model."""
    costs = Costs.through({1: 1.0, 9: 1.1}, {1: 0.1, 400: 8.0})
    short, long = (Written(tuple(range(400 + n)), 400) for n in (5, 100))
    for written, num_steps in ((short, 1), (long, 20)):
        walk = chain_walk(written, [1.0] * (len(written.tokens) - 400), 4)
        rows = np.array(block_seconds(costs, walk, 128))
        assert len(walk.steps) == num_steps
        drafted = sum(step.num_drafted for step in walk.steps) - 1
        verified = sum(costs.target(1 + step.num_drafted) for step in walk.steps)
        assert rows[:, 1].sum() == pytest.approx(
            costs.draft(401) + 0.1 * drafted + verified
        )


def test_a_steady_acceptance_gives_the_closed_form() -> None:
    written = Written(tuple(range(4000)), 0)
    walk = chain_walk(written, [0.7] * 4000, 5)
    per_step = written.num_decoded / walk.num_steps
    assert per_step == pytest.approx(tokens_per_forward(0.7, 5), rel=1e-2)
    assert 1 + walk.num_accepted / walk.num_steps == pytest.approx(per_step, rel=1e-2)


def test_a_sure_acceptance_takes_the_fewest_steps_and_none_takes_all() -> None:
    written = Written(tuple(range(22)), 1)
    assert chain_walk(written, [1.0] * 21, 4).num_steps == 4
    assert chain_walk(written, [0.0] * 21, 4).num_steps == written.num_decoded


def test_a_place_outside_of_the_text_is_refused() -> None:
    with pytest.raises(TreespecError, match="start must be a place in the text"):
        Written((1, 2), 2)
    with pytest.raises(TreespecError, match="a number per written token, 1, got 2"):
        chain_walk(Written((1, 2), 1), [0.5, 0.5], 3)
