"""The exact toy: it must notice every fault of those who call it."""

import pytest
import torch

from tests.scripts import greedy_table, mixing
from treespec.errors import TreespecError
from treespec.models.base import ForwardRows, Segment
from treespec.models.table import TableModel


def rows(visible: list[list[bool]], positions: list[int]) -> ForwardRows:
    return ForwardRows(
        tokens=torch.tensor([5, 6, 7]),
        positions=torch.tensor(positions),
        slots=torch.tensor([2, 0, 1]),
        segments=(Segment(0, 3, 0, 3, torch.tensor(visible), None),),
        logit_rows=torch.tensor([0, 1, 2]),
    )


CAUSAL = [[False, False, True], [True, False, True], [True, True, True]]
"""Rows may see the slots of the rows before them and their own."""


def test_a_row_reads_its_text_in_the_order_of_positions() -> None:
    texts = []

    def table(text: tuple[int, ...]) -> list[float]:
        texts.append(text)
        return [0.0] * 9

    model = TableModel(table, 9)
    logits = model.forward(rows(CAUSAL, [0, 1, 2]), model.new_cache(3)).logits
    assert texts == [(5,), (5, 6), (5, 6, 7)]
    assert logits.dtype == torch.float64
    assert logits.shape == (3, 9)


@pytest.mark.parametrize(
    ("visible", "positions"),
    [
        pytest.param(CAUSAL, [0, 1, 3], id="a position is skipped"),
        pytest.param(CAUSAL, [0, 1, 1], id="a position is there twice"),
        pytest.param(
            [[False, False, True], [True, False, False], [True, True, True]],
            [0, 1, 2],
            id="an ancestor is not seen",
        ),
        pytest.param([[True, True, True]] * 3, [0, 1, 1], id="a sibling is seen"),
    ],
)
def test_a_fault_of_mask_or_position_is_noticed(
    visible: list[list[bool]], positions: list[int]
) -> None:
    model = greedy_table(mixing(9), 9)
    with pytest.raises(AssertionError, match="holes in the text"):
        model.forward(rows(visible, positions), model.new_cache(3))


def test_a_table_has_no_hidden_states() -> None:
    model = greedy_table(mixing(9), 9)
    with pytest.raises(TreespecError, match="hidden"):
        model.forward(rows(CAUSAL, [0, 1, 2]), model.new_cache(3), (0,))
