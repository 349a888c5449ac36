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
# # Does speculation pay for my pair and my text?
#
# Decode some of your own prompts with your own pair, and look:
#
#     treespec pair=custom pair.target.path=DIR pair.draft.path=DIR \
#         drafter=draft_model policy=chain trace=nodes \
#         dataset=jsonl dataset.path=prompts.jsonl
#     TREESPEC_NOTEBOOK_RUN=outputs/default jupyter lab notebooks/

# %% tags=["parameters"]
from example import runs_folder

RUNS = runs_folder()

# %%
from treespec.analysis import load_results, plots, tables

results = load_results(RUNS)
results

# %% [markdown]
# ## The profile: what does a row more cost?
#
# Medians of the verify phase in the run itself, by the rows of the forward. A flat
# curve is a machine that waits for memory: rows are nearly free, and trees may be
# large. A rising one computes: each row must earn its keep.

# %%
plots.measured_costs(results)

# %% [markdown]
# ## The break-even
#
# A step that takes r times as long as a plain one must keep more than r - 1 of its
# drafts.

# %%
plots.break_even(results)

# %%
columns = [
    "run",
    "num_nodes",
    "num_steps",
    "break_even",
    "accepted",
    "low",
    "high",
    "pays",
]
tables.break_even(results)[columns].round(2)

# %% [markdown]
# ## Advice
#
# How deep should a chain be? Cutting it at depth d keeps what was accepted down to d,
# and costs d rows less the cut. The curve below weighs the two, for the first run.

# %%
run = results.runs["run"].iloc[0]
depths = tables.acceptance_by_depth(results.only(run))
costs = tables.measured_costs(results.only(run)).set_index("num_rows")["seconds"]
plain_s = costs.loc[1]
costs = costs.cummax()  # a row more never saves time: what says so is noise
kept = 1 + depths.set_index("depth")["rate"].cumsum()
speed = {0: 1.0}
for depth, tokens in kept.items():
    rows = costs[costs.index <= depth + 1]
    speed[depth] = tokens * plain_s / rows.iloc[-1]
best = max(speed, key=speed.get)
for depth, times in speed.items():
    print(f"depth {depth}: {times:.2f}x" + (" <- best" if depth == best else ""))

# %%
row = results.runs.set_index("run").loc[run]
told = row["speedup"], row["speedup_low"], row["speedup_high"]
if best == 0:
    print("Advice: leave speculation off for this pair and these texts.")
else:
    print(f"Advice: draft {best} tokens deep (controller.max_depth={best}).")
print("Measured with the run's own tree: {:.2f}x ({:.2f}x to {:.2f}x)".format(*told))

# %% [markdown]
# The forecast looks at verifying alone; what drafting costs is in the measured speed-up
# and here:

# %%
plots.time_shares(results)
