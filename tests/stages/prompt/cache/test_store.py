"""The store: what it holds is bounded in bytes that are measured, and the longest unused go first."""

import gc
import threading
import tracemalloc
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.prompt.cache.store import Piece, PieceStore, _size_of, packed, unpacked


@given(st.lists(st.lists(st.integers(0, 2**32 - 1))))
def test_packed_ids_come_back(parts: list[list[int]]) -> None:
    assert list(unpacked(map(packed, parts))) == list(chain(*parts))


@pytest.mark.parametrize(("count", "size"), [(5000, 3), (500, 2000)])
def test_the_bytes_it_says_are_the_bytes_it_takes(count: int, size: int) -> None:
    store = PieceStore(1 << 40)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    store.keep((Piece(f"{number}" * size), packed(range(size))) for number in range(count))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert store.num_bytes == pytest.approx(grown, rel=0.005)
    store.clear()
    assert store.num_bytes < 1000


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 400)), max_size=60), st.integers(600, 6000))
def test_it_never_holds_more_than_it_may_and_forgets_in_order_of_use(
    uses: list[tuple[int, int]], max_bytes: int
) -> None:
    store, by_use = PieceStore(max_bytes), list[Piece]()
    for number, size in uses:
        piece = Piece(f"{number}", "m" * size)
        if store.find([piece]) == [None]:
            store.keep([(piece, packed([number]))])
        by_use = [*(each for each in by_use if each != piece), piece]
        assert store.num_bytes <= max_bytes
        held = [each for each in by_use if each in store._entries]
        assert list(store._entries) == held
        by_use = held


def test_what_is_used_stays_and_the_rest_goes() -> None:
    store = PieceStore(20_000)
    pieces = [Piece(str(number) * 1000) for number in range(10)]
    store.keep((piece, packed([1])) for piece in pieces)
    for number in range(10, 40):
        assert store.find(pieces[:1]) == [packed([1])]
        store.keep([(Piece(str(number) * 1000), packed([2]))])
    assert store.find(pieces[:2]) == [packed([1]), None]


def test_what_is_larger_than_all_of_it_drives_nothing_out() -> None:
    store = PieceStore(5000)
    store.keep([(Piece("small"), packed([1])), (Piece("x" * 10_000), packed([2]))])
    assert store.find([Piece("small"), Piece("x" * 10_000)]) == [packed([1]), None]


def test_a_closed_one_holds_nothing_more() -> None:
    store = PieceStore(5000)
    store.keep([(Piece("a"), packed([1]))])
    store.close()
    store.keep([(Piece("a"), packed([1])), (Piece("b"), packed([2]))])
    assert store.find([Piece("a"), Piece("b")]) == [None, None]
    assert len(store) == 0


def test_threads_that_share_one_leave_its_sum_right() -> None:
    store = PieceStore(30_000)

    def work(seed: int) -> None:
        for number in range(3000):
            piece = Piece(f"{(seed * 31 + number * 7) % 400}" * 20)
            if store.find([piece]) == [None]:
                store.keep([(piece, packed([number]))])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store._content_bytes == sum(_size_of(piece, ids) for piece, ids in store._entries.items())
    assert 0 < store.num_bytes <= store.max_bytes


def test_a_mark_makes_another_piece_of_the_same_text() -> None:
    store = PieceStore(5000)
    store.keep([(Piece("a"), packed([1])), (Piece("a", "m"), packed([2]))])
    assert store.find([Piece("a"), Piece("a", "m"), Piece("a", "n")]) == [packed([1]), packed([2]), None]
