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
# # A first look at a run
#
# Everything here is read from a run's folder: no model is loaded. Set
# `TREESPEC_NOTEBOOK_RUN` to a folder of yours, or to `fresh` to make one now.

# %% tags=["parameters"]
from example import runs_folder

RUNS = runs_folder()

# %%
from treespec.analysis import load_results, plots

results = load_results(RUNS)
results

# %% [markdown]
# Runs that failed or were not finished would be listed above by name. One row per run,
# its summary included; `results.prompts`, `.steps` and `.nodes` have the rest.

# %%
summary = ["drafter", "policy", "speedup", "speedup_low", "speedup_high"]
results.runs.set_index("run")[[*summary, "mean_acceptance_length", "mean_nodes"]]

# %% [markdown]
# ## Is it faster, and on which texts?
#
# An interval that holds 1 says that nobody knows yet: decode more prompts. If plain
# steps scatter (`baseline_step_spread` far above 1), the machine was busy, and no
# speed-up of this run means much.

# %%
results.runs.set_index("run")[["baseline_step_spread", "num_prompts"]]

# %%
plots.speedup_by_category(results)

# %% [markdown]
# ## Where does acceptance die?

# %%
plots.acceptance_by_depth(results)

# %%
plots.acceptance_by_rank(results)

# %% [markdown]
# ## Where does the time go?

# %%
plots.time_shares(results)

# %%
plots.latencies(results)

# %% [markdown]
# ## One generation, step by step

# %%
run = results.runs["run"].iloc[0]
prompt = results.prompts.loc[results.prompts["run"] == run, "id"].iloc[0]
plots.generation(results, prompt, run)

# %% [markdown]
# ## Can the drafter's probabilities be believed?

# %%
plots.reliability(results)

# %% [markdown]
# Every chart has an interactive twin (`.interactive()`), its numbers (`.frame`), and
# can be saved for a paper or the browser: `.save("depth.pdf")`, `.save("depth.html")`.

# %%
plots.acceptance_by_depth(results).frame
