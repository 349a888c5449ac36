"""What ``treespec check`` does with the parts that its overrides name.

A drafter that asks for the pair's models is given tiny exact ones: no weights are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from treespec.acceptance import AbstractAcceptanceRule
from treespec.errors import TreespecError
from treespec.job import DRAFT, TARGET, Models
from treespec.policies import AbstractDraftPolicy
from treespec.sampling import Sampling
from treespec.testing import (
    ConformanceError,
    check_acceptance_rule,
    check_controller,
    check_draft_policy,
    check_drafter,
)
from treespec.testing.toys import random_model, table_model

CHECKS: Mapping[str, Callable[[Any], object]] = {
    "acceptance": check_acceptance_rule,
    "policy": check_draft_policy,
    "drafter": check_drafter,
    "controller": check_controller,
}
"""Group -> its check, which returns a report."""
TOY_VOCAB_SIZE = 8


def named_parts(overrides: Iterable[str]) -> list[str]:
    """Return the groups that overrides name, among those that can be checked.

    Raises:
        TreespecError: They name none.
    """
    keys = {text.partition("=")[0].lstrip("+~").partition(".")[0] for text in overrides}
    names = [name for name in CHECKS if name in keys]
    if not names:
        raise TreespecError(
            f"treespec check needs a part to check: name {', '.join(CHECKS)}, or "
            "several of them, as in policy=chain or acceptance._target_=my_pkg.MyRule"
        )
    return names


def toy_models() -> Models:
    """Return a target and a draft that agree now and then."""
    return {
        key: table_model(random_model(TOY_VOCAB_SIZE, seed), TOY_VOCAB_SIZE)
        for seed, key in enumerate((TARGET, DRAFT))
    }


def check_parts(parts: Mapping[str, object]) -> list[str]:
    """Check every part; print what holds, and return what does not.

    Raises:
        IncompatiblePartsError: The rule is biased for the policy's proposal.
    """
    _check_pair(parts.get("acceptance"), parts.get("policy"))
    failures = []
    for group, part in parts.items():
        try:
            report = CHECKS[group](part)
        except ConformanceError as error:
            failures.append(f"{group}: {error}")
            continue
        print(f"ok {group} {type(part).__name__}\n{report}", flush=True)
    return failures


def _check_pair(rule: object, policy: object) -> None:
    """Refuse a rule and a policy that are wrong together, if both are there."""
    if not isinstance(rule, AbstractAcceptanceRule):
        return
    if isinstance(policy, AbstractDraftPolicy):
        sampling = Sampling(temperature=0.0 if rule.greedy_only else 1.0)
        name = type(policy).__name__
        rule.check(
            policy.proposal,
            policy.max_children,
            policy.ends_siblings_early,
            sampling,
            name,
        )
