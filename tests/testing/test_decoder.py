"""A decoder that follows the target's law passes, and biased ones are found."""

from dataclasses import dataclass, replace

import pytest
import torch
from scipy import stats

from tests.oracles import adapted, reference
from tests.tiny import perturbed, tiny_tokenizer
from treespec.acceptance import ChainSpeculative, Greedy, SampleAndMatch
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftModel
from treespec.errors import TreespecError
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.table import TableModel
from treespec.policies import SampledChain, TopKTree
from treespec.sampling import Sampling
from treespec.testing import ConformanceError, check_decoder
from treespec.testing.cells import target_law
from treespec.testing.decoder import _p_value
from treespec.testing.toys import random_model, table_model
from treespec.verifiers import TreeAttention

PLAIN = Sampling(temperature=1.0)
PROCESSED = Sampling(0.7, top_k=4, top_p=0.97, repetition_penalty=1.3)
FEW = {"num_texts": 200, "num_batches": 2}
PROMPT = [0, 2, 1]


def toy(seed: int) -> TableModel:
    return table_model(random_model(5, seed), 5)


def toy_decoder(draft_seed: int = 2) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        toy(1),
        DraftModel(toy(draft_seed)),
        SampledChain(),
        ChainSpeculative(),
        TreeAttention(),
        Constant(2, 2, 4),
        max_concurrent=100,
    )


def tiny_decoder() -> SpeculativeDecoder:
    """A random transformer, and a draft that agrees with it now and then."""
    noisy = perturbed(reference("llama", 1), noise=0.3, seed=3)
    return replace(
        toy_decoder(),
        target=adapted("llama", 1),
        drafter=DraftModel(HuggingFaceModel(noisy)),
        tokenizer=tiny_tokenizer(),
    )


def test_a_decoder_of_transformers_passes() -> None:
    hot = Sampling(temperature=6.0)  # tiny models are rather sure of themselves
    report = check_decoder(tiny_decoder(), "abc", hot, 2, 200, 1)
    assert report.num_cells > 5
    assert report.recovered_share > 0.2


@pytest.mark.parametrize("sampling", [PLAIN, PROCESSED], ids=["plain", "processed"])
def test_a_right_decoder_passes(sampling: Sampling) -> None:
    report = check_decoder(toy_decoder(), PROMPT, sampling, **FEW)
    assert report.p_value > report.threshold == 1e-4 / 2
    assert report.num_texts == 400
    assert report.num_cells > 5
    assert report.total_variation < 0.2
    assert report.recovered_share > 0.2
    assert not report.vacuous
    assert str(report).startswith("400 texts in ")


def test_a_matched_tree_passes() -> None:
    decoder = replace(toy_decoder(), policy=TopKTree(2), acceptance=SampleAndMatch())
    assert not check_decoder(decoder, PROMPT, PLAIN, **FEW).vacuous


def test_a_text_that_ends_early_is_whole() -> None:
    decoder = replace(toy_decoder(), eos_ids=frozenset({3}))
    law = target_law(decoder, PROMPT, PLAIN, 3, 0.01)
    assert {len(text) for text in law.whole if text[-1] == 3} == {1, 2, 3}
    check_decoder(decoder, PROMPT, PLAIN, **FEW)


def test_greedy_decoding_is_refused_because_texts_can_be_compared() -> None:
    decoder = replace(toy_decoder(), acceptance=SampleAndMatch())
    with pytest.raises(TreespecError, match=r"must be above 0, got 0\.0; at") as found:
        check_decoder(decoder, PROMPT, Sampling())
    assert not isinstance(found.value, ConformanceError)


def test_one_cell_has_nothing_to_tell() -> None:
    report = check_decoder(
        toy_decoder(), PROMPT, Sampling(1.0, top_k=1), num_texts=10, num_batches=1
    )
    assert (report.num_cells, report.p_value, report.total_variation) == (1, 1, 0)


@dataclass(frozen=True)
class Raises(ChainSpeculative):
    def accept(self, tree, target_logits, sampling, chance):
        raise IndexError("no such node")


def test_an_error_of_a_part_names_its_line() -> None:
    decoder = replace(toy_decoder(), acceptance=Raises())
    with pytest.raises(ConformanceError, match=r"no such node \(test_decoder\.py:\d+"):
        check_decoder(decoder, PROMPT, PLAIN, **FEW)


def test_a_draft_that_always_agrees_proves_nothing() -> None:
    report = check_decoder(
        toy_decoder(draft_seed=1), PROMPT, PLAIN, num_texts=100, num_batches=1
    )
    assert report.vacuous
    assert "VACUOUS" in str(report)


@dataclass(frozen=True)
class Inverted(ChainSpeculative):
    """Accepts by q / p, and rejects what the target likes best."""

    def accept(self, tree, target_logits, sampling, chance):
        return super().accept(tree, target_logits, sampling, Inverting(chance))


class Inverting:
    def __init__(self, chance):
        self.draw = chance.draw
        self._chance = chance

    def accepts(self, probability):
        return self._chance.accepts(1 / probability.clamp(min=1e-9))


@dataclass(frozen=True)
class RecoveredFromTarget(ChainSpeculative):
    """After a rejection it draws from p, and not from the residual of p and q."""

    def accept(self, tree, target_logits, sampling, chance):
        acceptance = super().accept(tree, target_logits, sampling, chance)
        if acceptance.next_kind == "bonus":
            return acceptance
        node = acceptance.node_ids[-1] if acceptance.node_ids else 0
        token = chance.draw(sampling.probs(target_logits[node]))
        return replace(acceptance, next_token=int(token))


@dataclass(frozen=True)
class IgnoresTemperature(SampleAndMatch):
    """Samples without top-k, so that impossible tokens turn up."""

    def accept(self, tree, target_logits, sampling, chance):
        return super().accept(tree, target_logits, PLAIN, chance)


@pytest.mark.parametrize("rule", [Inverted(), RecoveredFromTarget()])
def test_a_biased_rule_is_found(rule: ChainSpeculative) -> None:
    biased = replace(toy_decoder(), acceptance=rule)
    with pytest.raises(ConformanceError, match="does not follow the target's") as found:
        check_decoder(biased, PROMPT, PLAIN, **FEW)
    heading, columns, *cells = str(found.value).splitlines()
    assert type(rule).__name__ in heading
    assert columns.split() == ["text", "expected", "seen"]
    assert len(cells) == 5


def test_an_impossible_token_is_found_without_counting() -> None:
    wrong = replace(toy_decoder(), acceptance=IgnoresTemperature())
    with pytest.raises(ConformanceError, match="what the target never writes"):
        check_decoder(wrong, PROMPT, Sampling(0.7, top_k=2), num_texts=100)


def test_the_law_is_that_of_every_text_one_by_one() -> None:
    """Cells and rests, against sums over all texts of the target's own laws."""
    decoder = toy_decoder()
    coarse, fine = (target_law(decoder, PROMPT, PLAIN, 2, m) for m in (0.05, 0.0))
    assert len(fine.whole) == 5**2
    assert sum(coarse.cells.values()) == pytest.approx(1, abs=1e-6)
    assert sum(fine.cells.values()) == pytest.approx(1, abs=1e-6)
    summed = dict.fromkeys(coarse.cells, 0.0)
    for text, prob in fine.cells.items():
        summed[coarse.cell(text)] += prob
    assert summed == pytest.approx(coarse.cells, abs=1e-6)


def test_the_p_value_is_that_of_the_chi_square_test() -> None:
    law = target_law(toy_decoder(), PROMPT, PLAIN, 2, 0.05)
    counts = {cell: 40 + 3 * place for place, cell in enumerate(law.cells)}
    total = sum(counts.values())
    assert all(total * prob >= 5 for prob in law.cells.values())
    expected = torch.tensor(list(law.cells.values())).double()
    expected = (total * expected / expected.sum()).tolist()
    right = stats.chisquare(list(counts.values()), expected).pvalue
    assert _p_value(counts, law) == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize(
    "arguments", [{"num_texts": 3}, {"num_tokens": 0}, {"false_alarm": 0}]
)
def test_impossible_arguments_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(TreespecError, match=next(iter(arguments))):
        check_decoder(toy_decoder(), PROMPT, PLAIN, **arguments)


def test_a_pair_that_does_not_fit_is_refused_as_ever() -> None:
    greedy = replace(toy_decoder(), policy=TopKTree(2), acceptance=Greedy())
    with pytest.raises(TreespecError, match="at temperature 0 only"):
        check_decoder(greedy, PROMPT, PLAIN)
