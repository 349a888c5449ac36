"""What another tree would have accepted on texts that are already written.

A recorded text is decoded again by a stand-in that knows nothing but what comes next
in it. Greedy acceptance depends on the text, the drafter and the policy alone, so steps
and accepted tokens are those of the real model, without its weights; what a step takes
is not known, and is left empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from treespec.acceptance import Greedy
from treespec.acceptance_metrics import (
    acceptance_rate,
    mean_acceptance_length,
    num_accepted_per_step,
)
from treespec.analysis.live import results_from
from treespec.analysis.results import Results, one_run
from treespec.analysis.schema import (
    PROMPT_SCHEMA,
    RUN_NODE_SCHEMA,
    RUN_STEP_SCHEMA,
    Row,
    table_of,
)
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import AbstractDrafter
from treespec.errors import TreespecError
from treespec.models.table import TableModel
from treespec.policies import AbstractDraftPolicy
from treespec.sinks.rows import step_sums
from treespec.types import GenerationResult
from treespec.verifiers import TreeAttention

_MAX_POSITIONS = 1_000_000
_SPENT = ("draft_s", "plan_s", "verify_s", "accept_s", "commit_s", "step_s")


def replay(
    results: Results,
    drafter: AbstractDrafter,
    policy: AbstractDraftPolicy,
    budget: Constant,
    run: str | None = None,
) -> Results:
    """Return what a drafter and a policy would have done on a run's own texts.

    Accepted greedily. The policy is asked as in decoding, but for costs: one that
    measures time while it decodes decides otherwise here.

    Args:
        results: Loaded runs.
        drafter: One that needs only the text: prompt lookup, suffixes and their like.
        policy: Any policy.
        budget: What every step may spend.
        run: The run whose texts are decoded again, if there are several.

    Returns:
        One run without seconds, named after drafter and policy.

    Raises:
        TreespecError: The drafter needs a model, or the texts were not recorded.
    """
    _check(drafter)
    texts = _texts(results, one_run(results, run))
    decoded = _decode(texts, drafter, policy, budget)
    name = f"{type(drafter).__name__} + {type(policy).__name__}"
    prompts = [
        {"run": name, **_prompt_row(index, text, result)}
        for index, (text, result) in enumerate(zip(texts, decoded, strict=True))
    ]
    steps = [
        {"run": name, "prompt_idx": index, "id": text.id, "mode": "speculative", **row}
        for index, (text, result) in enumerate(zip(texts, decoded, strict=True))
        for row in _step_rows(result)
    ]
    runs = [{"run": name, **_run_row(drafter, policy, budget, decoded)}]
    return results_from(
        runs=runs,
        prompts=[table_of(prompts, PROMPT_SCHEMA)],
        steps=[table_of(steps, RUN_STEP_SCHEMA)],
        nodes=[RUN_NODE_SCHEMA.empty_table()],
        settings=[],
    )


@dataclass(frozen=True, slots=True)
class _Text:
    """A prompt and what the target wrote after it.

    Attributes:
        id: Its name.
        category: What kind of task it is.
        prompt: Tokens of the prompt.
        tokens: Tokens of the text.
        max_new_tokens: How long the text might have become: near its limit trees are
            smaller, near an end that nobody foresees they are not.
        ends: Whether its last token ended it.
    """

    id: str
    category: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    max_new_tokens: int
    ends: bool


def _check(drafter: AbstractDrafter) -> None:
    if drafter.runs_model or drafter.num_successors or drafter.hidden_layers:
        raise TreespecError(
            f"drafter must need only the text, but {type(drafter).__name__} asks a "
            "model; replay takes PromptLookup, TokenRecycling and their like"
        )


def _texts(results: Results, run: str) -> list[_Text]:
    prompts = results.prompts[results.prompts["run"] == run]
    if prompts.empty or prompts["tokens"].isna().any():
        raise TreespecError(
            f"run {run} has no texts; load a run folder with at least one prompt"
        )
    limits = results.runs.loc[results.runs["run"] == run, "max_new_tokens"]
    limit = int(limits.fillna(0).iloc[0])
    return [_text(row, limit) for _, row in prompts.iterrows()]


def _text(row: pd.Series, limit: int) -> _Text:
    ends = row["finish_reason"] == "eos"
    num_tokens = int(row["num_tokens"])
    return _Text(
        id=str(row["id"]),
        category=str(row["category"]),
        prompt=tuple(row["prompt_tokens"]),
        tokens=tuple(row["tokens"]),
        max_new_tokens=max(limit, num_tokens) if ends else num_tokens,
        ends=ends,
    )


def _decode(
    texts: Sequence[_Text],
    drafter: AbstractDrafter,
    policy: AbstractDraftPolicy,
    budget: Constant,
) -> list[GenerationResult]:
    # A vocabulary of the tokens that occur: logits of all others would be wasted.
    known = sorted({token for text in texts for token in text.prompt + text.tokens})
    new_ids = {token: number for number, token in enumerate(known)}
    results = []
    for text in texts:
        prompt = [new_ids[token] for token in text.prompt]
        tokens = [new_ids[token] for token in text.tokens]
        decoder = SpeculativeDecoder(
            target=_stand_in(prompt, tokens, len(known)),
            drafter=drafter,
            policy=policy,
            acceptance=Greedy(),
            verifier=TreeAttention(),
            controller=budget,
            eos_ids=frozenset(tokens[-1:] if text.ends else ()),
        )
        limit = text.max_new_tokens
        (result,) = decoder.generate([prompt], max_new_tokens=limit)
        assert list(result.tokens) == tokens, "greedy decoding keeps the text"
        results.append(result)
    return results


def _stand_in(
    prompt: Sequence[int], tokens: Sequence[int], vocab_size: int
) -> TableModel:
    """Return the model whose likeliest token is the recorded one."""
    whole = (*prompt, *tokens)
    following: Mapping[tuple[int, ...], int] = {
        whole[:length]: whole[length] for length in range(len(prompt), len(whole))
    }

    def logits(text: tuple[int, ...]) -> Tensor:
        row = torch.zeros(vocab_size)
        row[following.get(text, 0)] = 1.0  # off the text, where nothing is accepted
        return row

    # The table's type asks for a sequence of numbers, and a tensor is one.
    return TableModel(logits, vocab_size, _MAX_POSITIONS)  # type: ignore[arg-type]


def _prompt_row(index: int, text: _Text, result: GenerationResult) -> Row:
    sums = step_sums(result.steps)
    counts = ("num_steps", "num_nodes", "num_accepted", "num_committed")
    return {
        "prompt_idx": index,
        "id": text.id,
        "category": text.category,
        "num_prompt_tokens": len(text.prompt),
        "prompt_tokens": text.prompt,
        "tokens": text.tokens,
        "num_tokens": len(text.tokens),
        **{name: sums[name] for name in counts},
        "mean_acceptance_length": mean_acceptance_length(result.steps),
        "num_accepted_per_step": num_accepted_per_step(result.steps),
        "acceptance_rate": acceptance_rate(result.steps),
    }


def _step_rows(result: GenerationResult) -> list[Row]:
    names = [name for name in RUN_STEP_SCHEMA.names if name not in _SPENT]
    return [
        {name: getattr(step, name) for name in names if hasattr(step, name)}
        for step in result.steps
    ]


def _run_row(
    drafter: AbstractDrafter,
    policy: AbstractDraftPolicy,
    budget: Constant,
    results: Sequence[GenerationResult],
) -> Row:
    steps = [step for result in results for step in result.steps]
    nodes = pd.Series([step.num_nodes for step in steps], dtype=float)
    return {
        "status": "done",
        "sweep": "replayed",
        "drafter": type(drafter).__name__,
        "policy": type(policy).__name__,
        "acceptance": "Greedy",
        "temperature": 0.0,
        **{name: getattr(budget, name) for name in ("max_depth", "max_width")},
        "max_nodes": budget.max_nodes,
        "num_prompts": len(results),
        "num_steps": len(steps),
        "num_tokens": sum(len(result.tokens) for result in results),
        "mean_nodes": float(nodes.mean()) if steps else None,
        "mean_acceptance_length": mean_acceptance_length(steps),
        "num_accepted_per_step": num_accepted_per_step(steps),
        "acceptance_rate": acceptance_rate(steps),
    }
