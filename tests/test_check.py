"""``treespec check``: the conformance kit from the shell."""

import pytest

from treespec.acceptance import Greedy, KSeq
from treespec.conformance import _check_pair, named_parts
from treespec.errors import IncompatiblePartsError
from treespec.policies import SampledTree, TopKTree
from treespec.types import ProposalKind
from treespec.verbs import custom_parts

RULE = """
from dataclasses import dataclass
from treespec.acceptance import ChainSpeculative
from treespec.errors import NumericalError

@dataclass(frozen=True)
class Shifted(ChainSpeculative):
    x: int = 0

    def accept(self, tree, target_logits, sampling, chance):
        return super().accept(tree, target_logits + self.x, sampling, chance)

@dataclass(frozen=True)
class Biased(ChainSpeculative):
    def accept(self, tree, target_logits, sampling, chance):
        return super().accept(tree, 2 * target_logits, sampling, chance)

@dataclass(frozen=True)
class Strict(ChainSpeculative):
    def accept(self, tree, target_logits, sampling, chance):
        if not target_logits.isfinite().all():
            raise NumericalError("no number")
        return super().accept(tree, target_logits, sampling, chance)

@dataclass(frozen=True)
class Lawless(ChainSpeculative):
    def accept(self, tree, target_logits, sampling, chance):
        chance.draw(0 * target_logits[0])
        return super().accept(tree, target_logits, sampling, chance)
"""


def test_a_named_part_is_checked_and_reported(command):
    ended = command("check", "controller=constant", tiny=False)
    assert (ended.code, ended.err) == (0, "")
    first, report = ended.out.splitlines()
    assert first == "ok controller Constant"
    assert report.startswith("Constant: 266 steps in 8 stories, every budget within")


def test_a_rule_of_the_user_is_checked_with_its_own_keys(command, tmp_path):
    (tmp_path / "kept_rules.py").write_text(RULE)
    ended = command(
        "check", "acceptance._target_=kept_rules.Shifted", "+acceptance.x=3",
        tiny=False,
    )  # fmt: skip
    assert (ended.code, ended.errors) == (0, [])
    first, report, *_ = ended.out.splitlines()
    assert first == "ok acceptance Shifted"
    assert report.startswith("Shifted: lossless; ")


def test_a_rule_that_is_biased_fails_and_shows_a_case(command, tmp_path):
    (tmp_path / "biased_rules.py").write_text(RULE)
    ended = command(
        "check", "acceptance._target_=biased_rules.Biased", "controller=off", tiny=False
    )
    assert ended.code == 1
    assert len(ended.errors) == 1
    assert ended.errors[0].startswith("error: acceptance: Biased")
    assert len(ended.err.splitlines()) > 3
    assert ended.out.startswith("ok controller Constant\n"), (
        "the others are checked all the same"
    )


WRAPPER = """
from dataclasses import dataclass
from treespec.acceptance import AbstractNodewiseRule, SpecHub


@dataclass(frozen=True)
class Wrapper(AbstractNodewiseRule):
    inner: AbstractNodewiseRule
    proposals = SpecHub.proposals

    def choose(self, siblings, chance):
        return self.inner.choose(siblings, chance)
"""


def test_a_part_inside_of_a_part_has_a_target_of_its_own(command, tmp_path):
    """Its ``_target_`` was taken for one that chooses an option of a group."""
    (tmp_path / "wrapped_rules.py").write_text(WRAPPER)
    ended = command(
        "check",
        "acceptance._target_=wrapped_rules.Wrapper",
        "+acceptance.inner._target_=treespec.acceptance.SpecHub",
        tiny=False,
    )
    assert (ended.code, ended.errors) == (0, [])
    assert ended.out.startswith("ok acceptance Wrapper")


def test_a_target_chooses_the_empty_option_unless_the_group_is_chosen():
    chosen = ["policy=top_k_tree", "policy._target_=my.Policy"]
    assert custom_parts(chosen) == chosen
    for key in ("policy._target_", "++policy._target_"):
        assert custom_parts([f"{key}=my.Policy"]) == [
            "policy=custom",
            f"{key}=my.Policy",
        ]


def test_an_override_names_its_part_whatever_it_does_to_a_key():
    for override in ("policy.x=1", "+policy.x=1", "++policy.x=1", "~policy.x"):
        assert named_parts([override, "seed=1"]) == ["policy"]


class Early(SampledTree):
    ends_siblings_early = True


def test_a_pair_is_refused_only_if_it_is_wrong_at_the_temperatures_of_its_rule():
    _check_pair(Greedy(), TopKTree())
    kind = ProposalKind.WITH_REPLACEMENT
    _check_pair(KSeq(), SampledTree(2, kind))
    with pytest.raises(IncompatiblePartsError, match="policy Early decides by the"):
        _check_pair(KSeq(), Early(2, kind))


EXITING = """
from treespec.acceptance import ChainSpeculative
from treespec.policies import Chain

class Rule(ChainSpeculative):
    def accept(self, tree, target_logits, sampling, chance):
        raise SystemExit(0)

class Policy(Chain):
    def grow(self, growth):
        raise SystemExit(0)
"""


@pytest.mark.parametrize(
    "choice",
    ["acceptance._target_=exiting.Rule", "policy._target_=exiting.Policy"],
)
def test_a_part_that_exits_with_0_fails(command, tmp_path, choice):
    """It used to end the whole check without a word, as if all were well."""
    (tmp_path / "exiting.py").write_text(EXITING)
    ended = command("check", choice, "controller=off", tiny=False)
    assert ended.code == 1
    assert "raised SystemExit: 0" in ended.errors[0]
    assert ended.out.startswith("ok controller Constant\n")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Strict", "Strict raised NumericalError: no number (strict_rules.py:"),
        ("Lawless", "Lawless: a draw was asked from weights that are no law"),
    ],
)
def test_a_rule_that_raises_fails_and_shows_the_tree(command, tmp_path, name, says):
    """-inf is a banned token; a rule that refused it ended as the user's bad input."""
    (tmp_path / "strict_rules.py").write_text(RULE)
    ended = command("check", f"acceptance._target_=strict_rules.{name}", tiny=False)
    assert ended.code == 1
    assert ended.errors[0].startswith(f"error: acceptance: {says}")
    assert "children, in draw order:" in ended.err
    assert "target_logits by node:" in ended.err


def test_several_parts_are_checked_at_once(command):
    ended = command(
        "check", "drafter=draft_model", "controller=off", "policy=chain", tiny=False
    )
    assert (ended.code, ended.errors) == (0, [])
    firsts = [line for line in ended.out.splitlines() if line.startswith("ok ")]
    assert firsts == [
        "ok policy Chain",
        "ok drafter DraftModel",
        "ok controller Constant",
    ]


def test_a_draft_model_that_may_be_missing_is_a_toy_too(command):
    ended = command("check", "drafter=all_sources", tiny=False)
    assert (ended.code, ended.errors) == (0, [])
    assert ended.out.startswith("ok drafter Cascade\n")


def test_a_toy_has_one_layer_to_exit_from(command):
    arguments = ("check", "drafter=early_exit")
    assert command(*arguments, "drafter.exit_layer=1", tiny=False).code == 0
    ended = command(*arguments, tiny=False)
    assert ended.code == 2
    assert "such as drafter.exit_layer=1" in ended.errors[0]


def test_nothing_is_left_behind_and_no_weights_are_read(command, tmp_path):
    command("check", "drafter=draft_model", "pair.draft.path=/no/such", tiny=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "name acceptance, policy, drafter, controller, or several of them"),
        ("seed=1", "treespec check needs a part to check"),
        ("verifier=sequential", "treespec check needs a part to check"),
        ("-m policy=chain,top_k_tree", "treespec check takes no -m"),
        ("policy=foo", "unknown policy=foo. Available: best_first"),
        (
            "policy.max_kids=1",
            "unknown key policy.max_kids. Did you mean policy.max_ch",
        ),
        ("+controller.x=3", "unknown key 'controller.x'"),
        ("controller=custom", "controller._target_ is missing"),
        ("acceptance._target_=no.Such", "cannot import no.Such"),
        ("policy._target_=treespec.policies.Chain policy.x=3", "unknown key policy.x"),
        ("policy=top_k_tree acceptance=chain_speculative", "policy TopKTree proposes"),
        (
            "policy._target_=treespec.acceptance.Greedy",
            "makes a Greedy, but policy must be of type AbstractDraftPolicy",
        ),
    ],
)
def test_bad_input_is_one_line(command, tmp_path, arguments, says):
    ended = command("check", *arguments.split(), tiny=False)
    assert ended.code == 2
    assert ended.out == ""
    assert len(ended.err.strip().splitlines()) == 1
    assert says in ended.errors[0]
    assert not list(tmp_path.iterdir())


def test_help_mentions_it(command, capfd):
    with pytest.raises(SystemExit):
        command("--help", tiny=False)
    assert "treespec check acceptance._target_=" in capfd.readouterr().out
