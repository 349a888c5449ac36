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
# # Tree against chain
#
# Two runs of the same drafter on the same prompts: one drafts a chain, the other a
# tree. Does the tree accept more, and is it worth what it costs?

# %% tags=["parameters"]
from example import runs_folder

RUNS = runs_folder()

# %%
import numpy as np
import pandas as pd

from treespec.analysis import load_results, plots, tables
from treespec.stats import bootstrap_interval

results = load_results(RUNS)
done = results.runs[results.runs["status"] == "done"]
is_chain = done["policy"] == "Chain"
assert set(is_chain) == {True, False}, "sweep over policy=chain,best_first"
chain, tree = done.loc[is_chain, "run"].iloc[0], done.loc[~is_chain, "run"].iloc[0]
labels = results.labels()
labels

# %% [markdown]
# ## What does the tree accept that the chain does not?
#
# A chain has one child per node. The second and third sibling of a tree are worth
# something only as far as they are accepted.

# %%
plots.acceptance_by_rank(results)

# %%
plots.acceptance_by_depth(results)

# %% [markdown]
# Prompts differ more than policies do, so the two are compared prompt by prompt: the
# difference of tokens per forward, with a paired bootstrap interval over prompts.

# %%
committed = results.prompts.pivot(index="id", columns="run", values="num_committed")
forwards = results.prompts.pivot(index="id", columns="run", values="num_steps")
sides = committed[[chain, tree]], forwards[[chain, tree]]
rows = pd.concat(sides, axis="columns").dropna().to_numpy(dtype=float)


def gain(sums):
    """Return tokens per forward of the tree less those of the chain."""
    return sums[..., 1] / sums[..., 3] - sums[..., 0] / sums[..., 2]


interval = bootstrap_interval(rows, gain, np.random.default_rng(0))
difference = gain(rows.sum(axis=0))
print(f"{labels[tree]} less {labels[chain]}: {difference:+.2f} tokens per forward")
print(f"95% interval over {len(rows)} prompts: {interval}")

# %% [markdown]
# ## What does it cost?
#
# Each node of a tree is a row of the target's forward. Where rows are free (the flat
# part of the roofline) a wider tree costs nothing; where they are not, it must earn its
# rows.

# %%
plots.measured_costs(results)

# %%
plots.break_even(results)

# %% [markdown]
# ## Which of the two is faster?

# %%
plots.speed_by_nodes(results)

# %%
columns = ["run", "category", "speedup", "low", "high"]
tables.speedup_by_category(results)[columns].query("category == 'all'")

# %% [markdown]
# ## Is it the tree, or the rule?
#
# The best that any acceptance rule could do at the nodes that were reached. Greedy
# decoding leaves nothing on the table: rule and bound are the same.

# %%
plots.rule_and_bound(results)
