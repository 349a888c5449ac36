"""Everything that a pair has to draft with, in one cascade."""

from __future__ import annotations

from collections.abc import Sequence

from treespec.drafters.base import AbstractDrafter
from treespec.drafters.cascade import Cascade
from treespec.drafters.draft_model import DraftModel
from treespec.drafters.prompt_lookup import PromptLookup
from treespec.drafters.team import per_member
from treespec.drafters.token_recycling import TokenRecycling
from treespec.errors import TreespecError
from treespec.models.base import AbstractLanguageModel


def all_sources(
    draft: AbstractLanguageModel | None,
    context: int | None = None,
    max_ngram: int = 64,
    min_ngram: int = 2,
    max_candidates: int = 8,
    min_confidence: Sequence[float] = (0.5, 0.8),
) -> Cascade:
    """Return the cascade of a lookup, of token recycling and of a draft model.

    Args:
        draft: The pair's draft model; without one recycling leads where the lookup is
            not sure.
        context: Most tokens of the text that the draft model reads at once.
        max_ngram: Longest run of tokens that is looked up.
        min_ngram: Shortest run of tokens that is looked up.
        max_candidates: Most candidates of the lookup and of recycling for one node.
        min_confidence: The least probability of its best candidate with which the
            lookup leads, and with which recycling does.

    Raises:
        TreespecError: A value is wrong; names its key.
    """
    if draft is not None and not isinstance(draft, AbstractLanguageModel):
        raise TreespecError(
            f"drafter.draft must be a language model or null, got {draft!r}; write "
            "drafter.draft=pair.draft?"
        )
    least = per_member(
        "drafter.min_confidence", min_confidence, 2, "the lookup and the recycling"
    )
    members: list[AbstractDrafter] = [
        PromptLookup(max_ngram, min_ngram, max_candidates),
        TokenRecycling(max_candidates),
    ]
    if draft is not None:
        members.append(DraftModel(draft, context=context))
    return Cascade(tuple(members), least[: len(members) - 1])
