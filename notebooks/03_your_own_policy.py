# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A policy of your own in ten lines
#
# What would it have accepted on texts that are already written? `replay` decodes the
# recorded texts again without the model: greedy acceptance depends on the text, the
# drafter and the policy alone.

# %% tags=["parameters"]
from example import runs_folder

from treespec.controllers import Constant
from treespec.drafters import PromptLookup
from treespec.policies import Planner

RUNS = runs_folder()
DRAFTER = PromptLookup()
BUDGET = Constant(max_depth=5, max_width=4, max_nodes=6)
RIVAL = Planner()  # the one place to change: any policy of treespec.policies

# %% [markdown]
# Nodes whose path is likelier than `least` go into the tree, and no others.

# %%
from dataclasses import dataclass

from treespec.policies import AbstractDraftPolicy, as_layer
from treespec.tree import path_logprobs
from treespec.types import ProposalKind


@dataclass(frozen=True)
class SurePaths(AbstractDraftPolicy):
    least: float = 0.3
    proposal, max_children = ProposalKind.DETERMINISTIC, None

    def grow(self, growth):
        children = growth.draft.top(4)
        above = path_logprobs(growth.tree)[growth.frontier[children.rows]]
        sure = (above + children.logprobs).exp() >= self.least
        kept = sure.nonzero().flatten()[: growth.room]
        return as_layer(growth, children.select(kept))


# %% [markdown]
# Does it keep the contract of a policy? One call tells.

# %%
from treespec.testing import check_draft_policy

print(check_draft_policy(SurePaths()))

# %% [markdown]
# ## What would it have accepted?

# %%
from treespec.analysis import load_results, plots, replay, tables

results = load_results(RUNS)
run = results.runs["run"].iloc[0]
own = replay(results, DRAFTER, SurePaths(), BUDGET, run)
rival = replay(results, DRAFTER, RIVAL, BUDGET, run)
columns = ["num_steps", "mean_acceptance_length", "acceptance_rate", "mean_nodes"]
{
    name: policy.runs[columns].iloc[0].to_dict()
    for name, policy in (("own", own), ("rival", rival))
}

# %%
plots.acceptance_by_depth(own)

# %%
plots.acceptance_by_depth(rival)

# %% [markdown]
# ## How fast would it be?
#
# A forecast, no measurement: every step is charged what a step with as many nodes took
# in the recorded run.

# %%
measured = results.only(run)
for name, policy in (("own", own), ("rival", rival)):
    print(f"{name}: {tables.forecast_speedup(policy, measured):.2f}x forecast")

# %% [markdown]
# And which threshold is best? Each replay takes a second, so just try.

# %%
for least in (0.1, 0.3, 0.5, 0.7, 0.9):
    tried = replay(results, DRAFTER, SurePaths(least), BUDGET, run)
    row = tried.runs.iloc[0]
    speedup = tables.forecast_speedup(tried, measured)
    print(
        f"least {least}: {row['mean_acceptance_length']:.2f} tokens per forward with "
        f"{row['mean_nodes']:.1f} nodes, {speedup:.2f}x forecast"
    )

# %% [markdown]
# To measure it, put the class into `my_policy.py` and decode with the model:
#
#     treespec policy=custom policy._target_=my_policy.SurePaths +policy.least=0.5
