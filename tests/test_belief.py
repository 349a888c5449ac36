"""What the drafter says, what the target accepts, and what is learned of the two."""

import json
import math
import random
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.outcomes import make_step
from tests.strategies import repeatable
from treespec.belief import Belief, BeliefMemory
from treespec.reliability import expected_calibration_error
from treespec.types import StepRecord

SOURCE = "draft_model"


def judged(*nodes, index=0, forwards=1) -> StepRecord:
    """A step that judged nodes: source, probability, rank, depth, accepted."""
    sources, probs, ranks, depths, accepted = zip(*nodes, strict=True)
    return make_step(
        sum(accepted),
        (1,) * max(depths),
        index,
        num_draft_forwards=forwards,
        judged_sources=sources,
        judged_probs=probs,
        judged_ranks=ranks,
        judged_depths=depths,
        judged_accepted=accepted,
    )


def taught(chance_of, num_steps: int, belief: Belief, seed: int = 0) -> Belief:
    """A belief after steps that judged one child of the root."""
    rng = random.Random(seed)
    for index in range(num_steps):
        prob = rng.random()
        accepted = rng.random() < chance_of(prob)
        belief = belief.observe(judged((SOURCE, prob, 0, 1, accepted), index=index))
    return belief


@pytest.mark.parametrize(
    "chance_of", [lambda p: p, lambda p: p**3, lambda p: 0.2 + 0.5 * p, lambda p: 0.0]
)
def test_chances_come_close_to_what_is_accepted(chance_of) -> None:
    belief = taught(chance_of, 2000, Belief())
    for prob in (0.1, 0.3, 0.5, 0.7, 0.9):
        found = belief.chance(SOURCE, prob, 0)
        assert found == pytest.approx(chance_of(prob), abs=0.13)


def test_a_drafter_that_is_too_sure_is_seen_through_within_a_few_dozen_nodes() -> None:
    belief = Belief()
    assert belief.chance(SOURCE, 0.95, 0) > 0.85
    belief = taught(lambda p: 0.1, 60, belief)
    assert belief.chance(SOURCE, 0.95, 0) < 0.6


def test_what_has_changed_is_forgotten() -> None:
    belief = taught(lambda p: 0.05, 1500, Belief())
    belief = taught(lambda p: 0.9, 800, belief, seed=1)
    assert belief.chance(SOURCE, 0.5, 0) > 0.7


@repeatable
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), st.booleans()), max_size=40),
    st.booleans(),
)
def test_a_likelier_node_is_never_believed_to_be_less_likely(nodes, drawn) -> None:
    belief = Belief(drawn)
    for index, (prob, rank, accepted) in enumerate(nodes):
        belief = belief.observe(judged((SOURCE, prob, rank, 1, accepted), index=index))
    for rank in range(4):
        line = [belief.chance(SOURCE, x / 200, rank) for x in range(201)]
        assert line == sorted(line)
        assert line[0] > 0
        assert line[-1] < 1


@pytest.mark.parametrize("prob", [math.nan, 0.0, -1.0, 1.0, 1.5, math.inf])
def test_what_is_no_probability_does_no_harm(prob: float) -> None:
    belief = Belief().observe(judged((SOURCE, prob, 0, 1, True)))
    assert 0 < belief.chance(SOURCE, prob, 0) < 1
    assert 0 < belief.chance(SOURCE, 0.5, 0) < 1


def test_sources_and_ranks_are_told_apart() -> None:
    belief = taught(lambda p: 0.0, 200, Belief())
    for source, rank in ((SOURCE, 1), ("prompt_lookup", 0), ("another", 0)):
        assert belief.chance(source, 0.8, rank) == Belief().chance(source, 0.8, rank)


def test_records_give_the_belief_again_and_it_is_json() -> None:
    records = [
        judged((SOURCE, 0.7, 0, 1, True), ("prompt_lookup", 0.4, 0, 2, False), index=i)
        for i in range(5)
    ]
    beliefs = []
    for _ in range(2):
        belief = Belief()
        for record in records:
            belief = belief.observe(json.loads(json.dumps(asdict(record))) and record)
        beliefs.append(belief)
    assert beliefs[0] == beliefs[1]
    assert json.loads(json.dumps(asdict(beliefs[0])))


def test_a_source_that_answered_without_a_forward_is_free() -> None:
    belief = Belief()
    assert belief.is_free("prompt_lookup_2")
    assert not belief.is_free("mine")
    assert belief.observe(judged(("mine", 0.5, 0, 1, True), forwards=0)).is_free("mine")
    kept = belief.observe(judged(("mine", 0.5, 0, 1, True), forwards=1))
    assert not kept.is_free("mine")


def test_answers_that_were_not_worth_verifying_count_as_well() -> None:
    """Only verified nodes are judged: the model would look better than it is."""
    belief = Belief()
    for index in range(8):
        step = make_step(0, (), index, num_draft_forwards=1, num_candidates=4)
        belief = belief.observe(step)
    assert belief.flow.root.value < 0.3
    assert Belief().flow.root.value > 0.6


def test_a_memory_teaches_the_next_request() -> None:
    memory = BeliefMemory()
    assert memory.start(drawn=False) == Belief()
    rng = random.Random(0)
    for index in range(300):
        record = judged((SOURCE, rng.random(), 0, 1, False), index=index)
        memory.add(record, drawn=False)
    warm = memory.start(drawn=False)
    assert warm.chance(SOURCE, 0.9, 0) < 0.3
    assert warm.flow.root.value < Belief().flow.root.value
    # What is learned of one kind of children says nothing of the other.
    assert memory.start(drawn=True) == Belief(drawn=True)
    assert memory.start(drawn=False) == warm


def test_a_memory_is_only_a_prior() -> None:
    memory = BeliefMemory()
    for index in range(2000):
        memory.add(judged((SOURCE, 0.9, 0, 1, False), index=index), drawn=False)
    belief = memory.start(drawn=False)
    for index in range(150):
        belief = belief.observe(judged((SOURCE, 0.9, 0, 1, True), index=index))
    assert belief.chance(SOURCE, 0.9, 0) > 0.6


def test_calibration_is_better_than_the_drafters_own_word() -> None:
    rng, belief, own, learned = random.Random(3), Belief(), [], []
    for index in range(400):
        prob = rng.random()
        accepted = rng.random() < prob**4
        record = judged((SOURCE, prob, 0, 1, accepted), index=index)
        own.append(record)
        chance = belief.chance(SOURCE, prob, 0)
        learned.append(replace(record, judged_probs=(chance,)))
        belief = belief.observe(record)
    errors = [expected_calibration_error(records) for records in (own, learned)]
    assert errors[0] is not None
    assert errors[1] is not None
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("source", ["prompt_lookup", "token_recycling"])
def test_that_a_copy_was_sure_to_be_drawn_says_little(source: str) -> None:
    """A lookup that names one token draws it for certain; nine were once hoped for."""
    assert Belief(drawn=True).chance(source, 1.0, 0) < 0.75
    assert Belief(drawn=False).chance(source, 0.99, 0) > 0.8
