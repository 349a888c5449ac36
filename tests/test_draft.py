from dataclasses import replace

import torch
from torch import Tensor

from treespec.draft import Children, DenseDraft, SparseDraft
from treespec.sampling import Sampling

LOGITS = torch.tensor([[0.0, 2.0, 1.0, -1.0], [3.0, -torch.inf, 0.0, 1.0]])
SAMPLED = Sampling(temperature=0.7)


def candidates(rows: list[int], tokens: list[int], probs: list[float]) -> Children:
    return Children(
        rows=torch.tensor(rows, dtype=torch.int64),
        tokens=torch.tensor(tokens, dtype=torch.int64),
        logprobs=torch.tensor(probs).log(),
        sources=torch.zeros(len(rows), dtype=torch.int64),
    )


SPARSE = SparseDraft(
    candidates([0, 2, 0, 2, 2], [5, 1, 3, 0, 2], [0.6, 0.5, 0.2, 0.3, 0.1]), num_rows=4
)


def listed(tensor: Tensor, decimals: int = 6) -> list[float]:
    return [round(value, decimals) for value in tensor.flatten().tolist()]


def test_a_dense_draft_ranks_every_row_by_likelihood() -> None:
    top = DenseDraft(LOGITS, source=3).top(2)
    assert top.size == 4
    assert top.rows.tolist() == [0, 0, 1, 1]
    assert top.tokens.tolist() == [1, 2, 0, 3]
    assert top.sources.tolist() == [3] * 4
    expected = LOGITS.log_softmax(dim=-1)[top.rows, top.tokens]
    assert listed(top.logprobs) == listed(expected)


def test_a_dense_draft_gives_no_more_than_its_vocabulary() -> None:
    assert DenseDraft(LOGITS).top(9).tokens.tolist() == [1, 2, 0, 3, 0, 3, 2, 1]


def test_a_dense_draft_in_bfloat16_has_float32_logprobs() -> None:
    top = DenseDraft(LOGITS.bfloat16()).top(1)
    assert top.logprobs.dtype == torch.float32


def test_a_dense_law_is_the_sampling_law() -> None:
    draft = DenseDraft(LOGITS)
    assert draft.law(SAMPLED, 4).equal(SAMPLED.probs(LOGITS))
    assert draft.law(SAMPLED, 4)[1, 1] == 0
    assert draft.known_rows().tolist() == [0, 1]


def test_a_draft_with_a_temperature_of_its_own_keeps_the_requests_filters() -> None:
    sampling = Sampling(temperature=0.7, top_k=2)
    draft = DenseDraft(LOGITS, temperature=1.5)
    law = draft.law(sampling, 4)
    assert law.equal(Sampling(temperature=1.5, top_k=2).probs(LOGITS))
    assert not law.equal(DenseDraft(LOGITS).law(sampling, 4))
    assert draft.top(2).logprobs.equal(DenseDraft(LOGITS).top(2).logprobs)
    cold = DenseDraft(LOGITS, temperature=0.0).law(sampling, 4)
    assert cold.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_a_sparse_draft_keeps_the_first_candidates_of_every_row() -> None:
    top = SPARSE.top(2)
    assert top.rows.tolist() == [0, 2, 0, 2]
    assert top.tokens.tolist() == [5, 1, 3, 0]
    assert SPARSE.top(0).size == 0
    assert SPARSE.top(9).tokens.tolist() == SPARSE.candidates.tokens.tolist()


def test_a_sparse_law_renormalises_what_is_known() -> None:
    law = SPARSE.law(Sampling(temperature=1.0), vocab_size=6)
    assert listed(law[0]) == [0, 0, 0, 0.25, 0, 0.75]
    assert listed(law[2]) == listed(torch.tensor([3, 5, 1, 0, 0, 0]) / 9)
    assert not law[[1, 3]].any()
    assert SPARSE.known_rows().tolist() == [0, 2]


def test_a_greedy_sparse_law_is_the_likeliest_candidate() -> None:
    law = SPARSE.law(Sampling(), vocab_size=6)
    assert law[[0, 2]].argmax(dim=-1).tolist() == [5, 1]
    assert law.sum(dim=-1).tolist() == [1, 0, 1, 0]


def test_a_row_is_from_the_source_of_its_best_candidate() -> None:
    mixed = replace(SPARSE.candidates, sources=torch.tensor([2, 1, 3, 4, 5]))
    assert SparseDraft(mixed, num_rows=4).row_sources().tolist() == [2, 0, 1, 0]
    assert DenseDraft(LOGITS, source=3).row_sources().tolist() == [3, 3]


def test_drafts_stay_on_the_device_of_their_data() -> None:
    """The sparse law was built on the default device, wherever its candidates were."""
    with torch.device("meta"):  # what forgets its device lands there and fails
        assert SPARSE.law(SAMPLED, vocab_size=6).device.type == "cpu"
        assert SPARSE.top(2).tokens.device.type == "cpu"
        assert DenseDraft(LOGITS).top(2).rows.device.type == "cpu"
        assert DenseDraft(LOGITS).known_rows().device.type == "cpu"


def test_a_sparse_draft_may_know_nothing() -> None:
    nothing = SparseDraft(candidates([], [], []), num_rows=2)
    assert nothing.top(3).size == 0
    assert nothing.law(SAMPLED, vocab_size=4).equal(torch.zeros(2, 4))
    assert nothing.known_rows().tolist() == []


def test_select_keeps_the_columns_together() -> None:
    picked = SPARSE.candidates.select(torch.tensor([4, 0]))
    assert picked.rows.tolist() == [2, 0]
    assert picked.tokens.tolist() == [2, 5]
    assert listed(picked.logprobs.exp()) == [0.1, 0.6]
