"""``treespec view``: one file that shows everything and runs nothing of it."""

import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest

from tests.analysis.traced import (
    FIRST_NASTY,
    NASTY,
    SMALL,
    Drawn,
    drawn_outcome,
    save_run,
    save_tokenizer,
)
from tests.outcomes import make_outcome
from treespec.analysis.trees import step_trees
from treespec.analysis.viewer import HELP, read_wish, view
from treespec.analysis.viewer_page import run_data, run_page
from treespec.analysis.viewer_words import Words
from treespec.analysis.visible import visible_label
from treespec.errors import TreespecError
from treespec.sinks.reader import read_run

INJECTION = NASTY[0]
MAX_BYTES_OF_LARGE = 3_000_000
MAX_SECONDS_OF_LARGE = 20  # a few here; shared machines are slow


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the data in its script tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._in_data = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._in_data = dict(attrs).get("id") == "data"

    def handle_data(self, data):
        if self._in_data:
            self.data += data

    def handle_endtag(self, tag):
        self._in_data = False


@pytest.fixture
def run_folder(tmp_path):
    """A small run whose tokens are nasty, with the tokenizer that they come from."""
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    outcomes = [drawn_outcome(), drawn_outcome(SMALL[1:3], INJECTION)]
    return save_run(tmp_path, outcomes, path=str(tokenizer))


def page_of(folder):
    assert view([str(folder)]) == f"{folder}/view.html"
    return (folder / "view.html").read_text(encoding="utf-8")


def test_the_page_holds_every_token_as_visible_text(run_folder):
    data = json.loads(Elements(page_of(run_folder)).data)
    shown = [data["labels"][data["ids"].index(FIRST_NASTY + i)] for i in range(11)]
    assert shown == [visible_label(token) for token in NASTY[:11]]
    assert data["prompts"][1]["id"] == INJECTION
    assert "".join(data["prompts"][0]["pieces"]) == (
        f"a{INJECTION}␊\n⟨U+2028⟩漢字a\u05e9\u05dc\u05d5\u05dd"
    )


def test_no_token_leaves_the_data(run_folder):
    """Regression story of every viewer: a token closed the script and ran its own."""
    page = page_of(run_folder)
    tags = [tag for tag, _ in Elements(page).elements]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert page.count("</script>") == 2
    assert Elements(page).data.isascii()
    assert not set("<>&") & set(Elements(page).data)


def test_lone_surrogates_reach_the_page_as_text(run_folder):
    run = read_run(run_folder)
    outcomes = tuple(replace(o, id="x\ud800\u202e") for o in run.outcomes)
    run = replace(run, outcomes=outcomes)
    trees = [step_trees(outcome.speculative) for outcome in outcomes]
    page = run_page(run, trees, Words(None))
    assert page.encode()
    assert json.loads(Elements(page).data)["prompts"][0]["id"] == "x⟨U+D800⟩⟨U+202E⟩"


def test_the_page_needs_nothing_from_outside(run_folder):
    page = page_of(run_folder)
    for tag, attributes in Elements(page).elements:
        assert not {"src", "href", "srcset", "action", "style"} & attributes.keys(), tag
        assert not any(name.startswith("on") for name in attributes), tag
    code = page.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"https?:|//\w|@import|url\(|\bfetch\(|XMLHttp|import\(", code)
    assert "default-src 'none'" in page
    assert "unsafe" not in page


def test_controls_have_names(run_folder):
    elements = Elements(page_of(run_folder)).elements
    labelled = {a["for"] for tag, a in elements if tag == "label"}
    for tag, attributes in elements:
        if tag in {"button", "select", "input"} and attributes["id"] != "close-help":
            assert attributes.get("aria-label") or attributes["id"] in labelled


def test_the_page_has_what_the_records_have(run_folder):
    run = read_run(run_folder)
    trees = [step_trees(outcome.speculative) for outcome in run.outcomes]
    first = run_data(run, trees, Words(None))["prompts"][0]["steps"][0]
    trace = run.outcomes[0].speculative.traces
    for column, field in (("ranks", "rank"), ("draft", "draft_prob")):
        assert first[column] == [getattr(node, field) for node in trace[:4]]
    assert first["optimal"] == {"0": 0.75, "1": 0.75}
    assert sum(first["times"]) == pytest.approx(first["step_s"])
    assert (first["budget_by"], first["max_nodes"]) == ("constant", 4)


def test_without_a_tokenizer_ids_are_shown_and_it_is_said(tmp_path):
    folder = save_run(tmp_path, [drawn_outcome()])
    told = view([str(folder)])
    assert "Tokens are shown as ids" in told
    assert "nowhere is not on this machine" in told
    assert told.endswith(
        "tokenizer=FOLDER, a folder with the tokenizer of the run's target."
    )
    data = json.loads(Elements((folder / "view.html").read_text()).data)
    assert data["labels"] == [f"#{token}" for token in data["ids"]]
    assert data["note"] in told


def test_a_tokenizer_can_be_given(tmp_path):
    folder = save_run(tmp_path, [drawn_outcome()])
    given = f"tokenizer={save_tokenizer(tmp_path / 'mine')}"
    assert view([str(folder), given]) == f"{folder}/view.html"
    with pytest.raises(TreespecError, match="tokenizer: must be a folder with a tok"):
        view([str(folder), "tokenizer=none"])


def test_text_goes_to_the_terminal(run_folder):
    told = view([str(run_folder), "format=text"])
    assert told.count("\nstep ") == 6
    assert "╰─ ⟨U+202E⟩" not in told
    assert "⟨U+2028⟩" in told
    assert "\x1b" not in told
    assert "</script><img" in told
    one = view([str(run_folder), "format=text", "prompt=p0", "step=1"])
    assert one.count("\nstep ") == 1


def test_one_step_becomes_a_picture(run_folder):
    told = view([str(run_folder), "format=svg", "prompt=p0", "step=0"])
    assert told == f"{run_folder}/view.svg"
    assert (run_folder / "view.svg").read_text().startswith("<svg xmlns")
    other = run_folder / "other.svg"
    view([str(run_folder), "format=svg", "prompt=p0", "step=1", f"output={other}"])
    assert other.is_file()


def test_a_run_without_trees_names_the_key_and_the_command(tmp_path):
    folder = save_run(tmp_path, [make_outcome()], trace="steps")
    with pytest.raises(TreespecError) as error:
        view([str(folder)])
    assert str(error.value) == (
        f"{folder}: the run was recorded without its trees (trace=steps); run it again "
        f"with trace=nodes: treespec --config-path {folder} trace=nodes"
    )


def test_a_run_that_drafted_nothing_is_shown(tmp_path):
    folder = save_run(
        tmp_path, [drawn_outcome((Drawn(), Drawn())), drawn_outcome((), "one")]
    )
    data = json.loads(Elements(page_of_ids(folder)).data)
    assert [len(prompt["steps"]) for prompt in data["prompts"]] == [2, 0]
    assert "no steps: the text is one token long" in view([str(folder), "format=text"])


def page_of_ids(folder):
    view([str(folder)])
    return (folder / "view.html").read_text(encoding="utf-8")


def test_a_run_without_prompts_says_so(tmp_path):
    with pytest.raises(TreespecError, match="the run has no prompts, nothing to view"):
        view([str(save_run(tmp_path, []))])


def test_a_failed_run_says_so(run_folder):
    (run_folder / "DONE").unlink()
    with pytest.raises(TreespecError, match="the run is not finished"):
        view([str(run_folder)])


def test_a_place_that_cannot_be_written_is_told(run_folder):
    with pytest.raises(TreespecError, match=r"output: cannot write .*output=FILE"):
        view([str(run_folder), f"output={run_folder}"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "view: give one run folder, got none"),
        (["a", "b"], "view: give one run folder, got a and b"),
        (["a", "fromat=svg"], "unknown key of view 'fromat'. Did you mean 'format'"),
        (["a", "format=pdf"], "format: must be html, text or svg, got 'pdf'"),
        (["a", "step=3"], "step: a page holds all of the run"),
        (["a", "format=svg", "step=-1"], "step: must be an integer >= 0, got '-1'"),
    ],
)
def test_wrong_arguments_are_explained(arguments, message):
    with pytest.raises(TreespecError) as error:
        read_wish(arguments)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["format=svg", "step=0"],
            "prompt: format=svg shows one, give prompt=ID; of: p0",
        ),
        (
            ["format=svg", "prompt=p0"],
            "step: format=svg shows one, give step=N; the last",
        ),
        (
            ["format=text", "step=9"],
            "step: there is no 9; the last step of prompt 'p0'",
        ),
        (["format=text", "prompt=p1"], "unknown prompt 'p1'. Available: <"),
    ],
)
def test_a_wrong_choice_is_explained(arguments, message, run_folder):
    with pytest.raises(TreespecError) as error:
        view([str(run_folder), *arguments])
    assert str(error.value).startswith(message)


def test_a_folder_may_have_an_equals_sign_in_its_name():
    assert str(read_wish(["out/a=b", "format=text"]).folder) == "out/a=b"


def test_the_command_shows_a_run(run_folder, command):
    ended = command(str(run_folder), verb="view", tiny=False)
    assert (ended.code, ended.out) == (0, f"{run_folder}/view.html\n")
    ended = command("--help", verb="view", tiny=False)
    assert (ended.code, ended.out.strip()) == (0, HELP.strip())
    ended = command("nowhere", verb="view", tiny=False)
    assert (ended.code, len(ended.errors)) == (2, 1)


def test_a_run_without_trees_is_recorded_again_by_the_command_it_names(command):
    assert command("num_prompts=1", "trace=steps").code == 0
    (done,) = Path("outputs").glob("*/*/DONE")
    ended = command(str(done.parent), verb="view", tiny=False)
    (told,) = ended.errors
    words = told.partition("trace=nodes: treespec ")[2].split()
    assert command(*words, tiny=False).code == 0
    (again,) = set(Path("outputs").glob("*/*/DONE")) - {done}
    ended = command(str(again.parent), verb="view", tiny=False)
    assert (ended.code, ended.out) == (0, f"{again.parent}/view.html\n")


def large_run(num_steps=500, num_nodes=64):
    random = Random(0)
    steps = []
    for _ in range(num_steps):
        parents = tuple(
            random.randrange(max(0, n - 12), n + 1) for n in range(num_nodes)
        )
        tokens = tuple(random.randrange(4, 17) for _ in range(num_nodes))
        steps.append(Drawn(parents, tokens, (), 4))
    return drawn_outcome(tuple(steps))


def test_a_large_run_makes_a_page_of_moderate_size(tmp_path):
    outcome = large_run()
    run = read_run(save_run(tmp_path, [drawn_outcome()]))
    run = replace(run, outcomes=(outcome,))
    start = time.perf_counter()
    page = run_page(run, [step_trees(outcome.speculative)], Words(None))
    assert time.perf_counter() - start < MAX_SECONDS_OF_LARGE
    assert len(page) < MAX_BYTES_OF_LARGE


@pytest.mark.parametrize("name", ["DONE", "prompts.jsonl", "nodes.parquet"])
def test_a_page_never_takes_the_place_of_a_part_of_the_run(run_folder, name):
    """``output=`` once overwrote whatever it named."""
    before = (run_folder / name).read_bytes()
    with pytest.raises(TreespecError, match="is a part of the run"):
        view([str(run_folder), f"output={run_folder / name}"])
    assert (run_folder / name).read_bytes() == before


@pytest.mark.parametrize(
    "argument", ["step=" + "9" * 5000, "output=~nobody-here/x", "output=a\0b"]
)
def test_odd_arguments_end_in_one_line(run_folder, argument):
    with pytest.raises(TreespecError) as refused:
        view([str(run_folder), "format=svg", "step=0", argument])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["config.yaml", "env.json", "status.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"[" * 50_000, b"null", b"{"])
def test_a_damaged_run_is_told_in_one_line(run_folder, name, content):
    """Bytes that are no text, and brackets without end, once ended in tracebacks."""
    (run_folder / name).write_bytes(content)
    with pytest.raises(TreespecError) as refused:
        view([str(run_folder)])
    assert "\n" not in str(refused.value)
    assert name in str(refused.value)
