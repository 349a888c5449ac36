"""An acceptance rule under observation: every answer is checked as it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from treespec.acceptance import AbstractAcceptanceRule
from treespec.chance import AbstractChance
from treespec.errors import NumericalError
from treespec.sampling import Sampling
from treespec.testing.drawing import MOST_NODES, describe, draw_tree, row
from treespec.testing.failure import ConformanceError, told
from treespec.tree import ROOT, HostTree, TokenTree
from treespec.types import Acceptance, NextKind, ProposalKind


@dataclass(frozen=True, slots=True)
class CheckedRule(AbstractAcceptanceRule):
    """Passes trees on to a rule and refuses answers that are none.

    Attributes:
        rule: The rule that is observed; its facts are this one's.
    """

    rule: AbstractAcceptanceRule

    @property
    def lossless(self) -> bool:
        """As the rule says."""
        return self.rule.lossless

    @property
    def greedy_only(self) -> bool:
        """As the rule says."""
        return self.rule.greedy_only

    @property
    def draws_like_autoregressive(self) -> bool:
        """As the rule says."""
        return self.rule.draws_like_autoregressive

    @property
    def proposals(self) -> Mapping[ProposalKind, int | None]:
        """As the rule says."""
        return self.rule.proposals

    @property
    def name(self) -> str:
        """As the rule says."""
        return self.rule.name

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        """Return the rule's answer.

        Raises:
            NumericalError: From the rule, where a best logit is no number.
            ConformanceError: The rule failed, or its answer is none.
        """
        case = partial(show_case, tree, target_logits, sampling)
        try:
            acceptance = self.rule.accept(tree, target_logits, sampling, chance)
        except NumericalError as error:
            if not bool(target_logits.amax(dim=-1).isfinite().all()):
                raise
            raise ConformanceError(
                f"{self.name} raised {told(error)}, but every node has a finite best "
                "logit: test logits.amax(), because -inf is allowed and bans a token\n"
                f"{case()}"
            ) from error
        except ConformanceError as error:
            raise ConformanceError(f"{self.name}: {error}\n{case()}") from error
        except (Exception, SystemExit) as error:  # an exit must not look like success
            raise ConformanceError(
                f"{self.name} raised {told(error)}\n{case()}"
            ) from error
        fault = find_fault(acceptance, tree.host(), target_logits.shape[-1])
        if fault:
            raise ConformanceError(
                f"{self.name} returned {acceptance}: {fault}\n{case()}"
            )
        return acceptance


def show_case(tree: TokenTree, target_logits: Tensor, sampling: Sampling) -> str:
    """Return what a rule was given."""
    nodes = [f"  {row(logits)}" for logits in target_logits.tolist()[:MOST_NODES]]
    return "\n".join(
        [draw_tree(tree), f"at {describe(sampling)}; target_logits by node:", *nodes]
    )


def find_fault(acceptance: object, host: HostTree, vocab_size: int) -> str | None:
    """Return what is wrong with an answer of a rule, or ``None``."""
    if not isinstance(acceptance, Acceptance):
        return "accept must return an Acceptance"
    path, token, kind = (
        acceptance.node_ids,
        acceptance.next_token,
        acceptance.next_kind,
    )
    if not isinstance(path, tuple) or any(type(node) is not int for node in path):
        return "node_ids must be a tuple of integers"
    if any(not 0 < node < len(host.parents) for node in path):
        return "node_ids must be nodes of the tree, the root excluded"
    if [host.parents[node] for node in path] != [ROOT, *path][:-1]:
        return "node_ids must lead from the root down, each the child of the one before"
    if type(token) is not int or not 0 <= token < vocab_size:
        return f"next_token must be an integer in [0, {vocab_size})"
    end = path[-1] if path else ROOT
    right = _kind(end in host.parents)
    fits = kind == right or kind == _kind(_merged_below(host, end))
    return None if fits else f"next_kind must be {right}"


def _kind(has_children: bool) -> NextKind:
    return "recovered" if has_children else "bonus"


def _merged_below(host: HostTree, end: int) -> bool:
    """Return whether there is a child below any sibling that has the same text."""
    text = [host.tokens[node] for node in host.path(end)]
    return any(
        [host.tokens[node] for node in host.path(other)] == text
        for other in host.parents[1:]
    )
