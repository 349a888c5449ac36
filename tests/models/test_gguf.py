"""A GGUF file gives the model that it was written from, or one clear line."""

import os
import random
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, quants
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.models.folder import save_folder
from tests.models.gguf_file import GGUF_TOKENS, write_gguf
from tests.tiny import BOS_ID, EOS_ID, tiny_config, tiny_model
from treespec.errors import FetchError, TreespecError
from treespec.models import gguf as unpacking
from treespec.models.loading import file_digests, inspect, load_module, locate
from treespec.models.source import LocatedModel, ModelSource
from treespec.models.vocabulary import check_pair

KEY = "pair.target"


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return tiny_model("llama", 1, num_layers=2)


@pytest.fixture(scope="module")
def texts() -> Tensor:
    return torch.randint(3, 32, (8, 40), generator=torch.Generator().manual_seed(0))


def at(path: Path, dtype: str = "auto") -> LocatedModel:
    return locate(ModelSource(path=str(path), dtype=dtype), KEY, progress=False)


def test_a_float32_file_gives_the_logits_of_the_model_it_came_from(
    tmp_path: Path, llama: PreTrainedModel, texts: Tensor
) -> None:
    """The rows of Q and K stand in another order in the file: a loader that forgets it
    loads without an error and is wrong."""
    write_gguf(tmp_path / "tiny.gguf", llama)
    folder = save_folder(tmp_path / "folder", llama)
    from_gguf = load_module(at(tmp_path / "tiny.gguf"), KEY)
    from_folder = load_module(at(folder), KEY)
    torch.testing.assert_close(
        from_gguf(texts).logits, from_folder(texts).logits, atol=1e-4, rtol=0
    )


def test_a_quantized_file_gives_its_own_dequantized_weights(
    tmp_path: Path, llama: PreTrainedModel, texts: Tensor
) -> None:
    kind = GGMLQuantizationType.Q8_0
    write_gguf(tmp_path / "tiny.gguf", llama, matrices=kind)
    rounded = AutoModelForCausalLM.from_config(llama.config, dtype=torch.float32)
    rounded.load_state_dict(
        {
            name: weight
            if weight.ndim == 1
            else torch.from_numpy(
                quants.dequantize(quants.quantize(weight.numpy(), kind), kind)
            )
            for name, weight in llama.state_dict().items()
        }
    )
    module = load_module(at(tmp_path / "tiny.gguf"), KEY)
    expected = rounded.eval()(texts).logits
    assert module.dtype == torch.float32
    torch.testing.assert_close(module(texts).logits, expected, atol=1e-4, rtol=0)


def test_eight_bits_hardly_ever_change_the_best_token(
    tmp_path: Path, texts: Tensor
) -> None:
    """Deep random models with a wide initializer amplify rounding as trained ones do
    not, hence one layer and the usual initializer here."""
    config = tiny_config("llama", num_layers=1, initializer_range=0.02)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        calm = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    calm.requires_grad_(False)
    write_gguf(tmp_path / "tiny.gguf", calm, matrices=GGMLQuantizationType.Q8_0)
    module = load_module(at(tmp_path / "tiny.gguf"), KEY)
    same = module(texts).logits.argmax(-1) == calm(texts).logits.argmax(-1)
    assert same.float().mean() >= 0.99


def test_tokenizer_template_and_every_end_id_come_along(
    tmp_path: Path, llama: PreTrainedModel
) -> None:
    """Regression story (transformers 5.20): the file's add_bos_token was overlooked,
    so the same file gave other token ids than with 5.24."""
    write_gguf(tmp_path / "tiny.gguf", llama, end_of_turn=30)
    info = inspect(at(tmp_path / "tiny.gguf"), KEY)
    assert info.eos_ids == (EOS_ID, 30)
    assert info.tokenizer.encode("hi a") == [BOS_ID, 11, 12, 3, 4]
    assert info.tokenizer.decode([BOS_ID, 11, 12, 3, 4, EOS_ID]) == "hi a"
    prompt = info.tokenizer.chat([{"role": "user", "content": "hi"}])
    assert prompt.count(BOS_ID) == 1
    assert info.tokenizer.decode(prompt) == "user hi.assistant "


def test_no_token_is_invented_behind_the_last_row(
    tmp_path: Path, llama: PreTrainedModel
) -> None:
    """Regression story: the converter adds a default <|endoftext|> to a byte-level
    vocabulary; its id is behind the embedding, and a GGUF draft model seemed to differ
    from the same model as a folder."""
    write_gguf(tmp_path / "tiny.gguf", llama)
    draft = inspect(at(tmp_path / "tiny.gguf"), KEY)
    target = inspect(at(save_folder(tmp_path / "hf", llama, GGUF_TOKENS)), KEY)
    assert max(draft.tokenizer.vocab().values()) < draft.vocab_size
    check_pair(target.tokenizer.vocab(), draft.tokenizer.vocab())


def test_a_file_is_unpacked_once_for_each_dtype(
    tmp_path: Path,
    cache: Path,
    llama: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, matrices=GGMLQuantizationType.F16)
    first = at(tmp_path / "tiny.gguf")
    half = at(tmp_path / "tiny.gguf", dtype="bfloat16")
    assert load_module(first, KEY).dtype == torch.float16
    assert load_module(half, KEY).dtype == torch.bfloat16
    monkeypatch.delattr(unpacking, "read_gguf_weights")
    assert at(tmp_path / "tiny.gguf") == first
    assert sorted(path.name for path in (cache / "unpacked").iterdir()) == sorted(
        Path(located.name).name for located in (first, half)
    )
    assert list(file_digests(first)) == ["tiny.gguf"]


def test_another_process_may_be_first(
    tmp_path: Path,
    cache: Path,
    llama: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama)
    place = Path(at(tmp_path / "tiny.gguf").name)
    monkeypatch.setattr(Path, "is_dir", _blind_once(place))
    assert Path(at(tmp_path / "tiny.gguf").name) == place
    assert [path.name for path in (cache / "unpacked").iterdir()] == [place.name]


def test_a_broken_file_ends_in_one_line(tmp_path: Path, llama: PreTrainedModel) -> None:
    write_gguf(tmp_path / "sound.gguf", llama)
    content = (tmp_path / "sound.gguf").read_bytes()
    broken = {
        "html": (b"<!DOCTYPE html>" + content, "begin with the letters GGUF"),
        "empty": (b"", "begin with the letters GGUF"),
        "version": (content[:4] + b"\x63" + content[5:], "version is 99"),
        "header": (content[:200], "not a sound GGUF file"),
        "tensors": (content[:-4000], "is cut short"),
        "garbage": (content[:24] + os.urandom(400), "not a sound GGUF file"),
    }
    for name, (data, reason) in broken.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        with pytest.raises(TreespecError, match=reason) as caught:
            at(path)
        assert str(caught.value).startswith(f"{KEY}.path: ")
        assert "\n" not in str(caught.value)


def test_a_damaged_header_never_ends_in_anything_else(
    tmp_path: Path, llama: PreTrainedModel
) -> None:
    """Regression story: a random length became an allocation of exabytes."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama)
    content = path.read_bytes()
    rng = random.Random(0)
    messages = []
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(3000)] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([len(content), rng.randrange(3000)])])
        try:
            unpacking.read_header(path, KEY)
        except TreespecError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert not any("\n" in message for message in messages)


def test_an_architecture_that_cannot_be_unpacked_is_named(
    tmp_path: Path, cache: Path, llama: PreTrainedModel
) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, architecture="plamo")
    with pytest.raises(TreespecError, match=r"architecture 'plamo' .*folder"):
        at(tmp_path / "tiny.gguf")
    assert not list(cache.glob("unpacked/*"))


def test_a_file_without_a_tokenizer_is_refused(
    tmp_path: Path, llama: PreTrainedModel
) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama, with_tokens=False)
    with pytest.raises(TreespecError, match=r"no tokenizer\.ggml\.tokens"):
        at(tmp_path / "tiny.gguf")


def test_a_cache_that_cannot_be_written_names_the_way_out(
    tmp_path: Path, llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama)
    (tmp_path / "a_file").touch()
    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path / "a_file"))
    with pytest.raises(FetchError, match="set TREESPEC_CACHE=FOLDER"):
        at(tmp_path / "tiny.gguf")


def _blind_once(place: Path):
    """Return an ``is_dir`` that overlooks a folder the first time."""
    seen: list[Path] = []
    real = Path.is_dir

    def is_dir(path: Path) -> bool:
        if path == place and not seen:
            seen.append(path)
            return False
        return real(path)

    return is_dir
