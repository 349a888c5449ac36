"""What a drafter may answer for one frontier, and when two answers are the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.draft import AbstractDraft, Children
from treespec.drafters import Frontier
from treespec.sampling import Sampling
from treespec.testing.failure import ConformanceError

SAMPLINGS = (Sampling(temperature=1.0), Sampling(), Sampling(0.7, top_k=2, top_p=0.9))
"""The laws that are asked for; the first one is what answers are compared by."""
MOST_CANDIDATES = 64
"""Of the whole vocabulary no more are asked for: sorting it would take long."""
ROUNDED = 1e-4
"""How far from 1 a float32 law may sum up, or a log-probability be above 0."""


@dataclass(frozen=True, slots=True)
class Question:
    """A frontier that a drafter is asked about, and what bounds the answer.

    Attributes:
        drafter: Name of the drafter.
        num_sources: Number of its sources.
        vocab_size: The target's.
        text: The request's committed text.
        frontier: The nodes.
    """

    drafter: str
    num_sources: int
    vocab_size: int
    text: tuple[int, ...]
    frontier: Frontier

    def failure(self, says: str) -> ConformanceError:
        """Return the error, with the tree below its first line."""
        return ConformanceError(f"{self.drafter}: {says}\n{self.case}")

    @property
    def case(self) -> str:
        """The text, the nodes and their tree."""
        host, nodes = self.frontier.tree.host(), self.frontier.nodes.tolist()
        return (
            f"  after the text {list(self.text)}\n"
            f"  asked for the children of nodes {nodes} in the tree\n"
            f"  tokens  {host.tokens}\n"
            f"  parents {host.parents}"
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a drafter said, once it was found to keep the contract.

    Attributes:
        candidates: The best candidates, up to 64 of each row.
        law: The law at temperature 1.  # [F, V]
        row_sources: The source of each row.  # [F]
    """

    candidates: Children
    law: Tensor
    row_sources: Tensor


def checked_answer(draft: object, question: Question) -> Answer:
    """Return what a drafter said about one frontier.

    Raises:
        ConformanceError: It breaks the contract of ``AbstractDraft``.
    """
    if not isinstance(draft, AbstractDraft):
        raise question.failure(
            f"expand must return a list of AbstractDraft, and one is a "
            f"{type(draft).__name__}; return a DenseDraft or a SparseDraft"
        )
    most = min(question.vocab_size, MOST_CANDIDATES)
    candidates = _checked_top(draft, most, question)
    for k in (1, 2):
        _check_head(_checked_top(draft, k, question), candidates, question)
    laws = [_checked_law(draft, sampling, question) for sampling in SAMPLINGS]
    return Answer(candidates, laws[0], _checked_row_sources(draft, question))


def difference(first: Answer, second: Answer, tolerance: float) -> str | None:
    """Return how two answers to one question differ; ``None`` if they do not.

    Candidates that are as likely as each other, up to ``tolerance``, may change places.
    """
    one, other = first.candidates, second.candidates
    if not torch.equal(one.rows, other.rows):
        return "other rows have candidates, or other numbers of them"
    gaps = (first.law - second.law).abs()
    if float(gaps.max()) > tolerance:
        row = int(gaps.amax(dim=-1).argmax())
        return f"the law of row {row} moved by {float(gaps.max()):.2g}"
    if not torch.allclose(one.logprobs, other.logprobs, rtol=0, atol=tolerance):
        return "its log-probabilities moved"
    swapped = first.law[one.rows, one.tokens] - first.law[one.rows, other.tokens]
    is_other = one.tokens != other.tokens
    if bool((is_other & (swapped.abs() > tolerance)).any()):
        return f"the candidates were {one.tokens.tolist()}, now {other.tokens.tolist()}"
    if not torch.equal(first.row_sources, second.row_sources):
        return "other sources"
    return None


def _checked_top(draft: AbstractDraft, k: int, question: Question) -> Children:
    """Return ``top(k)``, once its rows, tokens, log-probabilities and sources fit."""
    found, where = draft.top(k), f"top({k})"
    size, num_rows = found.tokens.shape[0], question.frontier.nodes.shape[0]
    columns = (found.rows, found.tokens, found.logprobs, found.sources)
    if any(column.shape != (size,) for column in columns):
        raise question.failure(
            f"the fields of {where} have shapes "
            f"{[tuple(column.shape) for column in columns]}; they must be of one length"
        )
    for name, values, limit in (
        ("row", found.rows, num_rows),
        ("token", found.tokens, question.vocab_size),
        ("source", found.sources, question.num_sources),
    ):
        outside = (values < 0) | (values >= limit)
        if values.is_floating_point() or bool(outside.any()):
            raise question.failure(
                f"{where} has {name} {_first(values, outside)}, but it must be an "
                f"integer from 0 to {limit - 1}"
            )
    not_logs = ~(found.logprobs <= ROUNDED)
    if bool(not_logs.any()):
        raise question.failure(
            f"{where} has the log-probability {_first(found.logprobs, not_logs)}; it "
            "must be a number <= 0"
        )
    _check_rows(found, k, where, question)
    return found


def _check_rows(found: Children, k: int, where: str, question: Question) -> None:
    """Refuse too many candidates of a row, a repeated one, or the wrong order."""
    for row in sorted(set(found.rows.tolist())):
        of_row = found.select((found.rows == row).nonzero().flatten())
        tokens = of_row.tokens.tolist()
        if of_row.size > k:
            raise question.failure(
                f"{where} gives row {row} {of_row.size} candidates: {tokens}"
            )
        if len(set(tokens)) < len(tokens):
            raise question.failure(f"{where} repeats a token in row {row}: {tokens}")
        if bool((of_row.logprobs[1:] > of_row.logprobs[:-1]).any()):
            raise question.failure(
                f"{where} must stand best first within each row, but row {row} has the "
                f"log-probabilities {of_row.logprobs.tolist()}"
            )


def _check_head(fewer: Children, candidates: Children, question: Question) -> None:
    """Refuse a ``top(1)`` or ``top(2)`` that is not the head of all candidates."""
    for row in sorted(set(candidates.rows.tolist())):
        head = fewer.logprobs[fewer.rows == row]
        of_row = candidates.logprobs[candidates.rows == row]
        if not torch.equal(head, of_row[: head.shape[0]]) or not head.shape[0]:
            raise question.failure(
                f"row {row} has candidates with log-probabilities {of_row.tolist()}, "
                f"but asked for fewer, the drafter gives {head.tolist()}"
            )


def _checked_law(
    draft: AbstractDraft, sampling: Sampling, question: Question
) -> Tensor:
    """Return the law, once every row sums to one or is empty as ``known_rows`` says."""
    law, known = draft.law(sampling, question.vocab_size), draft.known_rows()
    num_rows = question.frontier.nodes.shape[0]
    if tuple(law.shape) != (num_rows, question.vocab_size):
        raise question.failure(
            f"the law has the shape {tuple(law.shape)}; it must have a row per "
            f"frontier node and a column per token: {(num_rows, question.vocab_size)}"
        )
    sums = law.double().sum(dim=-1)
    is_law = (sums - 1).abs() <= ROUNDED
    if bool((law < 0).any()) or not bool((is_law | (sums == 0)).all()):
        raise question.failure(
            "every row of the law must sum to one, or be empty, and have nothing below "
            f"0; at temperature {sampling.temperature} the rows sum to {sums.tolist()}"
        )
    if known.tolist() != is_law.nonzero().flatten().tolist():
        raise question.failure(
            f"known_rows says {known.tolist()}, but the rows that have a law are "
            f"{is_law.nonzero().flatten().tolist()}"
        )
    return law


def _checked_row_sources(draft: AbstractDraft, question: Question) -> Tensor:
    sources, num_rows = draft.row_sources(), question.frontier.nodes.shape[0]
    if tuple(sources.shape) != (num_rows,):
        raise question.failure(
            f"row_sources has the shape {tuple(sources.shape)}; it must have one "
            f"source per frontier node: {(num_rows,)}"
        )
    outside = (sources < 0) | (sources >= question.num_sources)
    if bool(outside.any()):
        raise question.failure(
            f"row_sources has {_first(sources, outside)}, but source_names has "
            f"{question.num_sources}"
        )
    return sources


def _first(values: Tensor, outside: Tensor) -> object:
    """Return the first value that is outside, or of another type than wanted."""
    chosen = values[outside] if bool(outside.any()) else values
    return chosen[0].item()
