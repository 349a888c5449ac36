"""Every chart, drawn by both libraries, of runs that have much, little and nothing."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from treespec.analysis import plots
from treespec.analysis.chart import Points, Spans
from treespec.analysis.look import NUM_STYLES, look
from treespec.errors import TreespecError

OF_RESULTS = sorted(set(plots.__all__) - {"cost_curves", "cost_profile", "generation"})
LONGEST_NAME = 60 + len(": needed to break even")
ODD = ("empty", "failed", "killed", "single prompt", "nothing drafted", "one token")


class Costs:
    """What forwards cost, by a formula."""

    def target(self, num_rows, length=0):
        return 0.1 + 0.01 * num_rows

    def draft(self, num_rows, length=0):
        return 0.01 + 0.001 * num_rows


class Limit:
    """A machine's limit."""

    def floor_s(self, num_rows):
        return max(0.05, 0.005 * num_rows)


POINTS = [
    SimpleNamespace(num_rows=rows, length=length, seconds=0.1 + 0.01 * rows)
    for rows in (4, 1, 16)
    for length in (8, 512)
]
PROFILE = SimpleNamespace(
    costs=Costs(),
    target=POINTS,
    draft=POINTS[:4],
    target_roofline=Limit(),
    draft_roofline=None,
)


def chart_of(name, results):
    """Return a chart of results, of their first prompt if it is of one."""
    if name == "cost_curves":
        return plots.cost_curves(Costs())
    if name == "cost_profile":
        return plots.cost_profile(PROFILE)
    if name == "generation":
        ids = results.prompts["id"]
        run = results.runs["run"].iloc[0]
        return plots.generation(results, ids.iloc[0] if len(ids) else "a", run)
    return getattr(plots, name)(results)


def words(figure: Figure) -> str:
    """Return all texts of a figure that belong to no axis."""
    drawn = [text.get_text() for text in figure.texts]
    drawn += [legend.get_title().get_text() for legend in figure.legends]
    title = figure.get_suptitle()
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    return " ".join(" ".join([*drawn, title, *titles]).split())


@pytest.mark.parametrize("name", plots.__all__)
def test_a_chart_says_units_and_how_many(name, results):
    figure = chart_of(name, results.only("k1", "k2")).figure()
    assert figure.axes
    assert re.search(r"\(n = \d", words(figure))
    for axis in figure.axes:
        has_names = [tick.get_text() for tick in axis.get_yticklabels()]
        assert axis.get_ylabel()
        if not any(re.search("[a-z]", text) for text in has_names):
            unit = r"\(.*(share|times|ms|tokens|interval).*\)|Tokens"
            assert re.search(unit, axis.get_ylabel(), re.DOTALL)
    assert re.search(
        r"\(.*\)|Share of|per step|verified in", figure.axes[-1].get_xlabel()
    )


@pytest.mark.parametrize("name", plots.__all__)
def test_both_libraries_show_the_same_numbers(name, results):
    chart = chart_of(name, results.only("k1", "k2"))
    shown = chart.interactive()
    drawn = [mark for panel in chart.panels for mark in panel.marks]
    traces = {trace.name: trace for trace in shown.data if trace.name}
    assert drawn
    for mark in drawn:
        trace = traces[mark.name]
        if isinstance(mark, Spans):
            assert list(trace.base) == list(mark.starts)
            assert list(trace.x) == list(mark.lengths)
        else:
            assert np.allclose(np.array(trace.x, float), mark.x, equal_nan=True)
    axes = chart.figure().axes
    for panel, axis in zip(chart.panels, axes, strict=True):
        lines = {line.get_label(): line for line in axis.lines}
        for mark in panel.marks:
            if isinstance(mark, Points) and not panel.categories:
                y = lines[mark.name].get_ydata()
                assert np.allclose(y, mark.y, equal_nan=True)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", [*OF_RESULTS, "generation"])
def test_of_an_odd_run_a_chart_says_so_in_place_of_a_traceback(name, kind, odd_results):
    results = odd_results[kind]
    chart = chart_of(name, results)
    figure = chart.figure()
    chart.interactive()
    told = words(figure)
    if chart.is_empty:
        assert re.search(r"^(No |When )", chart.notes[0])
        assert chart.notes[0].split(":")[0] in told
    if kind == "failed":
        assert "out of memory" in told
    if kind == "killed":
        assert "killed: running" in told
    if kind == "single prompt" and not chart.is_empty and name != "generation":
        assert "one prompt" in told


def test_runs_that_are_not_in_a_chart_are_named_in_it(results):
    told = words(plots.speedup_by_category(results).figure())
    assert "failed: failed, RuntimeError: out of memory" in told
    assert "killed: running" in told


def test_kinds_are_told_apart_without_colour():
    looks = [look(style) for style in range(NUM_STYLES)]
    for part in ("colour", "marker", "hatch"):
        assert len({getattr(one, part) for one in looks}) == NUM_STYLES
    assert len({one.dash for one in looks[:4]}) == 4


def test_more_runs_than_can_be_told_apart_are_cut_and_told(results):
    one = results.only("k1")
    many = [
        {
            name: getattr(one, name).assign(run=f"r{number}")
            for name in ("runs", "prompts", "steps", "nodes", "settings")
        }
        for number in range(NUM_STYLES + 2)
    ]
    merged = replace(
        one, **{name: pd.concat([part[name] for part in many]) for name in many[0]}
    )
    chart = plots.acceptance_by_depth(merged)
    assert len(chart.panels[0].marks) == NUM_STYLES
    assert f"the first {NUM_STYLES} of {NUM_STYLES + 2} runs" in chart.notes[0]


def test_a_drafter_without_a_model_has_no_roofline_in_the_legend():
    """A line of nothing was named; and sizes were counted that are not drawn."""
    chart = plots.cost_profile(PROFILE)
    names = [mark.name for mark in chart.panels[0].marks]
    assert "target: roofline" in names
    assert "draft: roofline" not in names
    num_drawn = sum(
        len(mark.x) for mark in chart.panels[0].marks if ":" not in mark.name
    )
    assert f"behind 8 tokens of text (n = {num_drawn} timed sizes)" in chart.title


def test_what_is_kept_and_what_is_needed_of_a_run_look_alike(results):
    """A colour is a run: with two runs there were four, and two belonged together."""
    marks = plots.break_even(results.only("k1", "k2")).panels[0].marks
    styles = {}
    for mark in marks:
        styles.setdefault(mark.name.rpartition(": ")[0], set()).add(mark.style)
    assert [len(found) for found in styles.values()] == [1, 1]
    assert styles.popitem() != styles.popitem()


def test_long_names_and_notes_stay_in_the_picture(results):
    """Legends of long names ran out at the right, and notes lay on legends."""
    charts = [chart_of(name, results) for name in plots.__all__]
    for chart in charts:
        panels = [
            replace(
                panel,
                marks=tuple(
                    replace(mark, name=f"{number} {'a long name ' * 9}"[:LONGEST_NAME])
                    for number, mark in enumerate(panel.marks)
                ),
            )
            for panel in chart.panels
        ]
        figure = replace(chart, panels=tuple(panels)).figure()
        figure.canvas.draw()
        width, height = figure.bbox.width, figure.bbox.height
        texts = [text for text in figure.texts if text.get_text()]
        boxes = [part.get_window_extent() for part in (*figure.legends, *texts)]
        for place, box in enumerate(boxes):
            assert 0 <= box.x0 <= box.x1 <= width, chart.title
            assert 0 <= box.y0 <= box.y1 <= height, chart.title
            assert not any(box.overlaps(other) for other in boxes[:place])


@pytest.mark.parametrize("name", ["chart.pdf", "chart.svg", "chart.png"])
def test_a_chart_is_saved_for_paper(one, tmp_path, name):
    assert plots.acceptance_by_depth(one).save(tmp_path / name).stat().st_size > 1000


def test_a_saved_page_needs_no_network(one, tmp_path):
    page = plots.time_shares(one).save(tmp_path / "chart.html").read_text()
    assert not re.search(r"<(script|link)[^>]+(src|href)=.https?:", page)
    with pytest.raises(TreespecError, match="path must end in"):
        plots.time_shares(one).save(tmp_path / "chart.gif")


def test_names_are_shown_and_not_run(one):
    """Names of prompts and errors come from outside; plotly reads HTML in texts."""
    chart = plots.time_shares(one)
    page = replace(chart, title="<b>&</b>").interactive()
    assert page.layout.title.text == "&lt;b&gt;&amp;&lt;/b&gt;"
