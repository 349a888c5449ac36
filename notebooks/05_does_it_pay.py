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
# How deep should it draft? Cutting every tree at depth d loses what was accepted below
# and saves what was verified there. A first guess, before a sweep over
# `controller.max_depth`.

# %%
forecast = tables.forecast_by_depth(results)
forecast.round(2)

# %%
run = results.runs["run"].iloc[0]
of_run = forecast[(forecast["run"] == run) & forecast["is_best"]]
best = int(of_run["depth"].iloc[0])
row = results.runs.set_index("run").loc[run]
told = row["speedup"], row["speedup_low"], row["speedup_high"]
if best == 0:
    print("Advice: leave speculation off for this pair and these texts.")
else:
    print(f"Advice: draft {best} tokens deep (controller.max_depth={best}).")
print("Measured with the run's own tree: {:.2f}x ({:.2f}x to {:.2f}x)".format(*told))

# %% [markdown]
# The forecast takes the median step of each size: what happens once a text, such as the
# draft model's reading of the prompt, is in the measured speed-up alone. Where the time
# went:

# %%
plots.time_shares(results)
