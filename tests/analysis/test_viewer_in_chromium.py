"""The page in a browser: it loads, steps, answers, and never complains."""

import pytest

from tests.analysis.chromium import chromium_page, find_chromium
from tests.analysis.test_viewer import large_run
from tests.analysis.traced import SMALL, Drawn, drawn_outcome, save_run, save_tokenizer
from treespec.analysis.viewer import view

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)"
)
MOST_MS_PER_STEP = 100  # a few here; shared machines are slow
CHOSEN = "document.querySelector('.node.chosen').dataset.node"
INJECTION = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium_page(str(CHROMIUM), tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def small(page, tmp_path):
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    outcomes = [
        drawn_outcome(),
        drawn_outcome(SMALL[1:3], INJECTION),
        drawn_outcome(()),
    ]
    folder = save_run(tmp_path, outcomes, path=str(tokenizer))
    view([str(folder)])
    page.complaints.clear()
    page.requests.clear()
    page.open(f"file://{folder}/view.html")
    yield page
    assert page.complaints == []
    assert page.requests == [f"file://{folder}/view.html"]


def shown_text(page):
    return page.value("document.getElementById('text').innerText")


def test_the_text_grows_step_by_step(small):
    assert small.text("#place") == "step 0 of 3"
    first = before = shown_text(small)
    for step in (1, 2, 3):
        small.key("ArrowRight")
        assert small.text("#place") == f"step {step} of 3"
        assert shown_text(small).startswith(before)
        assert len(shown_text(small)) > len(before)
        before = shown_text(small)
    small.key("ArrowRight")
    assert small.text("#place") == "step 3 of 3"
    small.key("Home")
    assert small.text("#place") == "step 0 of 3"
    assert shown_text(small) == first
    small.key("End")
    assert shown_text(small) == before


def test_tokens_are_shown_and_never_run(small):
    assert "</script><img src=x onerror=alert(1)>" in small.text("#text")
    assert small.value("document.querySelectorAll('img').length") == 0
    assert small.value("document.querySelectorAll('script').length") == 2
    small.key("j")
    assert small.text("#prompts option:nth-child(2)") == INJECTION
    assert small.value("document.getElementById('prompts').value") == "1"


def test_every_node_is_drawn_where_the_layout_has_it(small):
    assert small.value("document.querySelectorAll('.node').length") == 6
    assert small.value("document.querySelectorAll('.node.accepted').length") == 2
    overlaps = """
      (() => { const boxes = [...document.querySelectorAll('.node .pill')]
          .map((pill) => pill.getBoundingClientRect());
        return boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left < b.right
          && b.left < a.right && a.top < b.bottom && b.top < a.bottom)).length; })()
    """
    assert small.value(overlaps) == 0


def test_a_pointer_over_a_node_tells_of_it(small):
    assert "bonus" in small.text("#node-facts")
    small.hover(".node.rejected .pill")
    told = small.text("#node-facts")
    assert "rejected: its parent was reached" in told
    assert "0.500" in told
    assert "0.250" in told
    small.key("ArrowUp")
    assert small.text("#node-facts") != told


def test_search_finds_text_and_tokens(small):
    small.key("/")
    for letter in "漢字":
        small.key(letter)
    small.settle()
    assert small.text("#matches") == "1 of 2 steps"
    assert small.text("#place") == "step 1 of 3"
    assert small.value("document.querySelectorAll('#text .hit').length") == 1
    assert small.value("document.querySelectorAll('.node.hit').length") == 1
    small.key("Escape")
    small.key("n")
    assert small.text("#matches") == "2 of 2 steps"


def test_a_prompt_without_steps_says_so(small):
    small.key("j")
    small.key("j")
    assert small.text("#headline") == "No steps: the text is one token long"
    small.key("ArrowRight")
    small.key("k")
    assert small.text("#place") == "step 0 of 1"


def is_in_sight(page, selector):
    return page.value(f"""
      (() => {{ const at = document.querySelector('{selector}').getBoundingClientRect();
        const seen = document.getElementById('stage').getBoundingClientRect();
        return at.left >= seen.left - 1 && at.right <= seen.right + 1
          && at.top >= seen.top - 1 && at.bottom <= seen.bottom + 1; }})()
    """)


def test_what_a_step_ends_with_and_what_is_found_are_in_sight(page, tmp_path):
    """At the end of a long path the token that ended the step was out of the window."""
    length = 24
    chain = Drawn(tuple(range(length)), (13,) * length, tuple(range(1, length + 1)), 12)
    wide = Drawn((0,) * 60, (*range(4, 6),) * 29 + (4, 14), (), 12)
    folder = save_run(tmp_path, [drawn_outcome((chain, wide))])
    view([str(folder)])
    page.open(f"file://{folder}/view.html")
    assert page.text(".node.chosen").startswith("★")
    assert is_in_sight(page, ".node.chosen")
    assert not is_in_sight(page, ".node.root")
    page.key("ArrowRight")
    assert is_in_sight(page, ".node.chosen")
    for key in "/#14":
        page.key(key)
    page.settle()
    assert page.text("#place") == "step 1 of 1"
    assert page.value("document.querySelector('.node.chosen').dataset.node") == "60"
    assert is_in_sight(page, ".node.chosen")


def test_help_and_theme_have_keys(small):
    small.key("?")
    assert small.value("document.getElementById('help').open")
    small.key("Escape")
    small.settle()
    assert not small.value("document.getElementById('help').open")
    theme = "document.documentElement.dataset.theme"
    before = small.value(theme)
    small.key("t")
    assert small.value(theme) != before


def test_a_picture_can_be_taken(small, tmp_path):
    small.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_a_large_run_stays_fluid(page, tmp_path):
    folder = save_run(tmp_path, [large_run()])
    view([str(folder)])
    page.open(f"file://{folder}/view.html")
    timed = """
      (() => {
        const key = new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true });
        const start = performance.now();
        for (let i = 0; i < 100; i++) {
          document.body.dispatchEvent(key);
          document.getElementById('tree').getBoundingClientRect();
        }
        return (performance.now() - start) / 100; })()
    """
    assert page.value(timed) < MOST_MS_PER_STEP
    assert page.text("#place") == "step 100 of 499"


def test_arrows_take_the_focus_along_and_scroll_the_text_where_that_has_it(small):
    """After Tab to a node two nodes wore rings, and a screen reader heard nothing."""
    at = "document.activeElement.dataset.node"
    small.value("document.querySelector('.node[tabindex=\"0\"]').focus()")
    before = small.value(at)
    small.key("ArrowDown")
    assert small.value(at) != before
    small.value("document.getElementById('text').focus()")
    place, chosen = small.text("#place"), small.value(CHOSEN)
    small.key("End")
    small.key("ArrowUp")
    assert small.text("#place") == place
    assert small.value(CHOSEN) == chosen
