"""What the tokens of a run say, if the tokenizer of its target is at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from treespec.analysis.visible import visible_label, visible_text
from treespec.errors import TreespecError
from treespec.files import MALFORMED
from treespec.models.cached import cached_tokenizer
from treespec.models.source import ModelSource
from treespec.models.texts import text_pieces, token_texts
from treespec.models.tokenizer import HuggingFaceTokenizer
from treespec.sinks.base import RunInfo
from treespec.sinks.reader import Run

_KEY = "pair.target"


@dataclass(frozen=True, slots=True)
class Words:
    """From token ids to text that can be shown.

    Attributes:
        tokenizer: The target's; without one, ids are shown.
        note: Why there is none, and the way out; empty if there is one.
    """

    tokenizer: HuggingFaceTokenizer | None
    note: str = ""

    def labels(self, tokens: Iterable[int]) -> dict[int, str]:
        """Return a label in one line for each token."""
        if self.tokenizer is None:
            return {token: f"#{token}" for token in tokens}
        texts = token_texts(self.tokenizer, tokens)
        return {token: visible_label(text) for token, text in texts.items()}

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return what every token adds to a text."""
        if self.tokenizer is None:
            return [f"#{token} " for token in tokens]
        return [visible_text(text) for text in text_pieces(self.tokenizer, tokens)]


def find_words(run: Run | RunInfo, folder: str | None = None) -> Words:
    """Return the words of a run; a model that is not here costs only them.

    Args:
        run: The run, whose configuration names the target.
        folder: A folder with a tokenizer to use instead; ``None`` for the target's.

    Raises:
        TreespecError: ``folder`` was given and holds no tokenizer.
    """
    if folder is not None:
        if not Path(folder).expanduser().is_dir():
            raise TreespecError(
                f"tokenizer: must be a folder with a tokenizer.json, got {folder!r}"
            )
        return Words(cached_tokenizer(ModelSource(path=folder), "tokenizer"))
    try:
        return Words(cached_tokenizer(_source(run), _KEY))
    except (TreespecError, *MALFORMED) as error:
        reason = " ".join(str(error).split())
        return Words(
            None,
            f"Tokens are shown as ids ({reason}); give tokenizer=FOLDER, a folder "
            "with the tokenizer of the run's target.",
        )


def _source(run: Run | RunInfo) -> ModelSource:
    """Return the run's target, a model of the hub at the commit that was run."""
    pair = run.config.get("pair")
    given = pair.get("target") if isinstance(pair, dict) else None
    if not isinstance(given, dict):
        raise TreespecError("the run's config.yaml names no target")
    names = [field.name for field in fields(ModelSource) if field.name in given]
    source = {name: given[name] for name in names}
    if source.get("hub_id") is not None:
        source["revision"] = _commit(run.environment) or source.get("revision")
    return ModelSource(**source)


def _commit(environment: Mapping[str, object]) -> str | None:
    models = environment.get("models")
    target = models.get("target") if isinstance(models, dict) else None
    commit = target.get("revision") if isinstance(target, dict) else None
    return commit if isinstance(commit, str) else None
