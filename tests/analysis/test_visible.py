"""Whatever a token holds is seen, and does nothing."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import repeatable
from treespec.analysis.visible import (
    cells,
    printed,
    shorten,
    visible_label,
    visible_text,
)

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
ACTING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (" the", "␣the"),
        ("a\nb\t\r", "a␊b␉␍"),
        ("\x00\x1b[31m\x7f", "␀␛[31m␡"),
        ("\x85\xa0\u3000", "⟨U+0085⟩⟨U+00A0⟩⟨U+3000⟩"),
        ("\u202eabc\u2066", "⟨U+202E⟩abc⟨U+2066⟩"),
        ("\u2028\u2029\ufeff", "⟨U+2028⟩⟨U+2029⟩⟨U+FEFF⟩"),
        ("\ud800x", "⟨U+D800⟩x"),
        ("\u0301x", "◌\u0301x"),
        ("漢字 שלום", "漢字␣שלום"),
        ("</script>", "</script>"),
        ("", ""),
    ],
)
def test_a_label_shows_what_would_act_or_vanish(text, label):
    assert visible_label(text) == label


@repeatable
@given(ANY_TEXT)
def test_no_character_of_a_label_acts(text):
    label = visible_label(text)
    assert not {unicodedata.category(char) for char in label} & ACTING
    printed(label).encode()  # a lone surrogate would raise


@repeatable
@given(ANY_TEXT)
def test_in_running_text_only_line_breaks_spaces_and_joiners_act(text):
    left = [c for c in visible_text(text) if unicodedata.category(c) in ACTING]
    assert set(left) <= set("\n \u200c\u200d")
    visible_text(text).encode()


def test_a_line_break_breaks_the_line_after_its_picture():
    assert visible_text("a\nb\x1b") == "a␊\nb␛"


def test_pictures_can_be_printed_in_any_font():
    assert printed(visible_label("\n\t\x1b\x7f")) == "↵⇥^[^?"


@pytest.mark.parametrize("most", range(1, 12))
def test_a_long_label_is_cut_in_the_middle(most):
    short = shorten("abcdefgh", most)
    assert len(short) == min(most, 8)
    assert short == "abcdefgh" if most >= 8 else "…" in short


def test_columns_are_counted_as_terminals_do():
    assert cells("ab漢e\u0301") == 5
