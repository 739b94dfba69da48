"""The heap whose entries change: always the smallest current key, whatever was placed before."""

from hypothesis import given
from hypothesis import strategies as st

from stages.scheduler.ranking import Ranking

ITEMS = st.sampled_from("abcde")


@given(st.lists(st.tuples(ITEMS, st.one_of(st.none(), st.integers(0, 5))), max_size=300))
def test_first_and_smallest_are_what_sorting_says(orders):
    ranking: Ranking[str] = Ranking()
    keys: dict[str, int] = {}
    for item, key in orders:
        if key is None:
            ranking.remove(item)
            keys.pop(item, None)
        elif keys.get(item) != key:
            ranking.place(item, (key,))
            keys.pop(item, None)
            keys[item] = key
        expected = sorted(keys, key=lambda each: keys[each])
        assert ranking.first() == next(iter(expected), None)
        assert ranking.smallest(3) == expected[:3]
        assert len(ranking) == len(keys)


def test_placing_the_same_key_again_keeps_the_place_among_equals():
    ranking: Ranking[str] = Ranking()
    ranking.place("a", (1,))
    ranking.place("b", (1,))
    ranking.place("a", (1,))
    assert ranking.first() == "a"


def test_old_entries_never_outnumber_current_ones_by_much():
    ranking: Ranking[str] = Ranking()
    for number in range(1000):
        ranking.place("a", (number,))
        ranking.place("b", (-number,))
        assert len(ranking._heap) <= 2 * len(ranking) + 64
    assert ranking.smallest(5) == ["b", "a"]
