import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Ended, TinyFiles
from treespec.acceptance import Greedy
from treespec.agreement import read_both
from treespec.controllers import Constant
from treespec.costs import Costs
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftModel
from treespec.errors import TreespecError
from treespec.feasibility import DRAFT_MODEL, LOOKUP, given_costs, judge
from treespec.models.table import TableModel
from treespec.policies import Chain
from treespec.sampling import Sampling
from treespec.testing.toys import random_model, table_model
from treespec.verifiers import TreeAttention
from treespec.walk import Written, chain_walk

CHEAP = given_costs(draft_ratio=0.3, row_ratio=0.02)
PHRASE = [5, 3, 8, 1, 9, 2, 7, 4]


def noise(length: int, seed: int) -> Written:
    generator = random.Random(seed)
    return Written(tuple(generator.randrange(10_000) for _ in range(length)), 1)


def test_a_text_that_repeats_itself_pays() -> None:
    found = judge([Written(tuple(PHRASE * 30), 1)], CHEAP)
    assert found.best.source == LOOKUP
    assert found.best.depth == 8
    assert found.verdict.startswith("pays: about ")
    assert found.verdict.endswith("with prompt lookup, 8 tokens")


def test_noise_does_not_pay() -> None:
    found = judge([noise(200, seed) for seed in range(6)], CHEAP)
    assert all(p.accepted_per_step < 0.05 for p in found.predictions)
    assert found.verdict.startswith("does not pay: about ")


def test_what_repeats_does_not_pay_either_where_rows_cost_in_full() -> None:
    dear = given_costs(draft_ratio=0.3, row_ratio=1.5)
    assert "does not pay" in judge([Written(tuple(PHRASE * 30), 1)], dear).verdict


def test_a_text_that_is_too_short_gets_no_interval() -> None:
    found = judge([Written(tuple(PHRASE * 8), 1)], CHEAP)
    assert found.best.interval is None
    assert "too little text for an interval" in found.verdict


def test_pieces_of_one_text_are_no_texts_of_their_own() -> None:
    """Turns of one conversation are alike, and once made the interval too narrow."""
    kinds = [PHRASE * 8, list(range(20, 84)), PHRASE * 4 + list(range(90, 122))]
    texts = [Written(tuple(kinds[s % 3]), 1) for s in range(6) for _ in range(4)]
    sources = [f"text {s}" for s in range(6) for _ in range(4)]
    apart = judge(texts, CHEAP).best.interval
    together = judge(texts, CHEAP, sources=sources).best.interval
    assert apart is not None
    assert together is not None
    assert together.high - together.low > 1.5 * (apart.high - apart.low)


def test_the_error_of_the_costs_makes_the_interval_wider() -> None:
    texts = [
        Written(tuple(PHRASE * 5 + list(range(20, 20 + 9 * s))), 1) for s in range(6)
    ]
    curve = CHEAP.target_curve
    rough = type(curve)(curve.rows, curve.seconds, error=0.2)
    wide = judge(texts, Costs(rough, CHEAP.draft_curve)).predictions[0].interval
    narrow = judge(texts, CHEAP).predictions[0].interval
    assert wide is not None
    assert narrow is not None
    assert wide.low < 0.9 * narrow.low
    assert wide.high > 1.1 * narrow.high


def test_a_draft_model_is_judged_by_how_it_follows_the_target() -> None:
    target = table_model(random_model(8, 0), 8)
    other = table_model(random_model(8, 1), 8)
    generator = random.Random(5)
    text = Written(tuple(generator.randrange(8) for _ in range(60)), 4)
    same = read_both(target, target, text, Sampling())
    assert same.acceptance == (1.0,) * 56
    apart = read_both(target, other, text, Sampling())
    assert 0 < sum(apart.acceptance) < 40
    best = judge([text], CHEAP, [same]).best
    assert best.source == DRAFT_MODEL
    assert best.speedup > judge([text], CHEAP, [apart]).best.speedup


def test_a_text_that_the_target_wrote_is_its_own_choice_token_by_token() -> None:
    toy = random_model(8, 3)
    tokens = [1, 4]
    while len(tokens) < 40:
        tokens.append(int(torch.as_tensor(toy(tuple(tokens))).argmax()))
    target, draft = table_model(toy, 8), table_model(random_model(8, 4), 8)
    read = read_both(target, draft, Written(tuple(tokens), 2), Sampling())
    assert read.is_target_choice == (True,) * 38
    assert not all(read.acceptance)


def test_on_the_targets_own_text_the_chains_are_those_of_the_decoder() -> None:
    target, draft = (table_model(random_model(8, seed), 8) for seed in (3, 4))
    decoder = SpeculativeDecoder(
        target=target,
        drafter=DraftModel(draft),
        policy=Chain(),
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=Constant(max_depth=3, max_width=1, max_nodes=3),
    )
    (result,) = decoder.generate([[1, 4]], max_new_tokens=60)
    written = Written((1, 4, *result.tokens), 2)
    read = read_both(target, draft, written, Sampling())
    walk = chain_walk(written, read.acceptance, 3)
    assert [(s.num_nodes, s.num_accepted) for s in result.steps] == [
        (s.num_drafted, s.num_accepted) for s in walk.steps
    ]
    assert walk.num_accepted > 5


def test_at_a_temperature_acceptance_is_the_overlap_of_both_laws() -> None:
    laws = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]).log().tolist()
    target, draft = (TableModel(lambda _, law=law: law, 3) for law in laws)
    sampling = Sampling(temperature=1.0)
    read = read_both(target, draft, Written((0, 1, 0), 1), sampling)
    assert read.acceptance == pytest.approx([0.2 + 0.3 + 0.2] * 2)
    assert read.draft_entropy == pytest.approx([1.4855] * 2, abs=1e-4)
    assert read.is_target_choice == (False, True)


def test_ratios_out_of_bounds_are_refused() -> None:
    with pytest.raises(TreespecError, match="draft_ratio must be a finite number > 0"):
        given_costs(0, 0)
    with pytest.raises(TreespecError, match="row_ratio must be a finite number >= 0"):
        given_costs(1, -0.1)


Command = Callable[..., Ended]


def test_the_command_judges_texts_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the same line again and again\n" * 60)
    ended = command("feasibility", "a.txt", "row_ratio=0.01", tiny=False)
    assert ended.code == 0, ended.err
    assert "each further row of the target 0.01" in ended.out
    assert "these are assumptions, of which the intervals know nothing" in ended.out
    assert ended.out.startswith("1 text, ")
    assert "they say nothing of other texts" in ended.out
    assert "bits per byte" in ended.out
    assert ended.out.splitlines()[-1].startswith("pays: about ")
    ended = command("feasibility", "a.txt", "row_ratio=2", tiny=False)
    assert ended.out.splitlines()[-1].startswith("does not pay: about ")


def test_the_command_lets_a_pair_read_the_texts(
    command: Command, tiny_files: TinyFiles, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("where is the sea and where is the harbour " * 9)
    CHEAP.write(tmp_path / "costs.json")
    draft = f"pair.draft.path={tiny_files.draft}"
    ended = command("a.txt", "costs=costs.json", draft, verb="feasibility")
    assert ended.code == 0, ended.err
    assert "draft model, 8 " in ended.out
    assert "% of the tokens are the target's first choice" in ended.out
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "feasibility needs a file"),
        (["none.txt"], "none.txt does not exist"),
        (["a.txt", "row_ratio=x"], "row_ratio must be a number, got 'x'"),
        (["a.txt", "num_texts=0"], "num_texts must be an integer >= 1, got 0"),
        (["a.txt", "costs=none.json"], "none.json: cannot be read: No such file"),
        (["a.txt", "costs=b", "row_ratio=1"], "row_ratio does not go with costs=FILE"),
        (["a.txt", "pair=smollm2", "row_ratio=1"], "row_ratio does not go with a pair"),
        (["a.txt", "pair=non"], "unknown pair=non"),
    ],
)
def test_mistakes_of_the_command_are_told_in_a_line(
    command: Command, tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "a.txt").write_text("the same line again and again\n" * 60)
    ended = command("feasibility", *arguments, tiny=False)
    assert ended.code == 2
    assert len(ended.errors) == 1
    assert words in ended.errors[0]
