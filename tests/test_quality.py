"""What the target thinks of a text, against a plain forward of transformers."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.oracles import adapted, reference
from tests.outcomes import make_result
from treespec.models.table import TableModel
from treespec.quality import mean_token_logprob
from treespec.types import GenerationResult


def text(prompt: Sequence[int], tokens: Sequence[int]) -> GenerationResult:
    return replace(make_result(()), prompt_tokens=tuple(prompt), tokens=tuple(tokens))


@pytest.mark.parametrize("num_tokens", [1, 2, 64, 65, 130])
def test_it_is_the_mean_of_the_plain_forward(num_tokens: int) -> None:
    """The first and the last token of the text and of every chunk are where it errs."""
    generator = torch.Generator().manual_seed(num_tokens)
    ids = torch.randint(3, 30, (5 + num_tokens,), generator=generator)
    with torch.inference_mode():
        logits = reference("llama", 1)(ids[None]).logits[0]
    expected = logits[4:-1].log_softmax(-1).gather(-1, ids[5:, None]).mean()
    found = mean_token_logprob(
        adapted("llama", 1), text(ids[:5].tolist(), ids[5:].tolist())
    )
    assert found == pytest.approx(float(expected), abs=1e-4)


def test_a_text_without_new_tokens_has_no_mean() -> None:
    assert mean_token_logprob(adapted("llama", 1), text([1, 2], [])) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_impossible_token_keeps_the_mean_a_number(dtype: torch.dtype) -> None:
    model = TableModel(lambda tokens: [0.0, -torch.inf], 2, dtype=dtype)
    assert mean_token_logprob(model, text([0], [0, 0])) == 0.0
    found = mean_token_logprob(model, text([0], [0, 1]))
    assert found == pytest.approx(-708.4 / 2, abs=0.1)
