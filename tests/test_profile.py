"""``treespec profile``: measured once, kept, and measured anew when it is stale."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from treespec import profile_cache, profile_plot, roofline, timings
from treespec.costs import CostCurve, Costs
from treespec.errors import TreespecError
from treespec.profile import Machine, Point, Profile
from treespec.profile_cache import (
    MAX_AGE_S,
    KeptProfile,
    about_pair,
    kept_profile,
    profile_path,
    stale_reason,
)
from treespec.profile_plot import plot_kept
from treespec.profile_report import render_profile
from treespec.roofline import Roofline

HERE = Machine("a CPU", "1.0")
KNOWN = Profile(
    costs=Costs(
        CostCurve((1, 8), (0.1, 0.12), 64, (1,), (1e-5,), 0.03),
        CostCurve.through({1: 0.02, 8: 0.03}),
        step_s=0.002,
    ),
    target=(Point(1, 64, 5, 0.1), Point(1, 512, 5, 0.105), Point(8, 64, 4, 0.12)),
    draft=(Point(1, 64, 5, 0.02), Point(8, 64, 5, 0.03)),
    target_roofline=Roofline(10**9, 5 * 10**8, 2e10, 1e11),
    draft_roofline=None,
    about={"models": {}, "num_threads": 2},
    machine=HERE,
    measured_at=1e9,
)


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    KNOWN.write(tmp_path / "p.json")
    assert Profile.read(tmp_path / "p.json") == KNOWN


@pytest.fixture
def good(tmp_path: Path) -> dict:
    KNOWN.write(tmp_path / "good.json")
    return json.loads((tmp_path / "good.json").read_text())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": 0}, r".*has schema 0, but this version of treespec reads schema 1"),
        ({"costs": None}, r".*costs must be an object, got None"),
        ({"target": [[1, 2]]}, r".*is no profile \(ValueError"),
        ({"target_roofline": {"x": 1}}, r".*is no profile"),
        ({"measured_at": "today"}, r".*is no profile \(ValueError"),
        ({"measured_at": 10**400}, r".*is no profile \(OverflowError"),
        ({"target": [["a", "b", "c", "d"]]}, r".*is no profile \(ValueError"),
        ({"about": {"models": None}}, r".*is no profile \(ValueError"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path, good, change, told) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(good | change))
    with pytest.raises(TreespecError) as refused:
        Profile.read(path)
    message = str(refused.value)
    assert re.match(told, message)
    assert message.endswith("measure it anew with treespec profile force=true")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("machine", "days", "why"),
    [
        (HERE, 0, None),
        (HERE, 29, None),
        (HERE, 31, "is 31 days old"),
        (HERE, -31, "is 31 days old"),  # a clock that was wrong then, or is now
        (replace(HERE, cpu="another"), 0, r"of another machine \(a CPU\)"),
        (replace(HERE, treespec="1.1"), 0, "of treespec 1.0"),
    ],
)
def test_a_profile_is_stale_by_age_machine_and_version(machine, days, why) -> None:
    found = stale_reason(KNOWN, machine, KNOWN.measured_at + days * 24 * 3600)
    assert (found is None) == (why is None)
    assert why is None or re.search(why, found)


def test_a_profile_of_unknown_age_is_stale() -> None:
    assert stale_reason(replace(KNOWN, measured_at=float("nan")), HERE, 1e9)


MODEL = {
    "hub_id": None,
    "wheel": None,
    "revision": None,
    "sha256": {"model.safetensors": "ab"},
    "weight_bytes": 100,
    "dtype": "bfloat16",
    "quantization": None,
    "device": "cpu",
    "attn_implementation": "treespec",
}


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float32"},
        {"quantization": "int8"},
        {"device": "cuda:0"},
        {"attn_implementation": "sdpa"},
        {"sha256": {"model.safetensors": "cd"}},
    ],
)
def test_models_that_are_held_otherwise_have_another_profile(change) -> None:
    drafter = {"_target_": "X"}
    one = profile_path(about_pair({"target": MODEL}, drafter))
    other = profile_path(about_pair({"target": MODEL | change}, drafter))
    renamed = profile_path(about_pair({"target": MODEL | {"name": "b"}}, drafter))
    assert one != other
    assert one == renamed, "where a model lies costs nothing"
    assert one != profile_path(about_pair({"target": MODEL}, {"_target_": "Y"}))


def test_threads_and_pytorch_make_another_profile(monkeypatch) -> None:
    one = profile_path(about_pair({}, {}))
    monkeypatch.setattr(profile_cache.torch, "get_num_threads", lambda: 99)
    assert profile_path(about_pair({}, {})) != one
    monkeypatch.undo()
    monkeypatch.setattr(profile_cache.torch, "__version__", "99.0")
    assert profile_path(about_pair({}, {})) != one


@pytest.fixture
def measured(monkeypatch, tmp_path: Path) -> list[float]:
    """Count measurements that take no time; the clock stands at ``measured_at``."""
    counted: list[float] = []

    def measure(decoder, about) -> Profile:
        counted.append(profile_cache.time.time())
        return replace(KNOWN, about=about, measured_at=counted[-1])

    class Standing:
        now_s = KNOWN.measured_at

        def time(self) -> float:
            return self.now_s

    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(profile_cache, "measure_profile", measure)
    monkeypatch.setattr(profile_cache, "this_machine", lambda: HERE)
    monkeypatch.setattr(profile_cache, "time", Standing())
    return counted


def test_a_profile_is_measured_once_and_kept(measured) -> None:
    about = {"models": {}, "num_threads": 2}
    first = kept_profile(None, about)
    assert first.note == "measured now: none was kept"
    assert first.path == profile_path(about)
    profile_cache.time.now_s += 3600 * 5
    again = kept_profile(None, about)
    assert again.note == "reused, 5 hours old"
    assert again.profile == first.profile
    assert kept_profile(None, about).profile.costs == KNOWN.costs
    assert len(measured) == 1
    assert kept_profile(None, about, force=True).note == "measured now: force=true"
    assert kept_profile(None, {"models": {"other": 1}}).note.startswith("measured now")
    assert len(measured) == 3


def test_whether_it_is_timed_or_reused_is_said_before_it_takes_long(
    measured, monkeypatch
) -> None:
    """`treespec profile` said nothing of it until its tables, half a minute later."""
    said: list[str] = []
    measure = profile_cache.measure_profile

    def measure_once_told(decoder, about):
        assert said == ["timing forwards, some 10 to 40 seconds: none was kept"]
        return measure(decoder, about)

    monkeypatch.setattr(profile_cache, "measure_profile", measure_once_told)
    kept_profile(None, {}, say=said.append)
    assert said[1:] == ["costs of forwards: measured now: none was kept"]
    said.clear()
    kept_profile(None, {}, say=said.append)
    assert said == ["costs of forwards: reused, 0 seconds old"]


def test_a_stale_profile_is_measured_anew_and_replaced(measured) -> None:
    kept_profile(None, {})
    profile_cache.time.now_s += MAX_AGE_S + 1
    assert "30 days old" in kept_profile(None, {}).note
    assert kept_profile(None, {}).note.startswith("reused")
    assert len(measured) == 2


def test_a_damaged_profile_is_measured_anew(measured) -> None:
    path = kept_profile(None, {}).path
    path.write_text(path.read_text()[:-20])
    assert kept_profile(None, {}).note.endswith("the one that was kept cannot be read")
    assert kept_profile(None, {}).note.startswith("reused")


def test_a_cache_that_cannot_be_written_is_no_failure(measured, tmp_path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    kept = kept_profile(None, {})
    assert "; not kept: " in kept.note
    assert kept.profile.costs == KNOWN.costs


def test_forwards_stand_beside_their_fit_and_their_floor() -> None:
    told = render_profile(KNOWN)
    lines = told.splitlines()
    # 1 GB at 20 GB/s are 50 ms; fit after 512 tokens: 100 + 448 x 0.01 ms.
    assert (
        "   1    512      5       105.00    104.48     50.00             2.10" in lines
    )
    assert (
        "   8     64      5        30.00     30.00         -                -" in lines
    )
    assert "fit: off by 3.0%" in told
    assert "a step outside of forwards: 2.00 ms" in told
    # gamma 5: 5 x 20 + T(6 rows) = 114.29 ms, over 100: more than two tokens.
    assert re.search(r"^    5 +2\.14 ", told, re.MULTILINE)


@pytest.fixture
def arguments(tiny_files, monkeypatch) -> list[str]:
    monkeypatch.setattr(timings, "ROWS", (1, 2, 4, 8))
    monkeypatch.setattr(timings, "COARSE_ROWS", (1, 2, 4, 8))
    monkeypatch.setattr(timings, "MOST_TURNS", 2)
    monkeypatch.setattr(timings, "NUM_STEPS", 2)
    monkeypatch.setattr(roofline, "BANDWIDTH_BYTES", 2**16)
    monkeypatch.setattr(roofline, "MATMUL_SIZE", 32)
    # Loading matplotlib and drawing take seconds, and have a test of their own.
    monkeypatch.setattr(profile_plot, "find_spec", lambda name: None)
    return [
        *tiny_files.overrides,
        "drafter=draft_model",
        f"pair.draft.path={tiny_files.draft}",
    ]


def test_the_command_measures_once_and_says_so(
    command, arguments, tmp_path, read_runs
) -> None:
    ended = command("profile", *arguments, tiny=False)
    assert (ended.code, ended.errors) == (0, [])
    assert "target forwards: median, fit" in ended.out
    assert "draft forwards: median, fit" in ended.out
    assert "break-even acceptance" in ended.out
    (path,) = (tmp_path / "cache/profiles").glob("*.json")
    assert ended.out.splitlines()[-3:] == [
        "measured now: none was kept",
        str(path),
        profile_plot.HOW_TO_GET_IT,
    ]
    about = Profile.read(path).about
    assert set(about["models"]) == {"target", "draft"}
    assert read_runs() == []  # a profile is no run

    kept = path.read_text()

    again = command("profile", *arguments, tiny=False)
    assert "reused, " in again.out
    assert path.read_text() == kept
    other = command("profile", *arguments, "drafter=prompt_lookup", tiny=False)
    assert "measured now: none was kept" in other.out
    assert "the drafter's expansions: median" in other.out
    assert len(list((tmp_path / "cache/profiles").glob("*.json"))) == 2


def test_what_cannot_be_profiled_is_told(command, arguments) -> None:
    ended = command("profile", *arguments, "pair.draft.path=null", tiny=False)
    assert ended.code == 2
    (error,) = ended.errors
    assert "drafter needs pair.draft" in error


def test_with_matplotlib_a_plot_lies_beside_the_profile(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    new = KeptProfile(KNOWN, tmp_path / "p.json", is_new=True, note="")
    path = tmp_path / "p.svg"
    assert plot_kept(new) == str(path)
    drawn = path.read_text()
    assert drawn.startswith("<?xml")
    assert "</svg>" in drawn
    path.write_text("kept")
    assert plot_kept(replace(new, is_new=False)) == str(path)
    assert path.read_text() == "kept"


def test_a_profile_that_was_timed_beside_other_jobs_is_kept_for_nobody(measured):
    """Else every run of the next thirty days plans by disturbed seconds."""
    found = kept_profile(None, {}, is_alone=lambda: False)
    assert found.note.endswith("not kept: other jobs ran beside it")
    assert not found.path.exists()
