import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml

from tests.conftest import SIMPLE
from tests.models.folder import save_folder
from tests.tiny import TOKENS, tiny_model
from treespec.models.fbgemm import has_fbgemm

ROOT = Path(__file__).parents[1]
EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf/experiment").glob("*.yaml"))

POLICY = """
from dataclasses import dataclass
import torch
from treespec.policies import AbstractDraftPolicy
from treespec.policies.base import as_layer
from treespec.types import ProposalKind

@dataclass(frozen=True)
class Wide(AbstractDraftPolicy):
    x: int
    proposal = ProposalKind.DETERMINISTIC
    max_children = None

    def grow(self, growth):
        children = growth.draft.top(self.x)
        keep = torch.arange(min(children.size, growth.room))
        return as_layer(growth, children.select(keep))
"""
BOOM = POLICY.replace("class Wide", "class Boom").replace(
    "        children =",
    '        raise RuntimeError("out of memory, say")\n        children =',
)


def test_the_default_parts_leave_a_complete_run_folder_and_a_table(command, read_runs):
    ended = command("wandb.mode=offline")
    assert (ended.code, ended.errors) == (0, [])
    assert "Speed-up" in ended.out
    assert "All 3 texts are token for token" in ended.out
    (run,) = read_runs()
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "config.yaml", "env.json", "prompts.jsonl", "steps.parquet", "summary.json",
        "status.json", "DONE", "wandb", ".lock",
    }  # fmt: skip
    assert run.summary["lossless"] == {
        "rule_is_lossless": True,
        "checked": 3, "identical": 3, "ties": 0, "violations": 0,
    }  # fmt: skip
    assert run.summary["peak_memory_bytes"] is None
    assert run.environment["models"]["target"]["dtype"] == "float32"
    assert set(run.environment["models"]["target"]["sha256"]) == {"model.safetensors"}
    assert run.environment["packages"]["torch"]


def test_the_same_run_again_is_skipped_and_shows_its_table(command, read_runs):
    assert command().code == 0
    (first,) = read_runs()
    again = command()
    assert again.code == 0
    assert "finished before" in again.out
    assert "Speed-up" in again.out
    (second,) = read_runs()
    assert second.status == first.status
    assert command("force=true").code == 0
    (third,) = read_runs()
    assert third.status["started_at"] >= first.status["started_at"]
    assert third.outcomes != first.outcomes  # timings


def test_what_does_not_change_the_result_does_not_change_the_key(command):
    command()
    assert "finished before" in command("sink=terminal", "wandb.project=other").out
    assert "finished before" not in command("seed=1").out


def test_traced_nodes_are_written_when_asked_for(command, read_runs):
    command("trace=nodes")
    (run,) = read_runs()
    assert any(outcome.speculative.traces for outcome in run.outcomes)


def test_traced_nodes_tell_how_much_acceptance_the_rule_leaves(
    command, read_runs, tiny_files
):
    ended = command(
        "trace=nodes",
        "drafter=draft_model",
        f"pair.draft.path={tiny_files.draft}",
        "policy=sampled_tree",
        "policy.num_children=2",
        "controller.max_width=4",
        "controller.max_nodes=8",
        "acceptance=rejection_without_replacement",
        "sampling=temperature",
    )
    assert (ended.code, ended.errors) == (0, [])
    (run,) = read_runs()
    summary = run.summary
    assert 0 < summary["node_acceptance"] <= 1
    assert 0 < summary["optimal_node_acceptance"] < 1
    assert summary["node_acceptance_gap"] == pytest.approx(
        summary["optimal_node_acceptance"] - summary["node_acceptance"]
    )
    assert "is the most that a lossless rule could expect" in ended.out
    nodes = [node for o in run.outcomes for node in o.speculative.traces]
    for node in nodes:
        optimum = node.optimal_acceptance
        assert (optimum is None) == (node.verdict == "unreached") or node.depth > 1


def test_without_traced_nodes_nothing_is_said_of_the_optimum(command, read_runs):
    ended = command()
    (run,) = read_runs()
    assert run.summary["node_acceptance"] is None
    assert run.summary["optimal_node_acceptance"] is None
    assert run.summary["node_acceptance_gap"] is None
    assert "that any rule" not in ended.out


def test_a_lossy_rule_is_reported_as_such_beside_its_quality(
    command, read_runs, tiny_files
):
    """Its texts need not be the target's: a speed-up alone would say nothing."""
    ended = command(
        "acceptance=typical_acceptance",
        "sampling=temperature",
        "drafter=draft_model",
        f"pair.draft.path={tiny_files.draft}",
    )
    assert (ended.code, ended.errors) == (0, [])
    (run,) = read_runs()
    assert run.summary["lossless"] == {
        "rule_is_lossless": False,
        "checked": 0, "identical": 0, "ties": 0, "violations": 0,
    }  # fmt: skip
    assert {outcome.lossless for outcome in run.outcomes} == {"lossy"}
    qualities = [outcome.quality for outcome in run.outcomes]
    means = [quality.mean_token_logprob for quality in qualities]
    assert min(means) < run.summary["mean_token_logprob"] < max(means)
    assert run.summary["baseline_mean_token_logprob"] < 0
    assert "Lossless        no, by design" in ended.out
    assert "mean log-probability of a new token under the target" in ended.out


def test_a_draft_model_drafts(command, read_runs, tiny_files):
    ended = command(
        "drafter=draft_model", f"pair.draft.path={tiny_files.draft}", "policy=chain"
    )
    assert ended.code == 0
    (run,) = read_runs()
    assert run.summary["mean_acceptance_length"] > 1.2
    assert set(run.environment["models"]) == {"target", "draft"}


def test_several_prompts_at_once_give_the_texts_of_one_at_a_time(command, read_runs):
    for count in (1, 3):
        command(
            f"max_concurrent={count}", f"output_root=at_{count}",
            "acceptance=sample_and_match", "sampling=temperature",
        )  # fmt: skip
    (one,), (three,) = read_runs("at_1"), read_runs("at_3")
    assert [o.speculative.tokens for o in one.outcomes] == [
        o.speculative.tokens for o in three.outcomes
    ]


def test_a_prompt_draws_from_its_own_seed_whatever_its_neighbours(
    command, read_runs, tiny_files, tmp_path
):
    lines = tiny_files.prompts.read_text().splitlines()
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("\n".join([lines[2], lines[0]]))
    sampled = ["acceptance=sample_and_match", "sampling=temperature"]
    command(*sampled, "output_root=all")
    command(*sampled, "output_root=few", f"dataset.path={fewer}")
    (everything,), (few,) = read_runs("all"), read_runs("few")
    texts = {o.id: o.speculative.tokens for o in everything.outcomes}
    assert [o.speculative.tokens for o in few.outcomes] == [
        texts["plain"],
        texts["copy"],
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("policy=foo", "unknown policy=foo. Available: best_first, "),
        ("experiment=foo", "unknown experiment=foo. Available: article_gamma"),
        ("policy.topk=3", "unknown key policy.topk. Did you mean policy.top_k?"),
        ("+policy.topk=3", "unknown key 'policy.topk'. Did you mean 'policy.top_k'?"),
        ("sede=1", "unknown key sede. Did you mean seed?"),
        ("+sede=1", "unknown key 'sede'. Did you mean 'seed'?"),
        ("max_new_tokens=abc", "max_new_tokens must be an integer >= 1, got 'abc'"),
        ("max_new_tokens=0", "max_new_tokens must be an integer >= 1, got 0"),
        ("num_prompts=-3", "num_prompts must be an integer >= 1"),
        ("max_concurrent=1.5", "max_concurrent must be an integer >= 1, got 1.5"),
        ("seed=${nowhere}", "seed: Interpolation key 'nowhere' not found"),
        ("a=[", "cannot read 'a=['"),
        ("trace=all", "trace must be steps, nodes or null, got 'all'"),
        ("force=maybe", "force must be true or false"),
        ("stop=END", "stop must be a list of texts"),
        ("controller.max_depth=-1", "controller.max_depth must be an integer >= 0"),
        ("policy.top_k=x", "policy.top_k must be an integer >= 1, got 'x'"),
        ("policy=custom", "policy._target_ is missing"),
        ("policy=custom policy._target_=no.Such", "cannot import no.Such"),
        (
            "policy=custom policy._target_=treespec.acceptance.Greedy",
            "policy._target_: treespec.acceptance.Greedy makes a Greedy, but policy "
            "must be of type AbstractDraftPolicy",
        ),
        ("dataset.path=/no/such.jsonl", "dataset.path: /no/such.jsonl does not exist"),
        ("pair.target.path=/no/such", "pair.target.path: '/no/such' does not exist"),
        ("pair.target.hub_id=a/b", "give exactly one of path, hub_id and wheel"),
        ("pair.target.device=cuda:7", "pair.target.device: 'cuda:7' was asked for"),
        ("pair.target.dtype=int3", "pair.target.dtype: must be one of auto"),
        ("pair.target.quantization=int9", "pair.target.quantization: must be null or"),
        ("pair.target.quantization=8", "pair.target.quantization must be a text"),
        ("pair.target.trust_remote_code=3", "trust_remote_code must be true or false"),
        ("drafter=draft_model", "drafter needs pair.draft"),
        ("acceptance=chain_speculative", "ChainSpeculative is lossless for"),
        ("sampling=temperature", "Greedy is right at temperature 0 only"),
        ("wandb.mode=sometimes", "wandb.mode must be one of"),
        (
            "drafter=draft_model drafter.model=oops",
            "drafter.model must be a language model, got 'oops'",
        ),
        ("dataset.path=5", "dataset.path must be the path of a file, got 5"),
        ("=3", "Config group override must be a string"),
        ("policy=null", "Config group override must be a string"),
        ("sweep_name=..", "sweep_name must stay inside of output_root"),
        ("output_root=" + "a" * 300, "output_root: cannot write to"),
        ("controller.max_depth=true", "max_depth must be an integer >= 0, got True"),
        ("policy.top_k=true", "policy.top_k must be an integer >= 1, got True"),
        ("drafter.max_ngram=2.5", "drafter.max_ngram must be an integer >= 1"),
        ("drafter.max_candidates=nan", "drafter.max_candidates must be an integer"),
        ("wandb.mood=offline", "unknown key wandb.mood. Did you mean wandb.mode?"),
        ("-m policy=chain,foo", "unknown policy=foo"),
        (
            "hydra.searchpath=[file:///no/such]",
            "hydra.searchpath: path=/no/such is not",
        ),
        ("wandb.project=a/b", "wandb.project must be a text of at most 128 characters"),
        ("wandb.project=null", "wandb.project must be a text of at most 128"),
        ("quality.bleu.margin=1", "quality.bleu.margin: the measure is not in use"),
        (
            "quality=bleu quality.bleu.margn=1",
            "unknown key quality.bleu.margn. Did you mean quality.bleu.margin?",
        ),
        ("quality.none.margin=1", "unknown key quality.none.margin"),
        ("--config-path=no_such", "Primary config directory not found. Check that"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(command, tmp_path, arguments, says):
    ended = command(*arguments.split())
    assert ended.code == 2
    assert len(ended.err.strip().splitlines()) == 1
    assert ended.errors
    assert says in ended.errors[0]
    assert not (tmp_path / "outputs").exists()


@pytest.mark.skipif(not has_fbgemm(), reason="FBGEMM is for x86")
def test_a_quantized_target_drafts_with_its_lower_layers(command, read_runs):
    given = ("drafter=early_exit", "drafter.exit_layer=3", "acceptance=greedy")
    for quantization in ("int8", "null"):
        ended = command(*given, f"pair.target.quantization={quantization}")
        assert (ended.code, ended.errors) == (0, [])
    models = {}
    for run in read_runs():
        assert run.summary["lossless"]["violations"] == 0
        model = run.environment["models"]["target"]
        models[model["quantization"]] = model["weight_bytes"]
    assert set(models) == {"int8", None}
    assert models["int8"] < models[None]


def test_an_exit_beyond_the_last_layer_is_told(command, tmp_path):
    ended = command("drafter=early_exit", "drafter.exit_layer=9")
    assert ended.code == 2
    assert "drafter.exit_layer must be from 1 to 4" in ended.errors[0]
    assert not (tmp_path / "outputs").exists()


def test_wandb_online_without_a_key_is_refused_before_any_model_is_read(
    command, monkeypatch, tmp_path
):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    ended = command("wandb.mode=online", "pair.target.path=/no/such")
    assert ended.code == 2
    assert "needs an API key" in ended.errors[0]


def test_a_prompt_that_leaves_no_room_for_an_answer_is_named(command, tmp_path):
    """The chat template counts: 250 letters fit into 256 positions, with it not."""
    prompts = tmp_path / "long.jsonl"
    row = {"id": "novel", "category": "x", "turns": ["a" * 250]}
    prompts.write_text(json.dumps(row))
    ended = command(f"dataset.path={prompts}")
    assert ended.code == 2
    assert "'novel'" in ended.errors[0]
    assert not (tmp_path / "outputs").exists()


def test_a_draft_model_with_another_vocabulary_is_refused_unless_experts_insist(
    command, tmp_path
):
    tokens = [*TOKENS[:4], *reversed(TOKENS[4:])]
    draft = save_folder(tmp_path / "draft", tiny_model("llama", seed=3), tokens)
    arguments = ["drafter=draft_model", f"pair.draft.path={draft}"]
    ended = command(*arguments)
    assert ended.code == 2
    assert "vocabulary is not the target's" in ended.errors[0]
    assert not (tmp_path / "outputs").exists()
    used = command(*arguments, "pair.allow_mismatch=true")
    assert used.code == 0
    assert "All 3 texts are token for token" in used.out


def test_a_class_of_the_user_plugs_in_from_the_command_line(
    command, read_runs, tmp_path
):
    (tmp_path / "my_policies.py").write_text(POLICY)
    ended = command("policy=custom", "policy._target_=my_policies.Wide", "+policy.x=3")
    assert ended.errors == []
    (run,) = read_runs()
    assert run.config["policy"] == {"_target_": "my_policies.Wide", "x": 3}
    assert run.summary["lossless"]["identical"] == 3


def test_a_class_of_the_user_plugs_in_from_a_folder_of_configurations(
    command, read_runs, tmp_path
):
    (tmp_path / "found_policies.py").write_text(POLICY)
    own = tmp_path / "my_conf" / "policy"
    own.mkdir(parents=True)
    (own / "wide.yaml").write_text("_target_: found_policies.Wide\nx: 2\n")
    ended = command(f"hydra.searchpath=[file://{own.parent}]", "policy=wide")
    assert ended.errors == []
    (run,) = read_runs()
    assert run.config["policy"]["x"] == 2


def test_a_drafter_of_the_user_gets_the_draft_model(
    command, read_runs, tmp_path, tiny_files
):
    (tmp_path / "my_drafters.py").write_text(
        "from treespec.drafters import DraftModel\n"
        "def drafter(net):\n"
        "    return DraftModel(net)\n"
    )
    ended = command(
        "drafter=custom",
        "drafter._target_=my_drafters.drafter",
        "+drafter.net=pair.draft",
        f"pair.draft.path={tiny_files.draft}",
    )
    assert ended.errors == []
    (run,) = read_runs()
    assert run.summary["mean_acceptance_length"] > 1.2


def test_one_failing_job_does_not_take_the_sweep_with_it(
    command, tmp_path, monkeypatch
):
    """A sweep used to lose finished work and show only the first traceback."""
    monkeypatch.setenv("TREESPEC_PLUGINS", "my_boom")
    (tmp_path / "my_boom.py").write_text(BOOM)
    for name, target in (("boom", "my_boom.Boom"),):
        own = tmp_path / "my_conf" / "policy"
        own.mkdir(parents=True)
        (own / f"{name}.yaml").write_text(f"_target_: {target}\nx: 1\n")
    ended = command(
        f"hydra.searchpath=[file://{tmp_path}/my_conf]",
        "-m",
        "policy=chain,boom,top_k_tree",
    )
    assert ended.code == 1
    assert "3 jobs: 2 done, 1 failed, 0 missing" in ended.out
    assert "  failed   policy=boom: RuntimeError: out of memory" in ended.out
    runs = sorted((tmp_path / "outputs/default").glob("*/"))
    states = [json.loads((run / "status.json").read_text()) for run in runs]
    assert sorted(state["status"] for state in states) == ["done", "done", "failed"]
    (failed,) = (state for state in states if state["status"] == "failed")
    assert "my_boom.py" in failed["traceback"]
    rerun = command("-m", "policy=chain,top_k_tree")
    assert rerun.code == 0
    assert rerun.out.count("finished before:") == 2


def test_every_job_of_a_sweep_has_its_own_wandb_run(command, read_runs, monkeypatch):
    """Public case 41: ``WANDB_RUN_ID``, or a run left open, merged a sweep's jobs."""
    monkeypatch.setenv("WANDB_RUN_ID", "the-same-for-all")
    ended = command("wandb.mode=offline", "-m", "controller.max_depth=1,2,3")
    assert ended.code == 0
    monkeypatch.delenv("WANDB_RUN_ID")
    for run in read_runs():
        (folder,) = (run.folder / "wandb").glob("offline-run-*")
        assert folder.name.endswith(run.folder.name)
        shown = subprocess.run(
            [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        records = [json.loads(line) for line in shown.splitlines()]
        text = json.dumps([r for r in records if r["type"] == "run"])
        assert run.folder.name in text
        depth = run.config["controller"]["max_depth"]
        assert re.search(rf"max_depth[^0-9]+{depth}\b", text)
        rows = [r["history"]["item"] for r in records if r["type"] == "history"]
        assert [row["prompt_idx"] for row in rows if "prompt_idx" in row] == [0, 1, 2]


def test_ctrl_c_keeps_what_was_finished(command, tmp_path, monkeypatch):
    (tmp_path / "my_interrupt.py").write_text(
        POLICY.replace(
            "        children =",
            "        if len(growth.committed) > 60: raise KeyboardInterrupt\n"
            "        children =",
        )
    )
    ended = command(
        "policy=custom", "policy._target_=my_interrupt.Wide", "+policy.x=2",
        "warmup=false", "max_new_tokens=30",
    )  # fmt: skip
    assert ended.code == 130
    (folder,) = (tmp_path / "outputs/default").iterdir()
    status = json.loads((folder / "status.json").read_text())
    assert status["status"] == "interrupted"
    assert not (folder / "DONE").exists()
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    assert len(lines) == status["num_prompts"]


def test_a_run_is_repeated_from_its_saved_configuration_alone(
    command, read_runs, tmp_path, monkeypatch, tiny_files
):
    """Public case 43: also from another folder, and with every word that it took."""
    monkeypatch.chdir(tiny_files.prompts.parent)  # relative paths must not matter
    command(
        "dataset.path=prompts.jsonl", "acceptance=sample_and_match",
        "sampling=temperature", f"output_root={tmp_path}/first",
    )  # fmt: skip
    (first,) = read_runs("first")
    monkeypatch.chdir(tmp_path)
    ended = command(
        f"--config-path={first.folder.relative_to(tmp_path)}",
        "output_root=second",
        tiny=False,
    )
    assert ended.errors == []
    (second,) = read_runs("second")
    assert second.folder.name == first.folder.name
    for run in (first, second):
        model = run.environment["models"]["target"]
        assert run.config["seed"] == 0
        assert run.config["sampling"]["temperature"] > 0
        assert all(run.environment["packages"][n] for n in ("torch", "transformers"))
        assert {"git", "python", "num_threads"} <= run.environment.keys()
        assert model["attn_implementation"] == "treespec"
        assert {"name", "revision", "sha256", "dtype", "device"} <= model.keys()
    for one, other in zip(first.outcomes, second.outcomes, strict=True):
        assert one.speculative.tokens == other.speculative.tokens
        assert one.baseline.tokens == other.baseline.tokens
    assert not (tmp_path / ".hydra").exists()


def test_a_models_own_sampling_defaults_are_not_inherited_but_its_ends_are(
    command, read_runs, tmp_path
):
    """Baseline and speculation used to differ by what generation_config.json says."""
    model = tiny_model("llama", seed=1)
    model.generation_config.update(
        do_sample=True, repetition_penalty=1.3, temperature=0.7, top_k=5,
        eos_token_id=[3, 4],
    )  # fmt: skip
    folder = save_folder(tmp_path / "model", model)
    assert command(f"pair.target.path={folder}").code == 0
    (run,) = read_runs()
    assert run.environment["decoding"] == {
        "sampling": {
            "temperature": 0.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0,
            "processors": [],
        },
        "eos_ids": [3, 4],
    }  # fmt: skip
    assert run.summary["lossless"]["identical"] == 3


def test_a_repetition_penalty_holds_for_both_sides(command, read_runs):
    assert command("sampling.repetition_penalty=1.3").code == 0
    (run,) = read_runs()
    assert run.environment["decoding"]["sampling"]["repetition_penalty"] == 1.3
    assert run.summary["lossless"]["identical"] == 3


@pytest.mark.parametrize("content", ["{", "null", "[]", "{}", '{"lossless": null}'])
def test_a_finished_run_whose_summary_is_torn_is_redone(command, tmp_path, content):
    command()
    (done,) = tmp_path.glob("outputs/*/*/DONE")
    (done.parent / "summary.json").write_text(content)
    ended = command()
    assert ended.code == 0
    assert "note: this run was finished, but its files broke" in ended.err
    assert json.loads((done.parent / "summary.json").read_text())["lossless"]


def test_a_summary_of_another_layout_is_left_to_the_version_that_wrote_it(
    command, tmp_path
):
    command()
    (done,) = tmp_path.glob("outputs/*/*/DONE")
    status = done.parent / "status.json"
    status.write_text(status.read_text().replace('"schema": ', '"schema": 9'))
    (done.parent / "summary.json").write_text('{"of": "the future"}')
    ended = command()
    assert ended.code == 2
    assert "use force=true to run it again" in ended.errors[0]
    assert done.exists()


def test_a_tokenizer_of_another_model_is_named(command, tiny_files, tmp_path):
    """It once ended in a message about token ids, after the weights were read."""
    folder = tmp_path / "mixed"
    save_folder(folder, tiny_model("llama", seed=1, vocab_size=8))
    ended = command(f"pair.target.path={folder}")
    assert ended.code == 2
    assert "the tokenizer is of another model" in ended.errors[0]
    assert not (tmp_path / "outputs").exists()


def test_nan_names_the_prompt_and_the_step(command, tmp_path):
    """The message once counted prompts within the batch: always prompt 0."""
    model = tiny_model("llama", seed=1)
    with torch.no_grad():
        model.get_input_embeddings().weight[TOKENS.index("w")] = torch.nan
    save_folder(tmp_path / "nan", model)
    ended = command(
        f"pair.target.path={tmp_path}/nan", "max_new_tokens=1", "warmup=false"
    )
    assert ended.code == 2
    assert "while decoding 'plain'" in ended.errors[0]
    assert "step 0" in ended.errors[0]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes(command, experiment):
    ended = command(f"experiment={experiment}", "--cfg", "job", tiny=False)
    assert ended.code == 0
    assert "_target_" in ended.out


def test_every_key_of_the_configuration_has_a_comment():
    for path in sorted((ROOT / "conf").rglob("*.yaml")):
        lines = path.read_text().splitlines()
        assert lines[0].startswith("#"), path
        for before, line in pairwise(lines):
            key = re.match(r"\s*([A-Za-z][\w.]*):", line)
            structure = {"defaults", "hydra", "sweeper", "params"}
            if key and key[1] not in structure and "override /" not in line:
                in_table = path.parent.name == "experiment" and line.endswith(":")
                assert before.lstrip().startswith("#") or in_table, f"{path}: {line}"


def test_keys_of_a_default_in_the_way_of_a_class_of_the_user_are_told(
    command, tmp_path
):
    """``policy._target_`` alone keeps ``policy.top_k`` of the default policy."""
    (tmp_path / "plain_policies.py").write_text(
        "from treespec.policies import Chain\n\n\nclass Mine(Chain):\n    pass\n"
    )
    ended = command("policy._target_=plain_policies.Mine")
    assert ended.code == 2
    (error,) = ended.errors
    assert "unknown key 'policy.top_k'" in error
    assert error.endswith("for a class of yours choose policy=custom first")


def test_help_says_how_to_choose_parts(command, capfd):
    with pytest.raises(SystemExit) as left:
        command("--help", tiny=False)
    assert left.value.code == 0
    shown = capfd.readouterr().out
    assert "treespec policy=chain" in shown
    assert "chain, comb_tree, confidence_tree, custom" in shown


def test_the_wheel_lists_every_package():
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent for path in (ROOT / "treespec").rglob("*.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(setup["packages"]) == names | {"treespec.conf"}


@pytest.mark.parametrize("arguments", [["-m", "treespec"]])
def test_the_command_runs_from_any_folder(tmp_path, arguments):
    ended = subprocess.run(
        [sys.executable, *arguments, "max_new_tokens=abc"],
        cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)},
        check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: max_new_tokens must be an integer")
    assert list(tmp_path.iterdir()) == []


def test_saved_configurations_have_no_missing_keys(command, read_runs):
    command()
    (run,) = read_runs()
    saved = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert saved == run.config
    assert "hydra" not in saved


@pytest.mark.parametrize("policy", ["top_k_tree", "sampled_tree"])
def test_sample_and_match_writes_the_sampled_texts_of_plain_decoding(
    command, read_runs, tiny_files, policy
):
    """The way to tell a wrong rule from wrong drafting, caches or verification."""
    ended = command(
        "acceptance=sample_and_match",
        "sampling=temperature",
        "drafter=draft_model",
        f"pair.draft.path={tiny_files.draft}",
        f"policy={policy}",
    )
    assert ended.code == 0, ended.err
    (run,) = read_runs()
    assert run.config["sampling"]["temperature"] > 0
    assert run.summary["lossless"]["identical"] == len(run.outcomes) == 3
    assert run.summary["acceptance_rate"] > 0
    assert "All 3 texts are token for token those of plain decoding" in ended.out


@pytest.mark.parametrize(
    "sampling",
    [
        ["acceptance=greedy"],
        [
            "acceptance=sample_and_match",
            "sampling=temperature",
            "sampling.temperature=1.2",
        ],
    ],
    ids=["greedy", "sampled"],
)
def test_a_run_in_bfloat16_tells_the_margin_and_noise_of_every_divergence(
    command, read_runs, tmp_path, sampling
):
    """Near-ties flip with the number of rows: a user must see that it was no more.

    Which ones do so depends on the machine's kernels; here every tree's logits are off
    by about as much as bfloat16 rounds numbers of their size.
    """
    (tmp_path / "my_verifier.py").write_text(
        "from dataclasses import replace\n"
        "import torch\n"
        "from treespec.verifiers import TreeAttention\n"
        "class Rounding(TreeAttention):\n"
        "    def verify(self, target, candidates, hidden_layers=()):\n"
        "        exact = super().verify(target, candidates, hidden_layers)\n"
        "        return [self.rounded(o) if len(o.logits) > 1 else o for o in exact]\n"
        "    def rounded(self, output):\n"
        "        sign = torch.arange(output.logits.shape[-1]) % 2 * 2 - 1\n"
        "        return replace(output, logits=output.logits.float() + 0.04 * sign)\n"
    )
    prompts = tmp_path / "many.jsonl"
    texts = [f"{a} {b} {a} {b} {a}" for a in "abcdef" for b in "klmn"]
    rows = [{"id": t, "category": "x", "turns": [t], "chat": False} for t in texts]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = command(
        "pair.target.dtype=bfloat16",
        f"dataset.path={prompts}",
        "verifier=custom",
        "verifier._target_=my_verifier.Rounding",
        "max_new_tokens=30",
        *sampling,
    )
    assert ended.code == 0, ended.err
    (run,) = read_runs()
    parted = [outcome for outcome in run.outcomes if outcome.lossless != "identical"]
    assert parted
    assert run.summary["lossless"]["ties"] == len(parted)
    assert run.summary["divergences"] == [
        {"id": outcome.id, "lossless": "tie", **asdict(outcome.divergence)}
        for outcome in parted
    ]
    for outcome in parted:
        assert 0 <= outcome.divergence.margin <= 2 * outcome.divergence.noise < 2
    first = run.summary["divergences"][0]
    assert f"tie: {first['id']}, token {first['index']}: margin " in ended.out


def test_a_run_that_is_not_lossless_fails_and_keeps_its_evidence(command, tmp_path):
    (tmp_path / "my_rules.py").write_text(
        "from treespec.acceptance import Greedy\n"
        "class Worst(Greedy):\n"
        "    def accept(self, tree, target_logits, sampling, chance):\n"
        "        return super().accept(tree, -target_logits, sampling, chance)\n"
    )
    ended = command("acceptance=custom", "acceptance._target_=my_rules.Worst")
    assert ended.code == 3
    assert len(ended.errors) == 1
    assert "3 of 3 texts are not what the target would have written" in ended.errors[0]
    (folder,) = (tmp_path / "outputs/default").iterdir()
    assert not (folder / "DONE").exists()
    assert json.loads((folder / "status.json").read_text())["status"] == "failed"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["lossless"]["violations"] == 3
    assert len((folder / "prompts.jsonl").read_text().splitlines()) == 3


def test_a_tree_that_the_budget_cuts_is_told(command, tiny_files):
    """A shape of 20 nodes once became one of 5 without a word."""
    widths = ("policy=static_tree", "policy.widths=[4,2,1]", "num_prompts=1")
    ended = command(*widths)
    told = "note: StaticTree has its whole tree from controller.max_width=8 "
    assert told + "controller.max_nodes=20 on; max_width=2, max_nodes=5 cuts it" in (
        ended.out + ended.err
    )
    ended = command(*widths, "controller.max_width=8", "controller.max_nodes=20")
    assert ended.code == 0
    assert "cuts it" not in ended.out + ended.err


def test_a_calibration_of_something_else_is_told(command, tmp_path, tiny_files):
    pair = (f"pair.draft.path={tiny_files.draft}", "drafter=draft_model")
    made = command(*pair, "max_new_tokens=40", verb="calibrate")
    assert made.code == 0
    (path,) = tmp_path.glob("outputs/*/*/calibration.json")
    chosen = ("policy=optimal_tree", f"policy.calibration={path}", "num_prompts=1")
    ended = command(*chosen, "policy.num_nodes=2", *pair[:1], "drafter=suffix")
    assert ended.code == 0
    assert "measured with another drafter; run treespec calibrate" in ended.err
    ended = command(*chosen, "policy.num_nodes=2", *pair)
    assert ended.code == 0
    assert "measured with another" not in ended.err


def test_a_planner_is_told_what_forwards_cost_here_and_they_are_timed_once(
    command, read_runs
) -> None:
    """Decisions depend on the costs, so they stand beside the run."""
    planner = ("policy=planner", "controller=ample", "num_prompts=1")
    first = command(*planner)
    assert (first.code, first.errors) == (0, [])
    assert "costs of forwards: measured now: none was kept" in first.err
    again = command(*planner, "seed=1")
    assert "costs of forwards: reused" in again.err
    plain = command("num_prompts=1")
    assert "costs of forwards" not in plain.err
    told = [run.environment.get("costs") for run in read_runs()]
    known = [costs for costs in told if costs is not None]
    assert len(told) == 3
    assert len(known) == 2
    assert known[0] == known[1]
    assert known[0]["target"]["rows"][0] == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a: [", "config.yaml: not YAML"),
        ("", "config.yaml: must hold keys and values"),
        ("- 1", "config.yaml: must hold keys and values"),
        (None, "--config-path: {folder} has no config.yaml"),
    ],
)
def test_a_folder_that_no_job_can_be_repeated_from_is_told(
    command, tmp_path, content, says
):
    folder = tmp_path / "mine"
    folder.mkdir()
    if content is not None:
        (folder / "config.yaml").write_text(content)
    ended = command(f"--config-path={folder}", tiny=False)
    assert ended.code == 2
    assert len(ended.err.strip().splitlines()) == 1
    assert says.format(folder=folder) in ended.errors[0]


def test_a_sweeps_folder_in_place_of_a_runs_is_told_with_a_run_of_it(command, tmp_path):
    assert command("num_prompts=1").code == 0
    (done,) = tmp_path.glob("outputs/*/*/DONE")
    ended = command("--config-path", "outputs/default", tiny=False)
    assert ended.code == 2
    assert f"it holds runs, such as {done.parent}: name one" in ended.errors[0]


def test_what_kill_sends_ends_a_run_as_ctrl_c_does(tiny_files, tmp_path):
    """A scheduler's SIGTERM once left a run that called itself running."""
    boom = """
import os, signal, sys
from treespec import cli, runner
real = runner.measure
def measure(*args):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*args)
runner.measure = measure
sys.argv = ["treespec", *sys.argv[1:]]
cli.main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", boom, "-m", *tiny_files.overrides, *SIMPLE, "seed=1,2"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.returncode == 130, ended.stderr
    (status,) = tmp_path.glob("outputs/default/*/status.json")
    assert json.loads(status.read_text())["status"] == "interrupted"
    assert "2 jobs: 0 done, 0 failed, 2 missing" in ended.stdout
    assert "treespec -m" in ended.stdout


def test_an_error_that_nobody_foresaw_is_told_with_its_place(command, tmp_path):
    """Before there is a folder for its traceback, that is."""
    (tmp_path / "conf/policy").mkdir(parents=True)
    (tmp_path / "conf/policy/bad.yaml").write_text("_target_: my_bad.Bad\n")
    (tmp_path / "my_bad.py").write_text(
        "from treespec.policies import Chain\n\n\nclass Bad(Chain):\n"
        "    @property\n    def proposal(self):\n"
        "        raise RuntimeError('no idea')\n"
    )
    search = f"hydra.searchpath=[file://{tmp_path}/conf]"
    ended = command(search, "policy=bad", "policy._target_=my_bad.Bad")
    assert ended.code == 1
    assert ended.errors == [
        f"error: RuntimeError: no idea ({tmp_path}/my_bad.py, line 7)"
    ]


def test_a_failure_before_decoding_is_no_success_because_of_an_older_run(
    command, tmp_path, monkeypatch
):
    """With force=true the older run was shown instead, and the exit code was 0."""
    assert command().code == 0
    (done,) = tmp_path.glob("outputs/*/*/DONE")

    def fail(*_):
        raise RuntimeError("out of memory, say")

    monkeypatch.setattr("treespec.runner.prepare", fail)
    ended = command("force=true")
    assert ended.code == 1
    assert "RuntimeError: out of memory, say" in ended.errors[0]
    assert done.exists()
