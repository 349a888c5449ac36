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
# # An acceptance curve as papers draw it
#
# Papers show acceptance by position in two ways, and mixing them up is easy:
#
# - *unconditional*: of all steps, the share that accepted a draft at the depth;
# - *conditional*: of the steps that accepted everything above, as vLLM and
#   SPEED-Bench (2604.09557) define it.
#
# Leviathan et al. (2211.17192) assume that every draft is accepted with one
# probability, whatever came before. Then the conditional curve is flat, the
# unconditional one falls geometrically, and a chain of g drafts commits (1 - a^(g+1)) /
# (1 - a) tokens a step. Does that hold for this run?

# %% tags=["parameters"]
from example import runs_folder

RUNS = runs_folder()
# Unconditional acceptance by position of gpt-oss-120b with a chain: a single public run
# of vLLM at batch 8 and temperature 1, of no paper. Another pair: its shape compares.
REPORTED = [0.58, 0.31, 0.16, 0.08, 0.04]

# %%
import numpy as np

from treespec.analysis import Chart, load_results, plots, tables
from treespec.analysis.chart import Panel, Points

results = load_results(RUNS)
is_chain = results.runs["policy"].eq("Chain")
run = results.runs.loc[is_chain | ~is_chain.any(), "run"].iloc[0]
measured = tables.acceptance_by_depth(results.only(run))
columns = ["depth", "rate", "conditional_rate", "num_arrived"]
measured[columns].round(2)

# %% [markdown]
# Where nothing was drafted nothing can be accepted: all steps count in the
# unconditional curve, but only those with a draft up for acceptance in the conditional
# one. So one probability is estimated from the latter, all depths pooled: accepted
# drafts over drafts that were put to the test.

# %%
alpha = measured["num_accepted"].sum() / measured["num_arrived"].sum()
reported = np.array(REPORTED)
reported_conditional = reported / np.array([1.0, *REPORTED[:-1]])
print(f"one probability for all depths: {alpha:.2f}")
print("conditional, as reported:", reported_conditional.round(2))

# %%
depths = measured["depth"].astype(float).tolist()
curves = (
    Points(
        "this run",
        tuple(depths),
        tuple(measured["conditional_rate"]),
        tuple(measured["conditional_low"]),
        tuple(measured["conditional_high"]),
    ),
    Points(
        "2211.17192: one probability", tuple(depths), (alpha,) * len(depths), style=1
    ),
    Points(
        "gpt-oss-120b in vLLM, as reported",
        tuple(float(depth) for depth in range(1, len(REPORTED) + 1)),
        tuple(reported_conditional),
        style=2,
    ),
)
panel = Panel(
    x_label="Depth (tokens)",
    y_label="Accepted, of steps that arrived above\n(share, 95% interval)",
    marks=curves,
    y_range=(0.0, 1.03),
    has_whole_x=True,
)
n = int(measured["num_steps"].iloc[0])
Chart(f"Conditional acceptance by depth (n = {n} steps)", (panel,))

# %% [markdown]
# The reported curve is nearly flat: a draft model of some quality, asked again and
# again. Where a drafter copies from the text it rises instead: who has copied three
# tokens right is probably copying the right passage. One number for acceptance then
# misleads, and so does the formula for tokens per step:

# %%
steps = results.only(run).steps.query("mode == 'speculative'")
chain = steps[steps["num_nodes"] > 0]
length = chain["depth"].astype(int)
formula = ((1 - alpha ** (length + 1)) / (1 - alpha)).mean()
actual = chain["num_committed"].mean()
print(f"tokens per drafting step: {actual:.2f} measured, {formula:.2f} by the formula")

# %%
plots.acceptance_by_depth(results)
