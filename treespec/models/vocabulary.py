"""Whether a draft model speaks the target's language: token by token, not by size.

The rows of the embedding say nothing: they are padded to round numbers (the same
tokenizer has 151,936 rows in one model and 152,064 in another), and two vocabularies of
one size may number their tokens differently.
"""

import logging
from collections.abc import Mapping

from treespec.errors import IncompatiblePartsError

_LOG = logging.getLogger(__name__)


def check_pair(
    target: Mapping[str, int],
    draft: Mapping[str, int],
    *,
    key: str = "pair",
    allow_mismatch: bool = False,
) -> None:
    """Refuse a draft model whose token map differs from the target's.

    Args:
        target: The target's map from token to id.
        draft: The draft's map from token to id.
        key: Place of the pair in the configuration.
        allow_mismatch: Log the difference instead; the output stays the target's, but
            what is drafted may be nonsense.

    Raises:
        IncompatiblePartsError: Some token has another id, or is in one map only.
    """
    differing = {token for token, _ in target.items() ^ draft.items()}
    if not differing:
        return
    # Shown: the differing token of the lowest id, the same at every run.
    example = min(differing, key=lambda t: (target.get(t, draft.get(t, 0)), t))
    message = (
        f"{key}.draft: its vocabulary is not the target's: {len(differing)} token(s) "
        f"differ, for example {example!r} is {_place(target, example)} in the target "
        f"and {_place(draft, example)} in the draft"
    )
    if allow_mismatch:
        _LOG.warning("%s; used all the same, as asked", message)
        return
    raise IncompatiblePartsError(
        f"{message}; choose a draft model with the same tokenizer, or draft without a "
        f"model: drafter=prompt_lookup (experts: {key}.allow_mismatch=true)"
    )


def _place(vocab: Mapping[str, int], token: str) -> str:
    return f"id {vocab[token]}" if token in vocab else "absent"
