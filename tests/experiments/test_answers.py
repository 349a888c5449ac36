"""What the studies of speed and cost make of made-up runs: no model decodes here."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.experiments.conftest import FOLDER
from tests.outcomes import make_outcome
from treespec.analysis import results_of
from treespec.errors import TreespecError
from treespec.metrics import summarize
from treespec.sinks.reader import Run

JOBS = ("gamma_5", "gamma_10")
MODELS = {
    "target": {"weight_bytes": 3 * 2**30, "cache_bytes_per_token": 2**20},
    "draft": {"weight_bytes": 2**29, "cache_bytes_per_token": 2**19},
}


def slowed(result, times):
    """The same result on a machine that took so many times as long for everything."""
    return replace(
        result, prefill_s=result.prefill_s * times, decode_s=result.decode_s * times
    )


def made_run(
    slowness=1.0, at_once=1, count=8, categories=("code", "chat"), disturbed=1.0
):
    """A run of chains of 5 that accept 3 tokens a step of 10 ms, times slowness.

    Everything takes as many times as long as the machine was disturbed.
    """
    outcomes = []
    for index in range(count):
        made = make_outcome(
            f"p{index}",
            categories[index % len(categories)],
            accepted=(3, 3, 3 - index % 2),
            shape=(1, 1, 1, 1, 1),
        )
        own = made.speculative
        slow = replace(
            own,
            decode_s=own.decode_s * slowness,
            steps=tuple(replace(s, step_s=s.step_s * slowness) for s in own.steps),
        )
        outcomes.append(
            replace(
                made,
                speculative=slowed(slow, disturbed),
                baseline=slowed(made.baseline, disturbed),
            )
        )
    return Run(
        folder=Path("none"),
        config={"max_concurrent": at_once},
        environment={"models": MODELS},
        status={},
        outcomes=tuple(outcomes),
        summary=summarize(outcomes, 1.0),
    )


@pytest.fixture
def measured(module):
    """What a study would be given of made-up runs, with its own settings."""

    def make(name, runs, **settings):
        plan = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
        outcomes = [o for run in runs.values() for o in run.outcomes]
        return module("engine").Measured(
            settings={**plan.get("settings", {}), **settings},
            runs=runs,
            missing={},
            results=results_of(outcomes[:8]),
            folder=Path("none"),
        )

    return make


def test_a_batch_takes_as_long_as_its_slowest_request(module):
    run = made_run(at_once=4)
    found = module("serving").served([run], "speculative")
    latencies = [o.speculative.prefill_s + o.speculative.decode_s for o in run.outcomes]
    assert found.wall_s == pytest.approx(max(latencies[:4]) + max(latencies[4:]))
    assert found.requests_per_s == pytest.approx(8 / found.wall_s)
    alone = module("serving").served([made_run()], "speculative")
    assert alone.wall_s == pytest.approx(sum(latencies))
    assert alone.mean_ms == pytest.approx(1000 * sum(latencies) / 8)
    assert alone.percentile_ms(100) == pytest.approx(1000 * max(latencies))


def test_only_the_prompts_that_all_runs_share_are_compared(module):
    run = made_run()
    found = module("serving").served([run], "baseline", ["p1", "p2"])
    assert len(found.latencies_ms) == 2


def loads(methods, slowness):
    return {
        f"{method}_at_{load}": made_run(slow, load)
        for method in methods
        for load, slow in slowness.items()
    }


def test_the_load_at_which_speculation_stops_paying_is_found(module, measured):
    slowness = {1: 1.0, 2: 2.0, 4: 8.0, 8: 20.0}
    runs = {
        f"{method}_at_{load}": made_run(slow, load, count=8 * load)
        for method in ("gamma_5", "gamma_10", "planner")
        for load, slow in slowness.items()
    }
    study = module("latency_throughput").STUDY
    answer = study.answer(measured("latency_throughput", runs))
    assert "faster beyond its interval with 1 and 2 requests at once" in answer.text
    assert "slower with 4 and 8" in answer.text
    assert "the largest load at which it served more requests/s was 2" in answer.text
    frame = answer.tables["By requests at once"]
    assert list(frame["method"][:4]) == [
        "autoregressive", "5 drafts", "10 drafts", "planner",
    ]  # fmt: skip


def test_requests_of_one_batch_are_no_experiments_of_their_own(module, measured):
    """Eight requests that shared every step had a verdict on the load of eight."""
    runs = loads(["gamma_5"], {1: 1.0, 8: 1.0})
    study = module("latency_throughput").STUDY
    answer = study.answer(measured("latency_throughput", runs))
    frame = answer.tables["Speculation against plain decoding at the same load"]
    assert list(frame["verdict"]) == ["faster", "too few batches to tell"]


def test_where_speculation_never_pays_the_same_code_says_so(module, measured):
    runs = loads(["gamma_5"], {1: 9.0, 2: 9.0})
    study = module("latency_throughput").STUDY
    answer = study.answer(measured("latency_throughput", runs))
    assert "at no load did it serve more requests/s" in answer.text
    assert "10 drafts: not measured" in answer.summary


def test_the_articles_table_stands_beside_ours(module, measured):
    article = module("article_table")
    runs = {"gamma_5": made_run(), "gamma_10": made_run(9.0)}
    runs |= {f"gamma_5_at_{n}": made_run(at_once=n) for n in (2, 4, 8)}
    found = measured("article_table", runs)
    answer = article.answer(replace(found, results=named(found.results, *JOBS)))
    frame = answer.tables["Beside the article"].set_index("method")
    assert frame.loc["5 drafts", "article"] == "2.57x"
    assert frame.loc["10 drafts", "article"] == "3.19x"
    assert frame.loc["10 drafts", "article (times)"] == "3.23x"
    assert float(frame.loc["5 drafts", "times as fast"][:-1]) > 1
    assert float(frame.loc["10 drafts", "times as fast"][:-1]) < 1
    assert "no constant acceptance explains both rows" in answer.text
    explained = answer.tables["What acceptance would explain the article"]
    assert float(explained.iloc[0]["acceptance for 5 drafts"]) == pytest.approx(
        0.64, abs=0.02
    )


def named(results, *names):
    """The same results once for each of some jobs."""
    tables = ("runs", "prompts", "steps", "nodes", "settings")
    return type(results)(
        *(
            pd.concat([getattr(results, table).assign(run=name) for name in names])
            for table in tables
        )
    )


def test_the_pair_pays_for_a_larger_machine_if_it_must(module, measured):
    cost = module("cost_benefit")
    runs = loads(["gamma_5"], {1: 1.0, 8: 9.0})
    answer = cost.answer(measured("cost_benefit", runs))
    memory = answer.tables["Memory and machines"].set_index("what")
    assert memory.loc["without speculation", "cheapest machine"] == "small"
    assert memory.loc["pair", "cheapest machine"] == "medium"
    assert "2.00x that of the target alone" in answer.text
    tight = [
        {"name": "a", "price_per_hour": 1.0, "memory_gib": 5.1},
        {"name": "b", "price_per_hour": 3.0, "memory_gib": 8},
    ]
    answer = cost.answer(measured("cost_benefit", runs, machines=tight))
    memory = answer.tables["Memory and machines"].set_index("what")
    assert memory.loc["without speculation", "cheapest machine"] == "a"
    assert memory.loc["pair", "cheapest machine"] == "b"
    assert "must make 3.00x the tokens/s" in answer.summary
    assert "more at worst (5 drafts, 8 at once)" in answer.summary


def test_without_a_machine_that_is_large_enough_there_is_no_price(module, measured):
    small = [{"name": "a", "price_per_hour": 1.0, "memory_gib": 1}]
    runs = loads(["gamma_5"], {1: 1.0})
    answer = module("cost_benefit").answer(
        measured("cost_benefit", runs, machines=small)
    )
    assert "no machine is large enough" in answer.summary


def test_without_any_run_there_is_no_answer(module, measured):
    found = measured("cost_benefit", {"other": made_run()})
    with pytest.raises(TreespecError, match="no answer"):
        module("cost_benefit").answer(found)


def test_higher_acceptance_pays_where_the_measured_one_does_not(module, measured):
    """A step that takes 3 times a plain one pays from 3 tokens per forward on."""
    runs = loads(["gamma_5"], {1: 3.6})
    one = [{"name": "a", "price_per_hour": 1.0, "memory_gib": 20}]
    found = measured("cost_benefit", runs, machines=one)
    answer = module("cost_benefit").answer(found)
    frame = answer.tables["Sensitivity to acceptance"]
    assert frame["pays"].iloc[0] == "no"
    assert frame["pays"].iloc[-1] == "yes"


def test_ways_to_decode_are_compared_with_a_cache_alone(module, measured):
    study = module("traditional_vs_speculative")
    runs = {
        "cache": made_run(0.5),
        "no_cache": made_run(1.0, count=4, disturbed=5.0),
        "speculation": made_run(9.0),
        "quantized": made_run(1.0),
        "planner": made_run(1.0, disturbed=5.0),
    }
    answer = study.answer(measured("traditional_vs_speculative", runs))
    frame = answer.tables["Each way"].set_index("way")
    assert float(frame.loc["no cache (transformers)", "times as fast"][:-1]) < 0.9
    assert float(frame.loc["5 drafts", "times as fast"][:-1]) < 1
    assert (
        "Speculation slowed decoding beyond its interval as: 5 drafts." in answer.text
    )
    # In turns with plain decoding, so that a disturbed machine changes nothing.
    assert float(frame.loc["planned drafts", "times as fast"][:-1]) > 1
    assert "4 at once" not in frame.index
