"""``treespec calibrate``: from a comb to a tree, and the file in between."""

import json
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from treespec import timings
from treespec.acceptance import (
    AbstractAcceptanceRule,
    RejectionWithoutReplacement,
    SampleAndMatch,
)
from treespec.calibrate import count
from treespec.calibration import Calibration
from treespec.controllers import Constant
from treespec.costs import Costs
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftModel
from treespec.errors import TreespecError
from treespec.policies import calibrated_tree, comb_tree, optimal_tree
from treespec.sampling import Sampling
from treespec.sinks.reader import Run
from treespec.testing.toys import constant_model, table_model
from treespec.types import ProposalKind, StepRecord
from treespec.verifiers import TreeAttention

VOCAB_SIZE = 4
TARGET = constant_model(0.5, 0.3, 0.2, 0.0)
DRAFT = constant_model(0.1, 0.2, 0.3, 0.4)
WITHOUT = ProposalKind.WITHOUT_REPLACEMENT


def comb_decoder(
    proposal: ProposalKind, rule: AbstractAcceptanceRule, num_ranks: int = 3
) -> SpeculativeDecoder:
    comb = comb_tree(num_ranks, 2, proposal)
    return SpeculativeDecoder(
        target=table_model(TARGET, VOCAB_SIZE),
        drafter=DraftModel(table_model(DRAFT, VOCAB_SIZE)),
        policy=comb,
        acceptance=rule,
        verifier=TreeAttention(),
        controller=Constant(2, num_ranks, comb.shape.num_nodes),
    )


def counted(decoder: SpeculativeDecoder, num_tokens: int) -> Calibration:
    shape = decoder.policy.shape
    results = decoder.generate([[0, 1]] * 8, Sampling(1.0), num_tokens // 8, seed=5)
    records = [record for result in results for record in result.steps]
    return Calibration(*count(records, shape.max_children, shape.depth))


def assert_measured(
    calibration: Calibration, wanted: tuple[float, ...], depths: int
) -> None:
    """Within four standard deviations, pooled and at every depth."""
    rows = [(calibration.acceptance, sum(calibration.reached))]
    rows += list(
        zip(calibration.acceptance_by_depth, calibration.reached, strict=True)
    )[:depths]
    for row, num_reached in rows:
        assert num_reached > 50
        for found, probability in zip(row, wanted, strict=True):
            deviation = (probability * (1 - probability) / num_reached) ** 0.5
            assert found == pytest.approx(probability, abs=4 * deviation + 1e-9)


def test_deterministic_ranks_are_accepted_as_often_as_the_target_draws_them() -> None:
    """The draft's likeliest are tokens 3, 2, 1; the target draws these with 0, .2, .3.

    Rank 0 is never accepted, so nothing is known of depth 2.
    """
    calibration = counted(
        comb_decoder(ProposalKind.DETERMINISTIC, SampleAndMatch()), 700
    )
    assert_measured(calibration, (0.0, 0.2, 0.3), depths=1)
    assert calibration.reached[1] == 0
    assert calibration.acceptance_by_depth[1] == calibration.acceptance


def test_drawn_ranks_are_accepted_as_often_as_enumeration_says() -> None:
    """1/2, 143/210, 684/875 within one, two, three draws without replacement."""
    calibration = counted(comb_decoder(WITHOUT, RejectionWithoutReplacement()), 800)
    within = (1 / 2, 143 / 210, 684 / 875)
    each = (within[0], within[1] - within[0], within[2] - within[1])
    assert_measured(calibration, each, depths=2)


@cache
def any_record() -> StepRecord:
    decoder = comb_decoder(WITHOUT, RejectionWithoutReplacement())
    (result,) = decoder.generate([[0, 1]], Sampling(1.0), 4, seed=1)
    return result.steps[0]


def record(
    ranks: tuple[int, ...], *, max_depth: int = 3, cut: bool = False
) -> StepRecord:
    return replace(
        any_record(),
        accepted_ranks=ranks,
        max_depth=max_depth,
        next_kind=None if cut else "recovered",
    )


@pytest.mark.parametrize(
    ("given", "reached", "hits"),
    [
        (record(()), (1, 0, 0), set()),
        (record((0,)), (1, 1, 0), {(0, 0)}),
        (record((1,)), (1, 0, 0), {(0, 1)}),
        (record((0, 2)), (1, 1, 0), {(0, 0), (1, 2)}),
        (record((0, 0, 1)), (1, 1, 1), {(0, 0), (1, 0), (2, 1)}),
        (record((0,), max_depth=1), (1, 0, 0), {(0, 0)}),
        (record((), max_depth=0), (0, 0, 0), set()),
        (record((0,), cut=True), (1, 0, 0), {(0, 0)}),
        (record((), cut=True), (0, 0, 0), set()),
    ],
)
def test_a_depth_is_reached_through_first_children_only(
    given: StepRecord, reached: tuple[int, ...], hits: set[tuple[int, int]]
) -> None:
    found = count([given], 3, 3)
    assert found[0] == reached
    assert {
        (depth, rank)
        for depth, row in enumerate(found[1])
        for rank, number in enumerate(row)
        if number
    } == hits


KNOWN = Calibration(
    reached=(100, 40),
    accepted=((40, 20, 10), (10, 10, 0)),
    costs=Costs.through({1: 1.0, 2: 1.0, 5: 1.2, 9: 3.0}, {1: 0.01, 4: 0.04}),
    about={"num_steps": 100},
)


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    for calibration in (KNOWN, replace(KNOWN, costs=None)):
        calibration.write(tmp_path / "c.json")
        assert Calibration.read(tmp_path / "c.json") == calibration
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


def test_acceptance_is_pooled_or_by_depth() -> None:
    assert KNOWN.acceptance == pytest.approx((50 / 140, 30 / 140, 10 / 140))
    assert KNOWN.acceptance_by_depth == ((0.4, 0.2, 0.1), (0.25, 0.25, 0.0))


@pytest.fixture
def file(tmp_path: Path) -> str:
    KNOWN.write(tmp_path / "calibration.json")
    return str(tmp_path / "calibration.json")


def test_medusas_tree_takes_accuracies_by_depth(file: str) -> None:
    policy = calibrated_tree(file, 5)
    # .4, .2, .1 at depth 1; .1, .1 below the first, .05, .05 below the second.
    assert policy.shape.paths == ((0,), (1,), (2,), (0, 0), (0, 1))


def test_sequoias_tree_takes_pooled_acceptance_and_may_be_deeper(file: str) -> None:
    policy = optimal_tree(file, 9, proposal=WITHOUT)
    assert policy.proposal is WITHOUT
    assert (0, 0, 0) in policy.shape.paths
    assert policy.shape.num_nodes == 9


def test_without_a_number_of_nodes_measured_times_choose_it(file: str) -> None:
    """Four nodes cost hardly more than none, eight cost three forwards."""
    assert optimal_tree(file).shape.num_nodes == 4


assert KNOWN.costs is not None
KNOWN_COSTS = KNOWN.costs.to_json()
GOOD = {
    "schema": 2, "reached": [4], "accepted": [[2, 1]], "costs": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, r"cannot be read: No such file"),
        ("{", r"not JSON"),
        ("[]", r"must hold one JSON object"),
        ("{}", r"has schema None, but this version of treespec reads schema 2"),
        (GOOD | {"schema": 1}, r"has schema 1"),
        (GOOD | {"reached": 4}, r"is no calibration"),
        (GOOD | {"accepted": [[5, 1]]}, r"at most as many as were reached"),
        (GOOD | {"accepted": [[]]}, r"the same number of ranks"),
        (GOOD | {"reached": [4, 2]}, r"both must have the same"),
        (GOOD | {"reached": [0], "accepted": [[0, 0]]}, r"no step was measured"),
        (GOOD | {"costs": {"schema": 9}}, r"costs have schema 9"),
        (GOOD | {"costs": KNOWN_COSTS | {"step_s": -1}}, r"step_s must be finite"),
        (GOOD | {"costs": 3}, r"costs must be an object, got 3"),
        ({k: v for k, v in GOOD.items() if k != "costs"}, r"is no calibration"),
    ],
)
@pytest.mark.parametrize("tree", [calibrated_tree, optimal_tree])
def test_a_file_that_is_no_calibration_is_refused(
    tmp_path: Path, content: object, told: str, tree
) -> None:
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TreespecError) as refused:
        tree(str(path), 4)
    message = str(refused.value)
    assert re.match(r"policy\.calibration: .*" + told, message)
    assert message.endswith("write it anew with treespec calibrate")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: calibrated_tree(None, 4), r"policy\.calibration must be a file"),
        (lambda: optimal_tree(3), r"policy\.calibration must be a file"),
    ],
)
def test_a_calibration_must_be_named(make, told: str) -> None:
    with pytest.raises(TreespecError, match=told):
        make()


def test_too_few_ranks_are_told(file: str) -> None:
    with pytest.raises(TreespecError, match=r"num_nodes is 13, but .*enough for 12"):
        calibrated_tree(file, 13)


def test_without_costs_a_number_of_nodes_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    replace(KNOWN, costs=None).write(path)
    with pytest.raises(TreespecError, match=r"give policy\.num_nodes=N"):
        optimal_tree(str(path))


@pytest.fixture
def arguments(tiny_files, monkeypatch) -> list[str]:
    monkeypatch.setattr(timings, "ROWS", (1, 2, 4, 8))
    monkeypatch.setattr(timings, "COARSE_ROWS", (1, 2, 4, 8))
    monkeypatch.setattr(timings, "MOST_TURNS", 2)
    monkeypatch.setattr(timings, "NUM_STEPS", 2)
    return [
        *tiny_files.overrides,
        "drafter=draft_model",
        f"pair.draft.path={tiny_files.draft}",
    ]


def test_what_calibrate_prints_to_type_next_decodes_with_the_best_tree(
    command, arguments, read_runs
) -> None:
    ended = command(
        "calibrate", *arguments, "policy.num_ranks=3", "policy.depth=2", tiny=False
    )
    assert (ended.code, ended.errors) == (0, [])
    assert "acceptance by rank" in ended.out
    assert "rows or nodes  target ms  draft ms" in ended.out
    *_, path, following = ended.out.splitlines()
    calibration = Calibration.read(Path(path))
    assert (calibration.depth, calibration.num_ranks) == (2, 3)
    assert calibration.about["config"]["policy"]["num_ranks"] == 3
    assert read_runs() == []  # a calibration is no run

    words = shlex.split(following.removeprefix("next: "))
    assert words[0] == "treespec"
    assert "policy=optimal_tree" in words
    ended = command(*words[1:], tiny=False)
    assert (ended.code, ended.errors) == (0, [])
    (run,) = read_runs()
    assert isinstance(run, Run)
    assert run.config["policy"]["calibration"] == str(Path(path).absolute())


def test_a_sampled_rule_is_calibrated_with_drawn_children(
    command, arguments, read_runs
) -> None:
    sampled = [
        "sampling=temperature",
        "acceptance=rejection_without_replacement",
    ]
    ended = command(
        "calibrate", *arguments, *sampled, "policy.proposal=without_replacement",
        tiny=False,
    )  # fmt: skip
    assert ended.code == 0
    *_, path, following = ended.out.splitlines()
    assert "policy.proposal=without_replacement" in following
    big = ["controller.max_width=4", "controller.max_nodes=8"]
    ended = command(
        *arguments, *sampled, *big, "policy=calibrated_tree", "policy.num_nodes=8",
        f"policy.calibration={path}", "policy.proposal=without_replacement",
        tiny=False,
    )  # fmt: skip
    assert (ended.code, ended.errors) == (0, [])
    assert len(read_runs()) == 1


def test_another_content_of_the_same_file_is_another_run(
    command, arguments, read_runs, tmp_path
) -> None:
    """Else the tree of an old calibration would pass for that of the new one."""
    tree = ["policy=calibrated_tree", "policy.num_nodes=3", "policy.calibration=c.json"]
    for calibration in (KNOWN, replace(KNOWN, accepted=((9, 8, 7), (6, 5, 4)))):
        calibration.write(tmp_path / "c.json")
        assert command(*arguments, *tree, "num_prompts=1", tiny=False).code == 0
    assert len(read_runs()) == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("policy=chain", "measures with policy=comb_tree, got Chain"),
        ("policy=static_tree policy.widths=[2,2]", "measures with policy=comb_tree"),
        (
            "policy.num_ranks=0",
            "policy.num_ranks must be an integer >= 1 and at most 64, got 0",
        ),
        ("policy.proposal=x", "Available: deterministic, with_replacement"),
        ("policy.top_k=2", "unknown key policy.top_k"),
        (
            "policy.proposal=without_replacement acceptance=k_seq sampling=temperature",
            "without_replacement",
        ),
    ],
)
def test_what_cannot_be_calibrated_is_told(command, arguments, given, told) -> None:
    ended = command("calibrate", *arguments, *given.split(), tiny=False)
    assert ended.code == 2
    (error,) = ended.errors
    assert told in error


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("policy=optimal_tree", "policy.calibration is missing"),
        (
            "policy=optimal_tree policy.calibration=no.json",
            "policy.calibration: ",
        ),
        ("policy=static_tree", "policy needs either policy.widths"),
        ("policy=static_tree policy.paths=[[1]]", r"policy.paths has [1] without [0]"),
        ("policy=static_tree policy.widths=[2] policy.proposal=y", "policy.proposal=y"),
        ("policy=geometric_tree policy.ratio=0.9", "policy.first must be at most"),
        ("policy=geometric_tree policy.ratio=x", "policy.ratio must be in (0, 1)"),
        ("policy=geometric_tree policy.max_children=x", "policy.max_children"),
    ],
)
def test_what_is_no_static_tree_is_told(command, given, told) -> None:
    ended = command(*given.split())
    assert ended.code == 2
    (error,) = ended.errors
    assert told in error


@pytest.mark.parametrize(
    "given",
    [
        "policy=static_tree policy.paths=[[0],[1],[0,0]]",
        "policy=static_tree policy.widths=[2,1]",
        "policy=geometric_tree",
    ],
)
def test_static_trees_decode(command, given, read_runs) -> None:
    ended = command(*given.split(), "num_prompts=1", "controller.max_width=8")
    assert (ended.code, ended.errors) == (0, [])
    assert len(read_runs()) == 1
