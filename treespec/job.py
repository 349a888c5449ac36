"""Everything that a run is made of, before any weight is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from treespec.acceptance import AbstractAcceptanceRule
from treespec.baselines import AbstractBaseline
from treespec.calibration import Calibration
from treespec.controllers import AbstractController
from treespec.datasets.base import Prompt
from treespec.drafters import AbstractDrafter
from treespec.environment import package_version
from treespec.errors import TreespecError, require_integer
from treespec.measures import AbstractQualityMeasure
from treespec.models.base import AbstractLanguageModel
from treespec.models.source import ModelSource
from treespec.policies import AbstractDraftPolicy
from treespec.sampling import Sampling
from treespec.sinks.base import AbstractSink
from treespec.verifiers import AbstractVerifier

TARGET, DRAFT = "pair.target", "pair.draft"
"""Keys of the models, in the configuration and as a drafter's values."""
DRAFT_IF_ANY = "pair.draft?"
"""As a drafter's value: the draft model if the pair has one, else nothing."""

Models = Mapping[str, AbstractLanguageModel]
Trace = Literal["steps", "nodes"]

CALIBRATION_KEY = "calibration"
"""Key of a policy's file whose content matters to the result."""

# What does not change the result, or names the folder anyway.
_NOT_IN_KEY = ("sink", "wandb", "output_root", "sweep_name", "force")


_CALIBRATED = ("pair", "drafter", "acceptance", "sampling")
"""Groups of the configuration that a calibration depends on."""


@dataclass(frozen=True, slots=True)
class Strategies:
    """The five exchangeable parts.

    Attributes:
        drafter: The drafter, or what makes it from the pair's models.
        needs: Keys of the models that it is made from.
        policy: The draft policy.
        controller: The controller.
        acceptance: The acceptance rule.
        verifier: The verifier.
    """

    drafter: AbstractDrafter | Callable[[Models], AbstractDrafter]
    needs: frozenset[str]
    policy: AbstractDraftPolicy
    controller: AbstractController[Any]
    acceptance: AbstractAcceptanceRule
    verifier: AbstractVerifier


@dataclass(frozen=True, slots=True)
class Settings:
    """The top-level keys of a configuration.

    Attributes:
        seed: Seed of the run.
        max_new_tokens: Most new tokens per prompt.
        num_prompts: How many prompts; ``None`` for all.
        stop: Strings that end a text.
        max_concurrent: Prompts decoded together.
        warmup: Whether to decode a little before the clock starts.
        trace: ``steps``, ``nodes`` or ``None``.
        output_root: Folder of all results.
        sweep_name: Folder of runs that belong together.
        force: Whether to repeat a finished run.
    """

    seed: int
    max_new_tokens: int
    num_prompts: int | None
    stop: Sequence[str]
    max_concurrent: int
    warmup: bool
    trace: Trace | None
    output_root: str
    sweep_name: str
    force: bool

    def __post_init__(self) -> None:
        """Check types and bounds; names are those of the configuration."""
        for name, least in (("seed", 0), ("max_new_tokens", 1), ("max_concurrent", 1)):
            require_integer(name, getattr(self, name), least)
        if self.num_prompts is not None:
            require_integer("num_prompts", self.num_prompts, 1, ", or null for all")
        for name in ("warmup", "force"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TreespecError(f"{name} must be true or false, got {value!r}")
        if self.trace not in (None, "steps", "nodes"):
            raise TreespecError(
                f"trace must be steps, nodes or null, got {self.trace!r}"
            )
        texts = isinstance(self.stop, list | tuple) and all(
            isinstance(text, str) and text for text in self.stop
        )
        if not texts:
            raise TreespecError(
                f"stop must be a list of texts, got {self.stop!r}; write stop=[END]"
            )
        for name in ("output_root", "sweep_name"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise TreespecError(f"{name} must be a folder name, got {value!r}")
        parts = Path(self.sweep_name).parts
        if Path(self.sweep_name).is_absolute() or ".." in parts:
            raise TreespecError(
                f"sweep_name must stay inside of output_root, got {self.sweep_name!r}; "
                "choose another place with output_root=DIR"
            )


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a run is made of, before any weight is read.

    Attributes:
        config: The resolved configuration, for the record.
        settings: Its top-level keys.
        target: Where the target model is.
        draft: Where the draft model is; ``None`` if the pair has none.
        allow_mismatch: Whether the two may have different vocabularies.
        strategies: The five parts.
        sampling: How the target's logits become a law.
        baseline: What the strategies are compared with.
        prompts: What to decode.
        sinks: Who is told, the run folder first.
        measures: What judges the texts.
    """

    config: dict[str, Any]
    settings: Settings
    target: ModelSource
    draft: ModelSource | None
    allow_mismatch: bool
    strategies: Strategies
    sampling: Sampling
    baseline: AbstractBaseline
    prompts: tuple[Prompt, ...]
    sinks: tuple[AbstractSink, ...]
    measures: tuple[AbstractQualityMeasure, ...] = ()

    @property
    def calibration(self) -> Path | None:
        """The file that the policy was made from, if there is one."""
        policy = self.config.get("policy")
        path = policy.get(CALIBRATION_KEY) if isinstance(policy, dict) else None
        return Path(path) if isinstance(path, str) else None

    def notes(self) -> list[str]:
        """Return what is allowed and may yet not be what the user wants."""
        return [*self._cuts(), *self._other_calibration()]

    def _cuts(self) -> Iterator[str]:
        policy, budget = self.strategies.policy, self.strategies.controller.largest
        if policy.whole is None or not budget.speculates:
            return
        wanted, given = asdict(policy.whole), asdict(budget)
        short = [name for name in wanted if given[name] < wanted[name]]
        if short:
            wants = " ".join(f"controller.{n}={wanted[n]}" for n in short)
            has = ", ".join(f"{n}={given[n]}" for n in short)
            yield (
                f"{type(policy).__name__} has its whole tree from {wants} on; {has} "
                "cuts it"
            )

    def _other_calibration(self) -> Iterator[str]:
        if self.calibration is None:
            return
        measured = Calibration.read(self.calibration).about.get("config", {})
        other = [n for n in _CALIBRATED if measured.get(n) != self.config.get(n)]
        sides = (measured, self.config)
        if len({str(side.get("policy", {}).get("proposal")) for side in sides}) > 1:
            other.append("policy.proposal")
        if measured and other:
            yield (
                f"policy.calibration was measured with another {' and '.join(other)}; "
                "run treespec calibrate again with these"
            )

    @property
    def run_key(self) -> str:
        """Hash of what determines the result: configuration, prompts, version."""
        config = {k: v for k, v in self.config.items() if k not in _NOT_IN_KEY}
        prompts = [asdict(prompt) for prompt in self.prompts]
        content = [config, prompts, package_version("treespec")]
        if self.calibration is not None and self.calibration.is_file():
            content.append(self.calibration.read_text(encoding="utf-8"))
        encoded = json.dumps(content, sort_keys=True, default=str).encode()
        return hashlib.sha256(encoded).hexdigest()[:16]

    @property
    def folder(self) -> Path:
        """The run's folder."""
        root = Path(self.settings.output_root).expanduser()
        return root / self.settings.sweep_name / self.run_key
