"""Folders and hub ids: what is missing or broken is told before weights are read."""

import json
import time
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig, Mamba2Config

from tests.models.folder import save_folder
from tests.tiny import EOS_ID, FAMILIES, Family, tiny_model
from treespec.errors import FetchError, TreespecError
from treespec.models.loading import file_digests, inspect, load_module, locate
from treespec.models.source import LocatedModel, ModelSource

KEY = "pair.target"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder(tmp_path / "model", tiny_model("llama", 1, num_layers=1))


def at(path: Path) -> LocatedModel:
    return locate(ModelSource(path=str(path)), KEY, progress=False)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_gives_the_model_that_was_saved(
    tmp_path: Path, family: Family, tied: bool
) -> None:
    model = tiny_model(family, 1, num_layers=2, tied=tied)
    located = at(save_folder(tmp_path, model))
    info = inspect(located, KEY)
    assert (info.num_layers, info.vocab_size, info.max_positions) == (2, 32, 256)
    assert info.eos_ids == (EOS_ID,)
    assert info.has_chat_template
    module = load_module(located, KEY)
    tokens = torch.arange(3, 30)[None]
    assert torch.equal(module(tokens).logits, model(tokens).logits)
    assert not module.training
    assert not any(weight.requires_grad for weight in module.parameters())


def test_dtype_is_the_checkpoints_own_unless_another_is_asked_for(
    tmp_path: Path,
) -> None:
    model = tiny_model("llama", 1, num_layers=1).to(torch.bfloat16)
    path = str(save_folder(tmp_path, model))
    for dtype, expected in (("auto", torch.bfloat16), ("float32", torch.float32)):
        module = load_module(locate(ModelSource(path=path, dtype=dtype), KEY), KEY)
        assert {weight.dtype for weight in module.parameters()} == {expected}


def test_the_generation_configuration_decides_what_ends_a_text(folder: Path) -> None:
    GenerationConfig(eos_token_id=[3, 4]).save_pretrained(folder)
    assert inspect(at(folder), KEY).eos_ids == (3, 4)


def test_without_it_the_configuration_and_then_the_tokenizer_decide(
    folder: Path,
) -> None:
    (folder / "generation_config.json").unlink()
    for value, expected in ((5, (5,)), ([0, 6], (0, 6)), (None, (EOS_ID,))):
        edit_config(folder, eos_token_id=value)
        assert inspect(at(folder), KEY).eos_ids == expected


def test_weight_files_are_known_by_their_sha256(folder: Path, cache: Path) -> None:
    digests = file_digests(at(folder))
    assert list(digests) == ["model.safetensors"]
    assert len(digests["model.safetensors"]) == 64
    (note,) = (cache / "sha256").iterdir()
    note.write_text("remembered")
    assert file_digests(at(folder)) == {"model.safetensors": "remembered"}
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "more": torch.zeros(9)}, folder / "model.safetensors")
    assert file_digests(at(folder)) != {"model.safetensors": "remembered"}


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def refusal(path: Path) -> str:
    with pytest.raises(TreespecError) as caught:
        inspect(at(path), KEY)
    message = str(caught.value)
    assert message.startswith(KEY)
    assert "\n" not in message
    return message


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path / "nowhere")
    assert message.startswith("pair.target.path: ")
    assert "nowhere' does not exist; give a Hugging Face model folder" in message


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    assert "no config.json; give a Hugging Face model folder" in refusal(tmp_path)


def test_a_configuration_that_is_not_json_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "not readable JSON" in refusal(folder)


def test_a_model_type_that_transformers_does_not_know_is_refused(folder: Path) -> None:
    edit_config(folder, model_type="llama99")
    assert "llama99" in refusal(folder)


def test_a_value_of_the_wrong_type_is_refused(folder: Path) -> None:
    edit_config(folder, num_hidden_layers="many")
    assert "cannot be used" in refusal(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "no weights" in refusal(folder)


def test_a_folder_without_a_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "tokenizer" in refusal(folder)


def test_a_broken_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 3}')
    assert "the tokenizer of" in refusal(folder)


def test_a_recurrent_model_is_refused_before_its_weights_are_read(
    folder: Path,
) -> None:
    Mamba2Config().save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"never read")
    assert "model type 'mamba2'" in refusal(folder)


def test_weights_with_a_gap_are_refused_instead_of_filled_at_random(
    folder: Path,
) -> None:
    """Regression story: transformers fills a missing parameter with random numbers and
    only logs it; the text is then nonsense with exit code 0."""
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TreespecError, match=r"lack 1 parameter.* lm_head\.weight"):
        load_module(at(folder), KEY)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    edit_config(folder, vocab_size=48)
    with pytest.raises(TreespecError, match=r"^pair\.target: the weights of") as caught:
        load_module(at(folder), KEY)
    assert "\n" not in str(caught.value)


def test_weights_that_are_cut_short_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TreespecError, match=r"cannot be read .*fetch the model again"):
        load_module(at(folder), KEY)


def test_a_hub_out_of_reach_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression story: the usual client tries again for 23 seconds, several times."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    start = time.monotonic()
    with pytest.raises(FetchError) as caught:
        locate(ModelSource(hub_id="nobody/nothing"), KEY)
    assert time.monotonic() - start < 5
    message = str(caught.value)
    assert message.startswith("pair.target.hub_id: the hub is out of reach")
    assert "pair.target.path=FOLDER" in message
    assert "\n" not in message


def test_a_hub_id_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(TreespecError, match=r"must read owner/name, got 'a/b/c'"):
        locate(ModelSource(hub_id="a/b/c"), KEY)


def test_a_model_in_the_hubs_local_cache_works_without_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--some--model"
    snapshot = repository / "snapshots" / commit
    save_folder(snapshot, tiny_model("gpt2", 1, num_layers=1))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    located = locate(ModelSource(hub_id="some/model"), KEY)
    assert (located.revision, located.offline) == (commit, True)
