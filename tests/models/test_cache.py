"""Slots and regions: who owns what, and that nothing is lost."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.models.cache import UNSEEN, Region, SlotCache

CPU = torch.device("cpu")
repeatable = settings(derandomize=True, deadline=None, max_examples=60)


def pool(capacity: int) -> SlotCache:
    return SlotCache(num_layers=2, capacity=capacity, device=CPU)


@repeatable
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40))
def test_a_region_takes_the_lowest_free_slots(moves: list[tuple[bool, int]]) -> None:
    region, live = Region(10, 30), set[int]()
    for takes, count in moves:
        if takes:
            free = sorted(set(range(10, 30)) - live)
            slots = region.take(min(count, len(free)))
            assert slots == free[:count]
            live.update(slots)
        else:
            # Scattered on purpose: what a rejected tree gives back has gaps.
            returned = sorted(live)[:: count + 1]
            region.give_back(returned[::-1])
            live.difference_update(returned)
        assert region.num_live == len(live)
        assert region.num_free == 20 - len(live)
        assert region.high == max(live, default=9) + 1
        assert set(region.holes) == set(range(10, region.high)) - live


@repeatable
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=30))
def test_regions_never_overlap_and_all_slots_are_counted(
    moves: list[tuple[bool, int]],
) -> None:
    cache, regions = pool(24), list[Region]()
    for enters, size in moves:
        if enters:
            region = cache.admit(size)
            if region is None:
                continue
            region.take(size // 2)
            regions.append(region)
        elif regions:
            cache.release(regions.pop(size % len(regions)))
        owned = [slot for r in regions for slot in range(r.start, r.stop)]
        assert len(set(owned)) == len(owned)
        assert set(owned) <= set(range(24))
        assert cache.num_live == sum(region.num_live for region in regions)
        assert cache.num_free + cache.num_live == 24


def test_a_region_goes_where_it_first_fits() -> None:
    cache = pool(10)
    first, second = cache.admit(4), cache.admit(4)
    assert first is not None
    assert second is not None
    assert (first.start, second.start) == (0, 4)
    assert cache.admit(3) is None
    cache.release(first)
    assert cache.admit(5) is None, "four slots in front and two behind are not five"
    third = cache.admit(4)
    assert third is not None
    assert third.start == 0


def test_a_released_region_leaves_no_token_to_be_seen() -> None:
    cache = pool(6)
    region = cache.admit(4)
    assert region is not None
    cache.place(region.take(3), [0, 1, 2])
    assert cache.positions[:4].tolist() == [0, 1, 2, UNSEEN]
    cache.release(region)
    assert cache.positions.tolist() == [UNSEEN] * 6


def test_keys_and_values_are_found_where_they_were_written() -> None:
    cache = pool(5)
    slots = torch.tensor([3, 1])
    keys, values = torch.randn(2, 2, 4), torch.randn(2, 2, 3)
    cache.write(1, slots, keys, values)
    view = cache.layer(1)
    assert view.keys.shape == (2, 5, 4)
    assert torch.equal(view.keys[:, slots], keys)
    assert torch.equal(view.values[:, slots], values)
    untouched = [0, 2, 4]
    # Not NaN: what no row sees is multiplied by 0, and 0 * NaN is NaN.
    assert not view.keys[:, untouched].any()
    assert not view.values[:, untouched].any()
    with pytest.raises(AssertionError, match="layer 0 was never written"):
        cache.layer(0)
