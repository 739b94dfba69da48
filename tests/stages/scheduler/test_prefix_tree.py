"""The prefix tree by example: what is shared, who owns which page, what leaves first, what watches hear."""

import numpy as np
import pytest

from stages.scheduler.eviction import load_eviction
from stages.scheduler.nodes import Node, Snapshot
from stages.scheduler.prefix_tree import Inserted, PrefixTree
from stages.scheduler.tiers import Freed
from stages.scheduler.watches import Watch

PAGE = 4


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


class Kit:
    """A tree of 4-token pages and a caller that never runs out of numbers."""

    def __init__(self, eviction: str = "lru", **parameters: float) -> None:
        self.tree = PrefixTree(PAGE, load_eviction(eviction, parameters))
        self.num_pages = self.num_slots = 0

    def pages(self, count: int) -> list[int]:
        self.num_pages += count
        return list(range(self.num_pages - count + 1, self.num_pages + 1))

    def snapshot(self, num_tokens: int) -> Snapshot:
        self.num_slots += 1
        return Snapshot(self.num_slots, self.pages(1)[0] if num_tokens % PAGE else None)

    def insert(self, text: str, namespace: str = "", priority: int = 0, num_counted: int = 0) -> Inserted:
        pages, snapshot = self.pages(len(text) // PAGE), self.snapshot(len(text))
        return self.tree.insert(namespace, ids(text), pages, snapshot.slot, snapshot.tail_page, priority, num_counted)

    def add(self, text: str, namespace: str = "") -> Node:
        return self.insert(text, namespace).node

    def save(self, node: Node) -> None:
        gap = self.tree.missing_on_host(node)
        snapshot = self.snapshot(node.end) if gap.snapshot else None
        attached = self.tree.attach_host(node, gap.first_page, self.pages(len(gap.pages)), snapshot)
        assert len(attached.taken) == len(gap.pages)
        assert attached.has_taken_snapshot == (gap.snapshot is not None)

    def resume(self, text: str, limit: int | None = None, namespace: str = "") -> int:
        match = self.tree.match(namespace, ids(text), len(text) if limit is None else limit)
        return match.resume.end if match.resume is not None else 0

    def watch(self, text: str, namespace: str = "") -> tuple[Watch, list[tuple[int, int]]]:
        heard: list[tuple[int, int]] = []
        watch = self.tree.watch(
            namespace, ids(text), len(text) - 1, lambda watch: heard.append((watch.usable_tokens, watch.node))
        )
        return watch, heard


@pytest.fixture
def kit() -> Kit:
    return Kit()


def slot_of(node: Node) -> int:
    assert node.device.snapshot is not None
    return node.device.snapshot.slot


# Matching and inserting.


def test_an_empty_tree_matches_nothing(kit):
    match = kit.tree.match("", ids("abcd"), 4)
    assert (match.num_matched, match.resume, match.on_device) == (0, None, None)


def test_a_prompt_resumes_at_the_deepest_snapshot_within_its_limit(kit):
    kit.add("abcdef")
    kit.add("abcdefghij")
    assert kit.tree.match("", ids("abcdefghXX"), 10).num_matched == 8
    assert kit.resume("abcdefghXX") == 6
    assert kit.resume("abcdefghijk") == 10
    assert kit.resume("abcdefghij", limit=9) == 6
    assert kit.resume("abcdef", limit=5) == 0


def test_tokens_beyond_the_last_snapshot_match_but_are_not_usable(kit):
    kit.add("abcdefgh")
    match = kit.tree.match("", ids("abcdefg"), 7)
    assert (match.num_matched, match.resume) == (7, None)


def test_namespaces_share_nothing(kit):
    kit.add("abcdefgh", "salt")
    assert kit.resume("abcdefgh") == 0
    assert kit.resume("abcdefgh", namespace="salt") == 8


def test_an_insert_takes_the_full_pages_and_the_snapshot_with_its_tail(kit):
    inserted = kit.tree.insert("", ids("abcdefghij"), [11, 12, 13], 7, 14)
    assert (inserted.taken, inserted.has_taken_snapshot) == ([11, 12], True)
    assert inserted.node.device.snapshot == Snapshot(7, 14)
    assert kit.tree.path_pages(inserted.node) == [11, 12]
    assert (kit.tree.num_pages, kit.tree.num_snapshots) == (3, 1)


def test_the_same_insert_again_takes_nothing(kit):
    kit.tree.insert("", ids("abcdefghij"), [11, 12], 7, 14)
    inserted = kit.tree.insert("", ids("abcdefghij"), [21, 22], 8, 24)
    assert (inserted.taken, inserted.has_taken_snapshot) == ([], False)
    assert kit.tree.path_pages(inserted.node) == [11, 12]


def test_a_longer_insert_takes_only_the_pages_that_lack(kit):
    kit.tree.insert("", ids("abcdefghij"), [11, 12], 7, 14)
    # Page index 2 begins inside the first node, whose tail page is right to its end only.
    inserted = kit.tree.insert("", ids("abcdefghijklm"), [11, 12, 33], 8, 34)
    assert inserted.taken == [33]
    assert kit.tree.path_pages(inserted.node) == [11, 12, 33]


def test_a_branch_in_the_middle_of_a_page_has_its_own_version_of_it(kit):
    first = kit.tree.insert("", ids("abcdefghij"), [11, 12], 7, 14).node
    second = kit.tree.insert("", ids("abcdefXXXX"), [21, 22], 8, 24)
    assert second.taken == [22]
    assert kit.tree.path_pages(first) == [11, 12]
    assert kit.tree.path_pages(second.node) == [11, 22]


def test_a_split_at_the_first_token_of_a_page_leaves_the_page_before_it_above(kit):
    first = kit.tree.insert("", ids("abcdefgh"), [11, 12], 7, None).node
    inserted = kit.tree.insert("", ids("abcd"), [21], 8, None)
    assert inserted.taken == []
    assert inserted.has_taken_snapshot
    assert kit.tree.path_pages(inserted.node) == [11]
    assert (first.start, first.device.pages) == (4, [12])


def test_a_snapshot_inside_a_node_splits_it_and_the_lower_half_stays_itself(kit):
    lower = kit.add("abcdefghij")
    number, slot = lower.number, slot_of(lower)
    upper = kit.add("abcdef")
    assert lower.parent is upper
    assert (lower.number, slot_of(lower), lower.start) == (number, slot, 6)
    assert kit.resume("abcdefXX") == 6


def test_one_request_counts_one_hit_a_node_however_often_it_inserts(kit):
    first = kit.insert("abcd").node
    second = kit.insert("abcdefgh", num_counted=4).node
    assert (first.hits, second.hits) == (1, 1)
    kit.insert("abcdefgh")
    assert (first.hits, second.hits) == (2, 2)


def test_a_match_counts_no_hit_and_changes_no_recency(kit):
    node = kit.add("abcd")
    before = (node.hits, node.last_access, node.snapshot_access)
    kit.tree.match("", ids("abcdef"), 6)
    assert (node.hits, node.last_access, node.snapshot_access) == before


def test_both_halves_keep_hits_priority_and_age(kit):
    lower = kit.insert("abcdefgh", priority=3).node
    kit.insert("abcdefgh")
    kit.insert("abXX", priority=1)
    upper = lower.parent
    assert (lower.hits, lower.priority) == (2, 3)
    assert (upper.hits, upper.priority, upper.created) == (3, 3, lower.created)


def test_a_node_has_the_best_priority_that_inserted_it(kit):
    node = kit.insert("abcd", priority=-5).node
    assert node.priority == -5
    kit.insert("abcdef", priority=2)
    kit.insert("abcdef", priority=1)
    assert node.priority == 2


@pytest.mark.parametrize(("text", "tail_page"), [("", None), ("abcd", 1), ("abcde", None)])
def test_a_tail_page_comes_just_when_the_end_is_inside_a_page(kit, text, tail_page):
    with pytest.raises(ValueError, match="tail page"):
        kit.tree.insert("", ids(text), [1], 1, tail_page)


def test_too_few_pages_are_refused(kit):
    with pytest.raises(ValueError, match="8 tokens cannot come with 1 pages"):
        kit.tree.insert("", ids("abcdefgh"), [1], 1, None)
    assert kit.tree.num_pages == 0


def test_a_node_keeps_its_tokens_when_the_caller_changes_the_array(kit):
    tokens = ids("abcd").copy()
    kit.tree.insert("", tokens, [1], 1, None)
    tokens[:] = 0
    assert kit.resume("abcd") == 4


def test_parents_are_told_by_number_and_0_for_nodes_under_a_root(kit):
    top = kit.add("abcd")
    beneath = kit.add("abcdef")
    assert kit.tree.parents()[[top.number, beneath.number]].tolist() == [0, top.number]
    middle = kit.add("abcde")
    assert kit.tree.parents()[[middle.number, beneath.number]].tolist() == [top.number, middle.number]


def test_the_number_of_a_node_that_went_is_given_again(kit):
    gone = kit.add("abcd")
    while kit.tree.num_snapshots:
        kit.tree.evict_snapshot()
    for text in ("efgh", "ijkl"):
        kit.add(text)
    assert len(kit.tree.parents()) == 3
    assert gone.number in {node.number for node in kit.tree._radix.nodes()}


# Eviction.


def test_pages_go_leaf_by_leaf_with_their_snapshot_least_recently_used_first(kit):
    first, second = kit.add("aaaaaa"), kit.add("bbbbbb")
    kit.tree.touch(first)
    pages, slot = second.device.pages, slot_of(second)
    freed = kit.tree.evict_pages(1)
    assert (len(freed.pages), freed.slots) == (2, [slot])
    assert set(pages) <= set(freed.pages)
    assert (kit.resume("aaaaaa"), kit.resume("bbbbbb")) == (6, 0)


def test_pages_go_until_there_are_enough_and_no_further(kit):
    for letter in "abcd":
        kit.add(letter * 8)
    assert len(kit.tree.evict_pages(3).pages) == 4
    assert kit.tree.num_pages == 4
    assert kit.tree.evict_pages(0) == Freed()


def test_a_parent_without_children_and_snapshot_goes_with_its_last_child(kit):
    kit.add("abcdefgh")
    kit.add("abcdXXXX")
    freed = kit.tree.evict_pages(2)
    # The fork above has no snapshot but a child.
    assert len(freed.pages) == 1 + 1 + 1
    assert kit.tree.num_pages == 0


def test_a_fork_with_a_child_left_stays(kit):
    kit.add("abcdefgh")
    kit.add("abcdXXXX")
    assert len(kit.tree.evict_pages(1).pages) == 1
    assert kit.resume("abcdXXXX") == 8
    assert kit.tree.num_pages == 2


def test_an_interior_node_loses_only_its_snapshot(kit):
    inner, leaf = kit.add("abcdef"), kit.add("abcdefgh")
    kit.tree.touch(leaf)
    snapshot = inner.device.snapshot
    freed = kit.tree.evict_snapshot()
    assert (freed.pages, freed.slots) == ([snapshot.tail_page], [snapshot.slot])
    assert kit.tree.path_pages(leaf) == kit.tree.path_pages(inner) + leaf.device.pages
    assert (kit.resume("abcdefg"), kit.resume("abcdefgh")) == (0, 8)


def test_a_leaf_goes_with_its_snapshot_and_what_it_leaves_without_use(kit):
    inner, leaf = kit.add("abcd"), kit.add("abcdefghi")
    kit.tree.touch(leaf)
    kit.tree.evict_snapshot()
    freed = kit.tree.evict_snapshot()
    assert len(freed.pages) == 3
    assert (kit.tree.num_pages, kit.tree.num_snapshots) == (0, 0)
    assert inner.device.pages is None


def test_using_a_snapshot_does_not_refresh_those_above_it(kit):
    inner = kit.add("abcd")
    other = kit.add("xxxx")
    leaf = kit.add("abcdefgh")
    kit.tree.touch(leaf)
    assert kit.tree.evict_snapshot().slots == [1]
    assert inner.device.snapshot is None
    assert other.device.snapshot is not None


def test_nothing_locked_goes(kit):
    kept, other = kit.add("abcdefgh"), kit.add("abcdXXXX")
    kit.tree.lock(kept)
    assert kit.tree.num_evictable_pages == 1
    freed = kit.tree.evict_pages(99)
    assert other.device.pages is None
    assert len(freed.pages) == 1
    assert kit.tree.path_pages(kept) == [1, 2]
    kit.tree.unlock(kept)
    assert kit.tree.num_evictable_pages == 2
    assert len(kit.tree.evict_pages(99).pages) == 2


def test_a_lock_keeps_pages_and_lets_the_snapshot_go(kit):
    node = kit.add("abcdef")
    kit.tree.lock(node)
    assert kit.tree.num_evictable_snapshots == 1
    freed = kit.tree.evict_snapshot()
    assert (len(freed.slots), len(freed.pages)) == (1, 1)
    assert kit.tree.path_pages(node) == [1]
    kit.tree.unlock(node)
    # Of no use to anybody now, it is the first to go however recently it was used.
    kit.add("xxxx")
    kit.tree.touch(node)
    assert kit.tree.evict_pages(1).pages == [1]


def test_a_locked_snapshot_keeps_all_that_resuming_there_needs(kit):
    node = kit.add("abcdef")
    kit.tree.lock_snapshot(node)
    assert (kit.tree.num_evictable_pages, kit.tree.num_evictable_snapshots) == (0, 0)
    assert kit.tree.evict_snapshot() == Freed()
    assert kit.tree.evict_pages(1) == Freed()
    kit.tree.unlock_snapshot(node)
    assert (kit.tree.num_evictable_pages, kit.tree.num_evictable_snapshots) == (2, 1)


def test_a_node_that_is_gone_cannot_be_locked(kit):
    node = kit.add("abcd")
    kit.tree.evict_pages(1)
    for lock in (kit.tree.lock, kit.tree.lock_snapshot):
        with pytest.raises(ValueError, match="node 1 is gone"):
            lock(node)
    kit.tree.clear()


def test_a_lock_outlives_a_split(kit):
    node = kit.add("abcdefgh")
    kit.tree.lock(node)
    kit.add("abcd")
    assert kit.tree.evict_pages(99) == Freed()
    kit.tree.unlock(node)
    assert kit.tree.num_evictable_pages == 2


def test_one_unlock_too_many_is_a_mistake(kit):
    node = kit.add("abcd")
    with pytest.raises(ValueError, match="not locked"):
        kit.tree.unlock(node)
    kit.tree.lock(node)
    with pytest.raises(ValueError, match="snapshot of node 1 is not locked"):
        kit.tree.unlock_snapshot(node)


def test_the_policy_ranks_snapshots_and_leaves():
    kit = Kit("lfu")
    often, seldom = kit.add("aaaa"), kit.add("bbbb")
    kit.add("aaaa")
    kit.tree.touch(seldom)
    assert kit.tree.evict_snapshot().slots == [2]
    assert often.device.snapshot is not None


def test_for_tlru_the_end_of_a_conversation_goes_before_what_the_next_turn_needs():
    kit = Kit("tlru", threshold=8, next_prompt_estimate=4)
    begin, end = kit.add("aaaaaaaaaaaa"), kit.add("aaaaaaaaaaaaaaaa")
    # Positions from 16 + 4 - 8 on can be computed again; it is the last used all the same.
    kit.tree.touch(end)
    kit.tree.evict_snapshot()
    assert (begin.device.snapshot is not None, end.is_gone) == (True, True)


def test_for_tlru_a_conversation_that_grows_needs_what_it_could_do_without():
    kit = Kit("tlru", threshold=8, next_prompt_estimate=4)
    begin, other = kit.add("aaaa"), kit.add("xxxxxxxx")
    kit.add("aaaaaaaa")
    kit.tree.touch(begin)
    kit.tree.touch(other)
    kit.tree.evict_snapshot()
    assert kit.resume("aaaaaaaaa") == 4, "only the end was safe"


def test_clear_returns_everything_of_every_namespace(kit):
    kit.add("abcdefg")
    kit.add("abcdXX")
    kit.add("abcd", "salt")
    freed = kit.tree.clear()
    assert sorted(freed.slots) == [1, 2, 3]
    assert len(freed.pages) == len(set(freed.pages)) == 4
    assert (kit.tree.num_pages, kit.tree.num_evictable_pages, kit.tree.num_evictable_snapshots) == (0, 0, 0)
    assert kit.tree.evict_pages(1) == Freed()
    assert kit.resume("abcdefg") == 0


def test_clear_refuses_while_something_is_locked(kit):
    node = kit.add("abcd")
    kit.tree.lock(node)
    with pytest.raises(ValueError, match="1 locks"):
        kit.tree.clear()
    assert kit.resume("abcd") == 4


# Superseded snapshots.


def test_superseded_snapshots_go_before_older_ones(kit):
    old, first, second, last = kit.add("xxxx"), kit.add("abcd"), kit.add("abcdefgh"), kit.add("abcdefghijkl")
    kit.tree.supersede(last)
    assert [node.is_superseded for node in (old, first, second, last)] == [False, True, True, False]
    assert [kit.tree.evict_snapshot().slots for _ in range(2)] == [[2], [3]]
    assert not first.is_superseded, "a snapshot that comes later is not that one"
    assert [node.device.snapshot is not None for node in (old, first, second, last)] == [True, False, False, True]


def test_what_a_new_branch_resumes_at_is_not_superseded(kit):
    system, _, last = kit.add("abcd"), kit.add("abcdefgh"), kit.add("abcdefghijkl")
    kit.add("abcdefXX")
    kit.tree.supersede(last)
    assert not system.is_superseded, "the fork under it has no snapshot"


def test_a_branch_unmarks_what_it_resumes_at(kit):
    first, second, last = kit.add("abcd"), kit.add("abcdefgh"), kit.add("abcdefghijkl")
    kit.tree.supersede(last)
    kit.add("abcdefghijXX")
    assert (first.is_superseded, second.is_superseded) == (True, False)


def test_a_use_unmarks(kit):
    first, last = kit.add("abcd"), kit.add("abcdefgh")
    kit.tree.supersede(last)
    assert first.is_superseded
    kit.tree.touch(first)
    assert not first.is_superseded
    kit.tree.supersede(last)
    kit.add("abcd")
    assert not first.is_superseded


def test_a_snapshot_is_worth_more_again_once_what_superseded_it_is_gone(kit):
    first, last = kit.add("abcd"), kit.add("abcdefgh")
    kit.tree.supersede(last)
    kit.tree.evict_pages(1)
    assert last.device.pages is None
    assert not first.is_superseded


def test_an_abandoned_answer_goes_before_older_ones_until_it_is_used_again(kit):
    other, answer = kit.add("xxxx"), kit.add("abcdefgh")
    kit.tree.abandon(answer)
    assert kit.tree.backup_candidates(9) == [other]
    kit.tree.touch(answer)
    assert kit.tree.evict_snapshot().slots == [1]
    kit.tree.abandon(answer)
    kit.add("abcdefgh")
    assert not answer.is_abandoned


def test_an_abandoned_answer_is_no_fork_until_it_is_used_again(kit):
    prompt, answer, later = kit.add("abcd"), kit.add("abcdefgh"), kit.add("abcdXXXXXXXX")
    kit.tree.supersede(later)
    assert not prompt.is_superseded
    kit.tree.abandon(answer)
    kit.tree.supersede(later)
    assert prompt.is_superseded
    kit.tree.touch(answer)
    assert not prompt.is_superseded


def test_what_others_begin_with_too_stays_as_recent_as_the_last_of_them(kit):
    system, alone, first = kit.add("abcd"), kit.add("xxxx"), kit.add("abcdefgh")
    second = kit.add("abcdeXXX")
    kit.tree.touch_forks(second)
    assert system.snapshot_access > second.last_access
    assert [kit.tree.evict_snapshot().slots for _ in range(3)] == [[2], [3], [4]]
    assert system.device.snapshot is not None
    assert (alone.device.snapshot, first.device.snapshot) == (None, None)


def test_what_only_its_own_conversation_passes_is_no_more_recent_for_it(kit):
    first, other, last = kit.add("abcd"), kit.add("xxxx"), kit.add("abcdefgh")
    kit.tree.touch_forks(last)
    assert first.snapshot_access < other.snapshot_access


# The host tier.


def test_a_saved_node_leaves_the_device_and_can_still_be_resumed_at(kit):
    node = kit.add("abcdefgh")
    kit.save(node)
    freed = kit.tree.evict_pages(1)
    assert (len(freed.pages), len(freed.slots), freed.host_pages) == (2, 1, [])
    match = kit.tree.match("", ids("abcdefghi"), 8)
    assert (match.resume, match.on_device) == (node, None)
    assert (kit.tree.num_pages, kit.tree.host.num_pages) == (0, 2)
    with pytest.raises(ValueError, match="not on the device"):
        kit.tree.path_pages(node)


def test_a_node_whose_last_child_left_the_device_is_next(kit):
    above, node = kit.add("abcd"), kit.add("abcdefgh")
    slots = [slot_of(node), slot_of(above)]
    kit.save(above)
    kit.save(node)
    assert [slot for _ in slots for slot in kit.tree.evict_pages(1).slots] == slots
    assert kit.resume("abcdefgh") == 8


def test_using_what_is_on_the_host_keeps_what_is_above_it_on_the_device(kit):
    above, node = kit.add("abcd"), kit.add("abcdefgh")
    kit.save(node)
    kit.tree.evict_pages(1)
    other = kit.add("xxxx")
    kit.tree.touch(node)
    kit.tree.evict_pages(1)
    assert (above.device.pages, other.is_gone) == ([1], True)


def test_what_comes_back_fills_just_the_gap(kit):
    above, node = kit.add("abcdef"), kit.add("abcdefghij")
    kit.save(node)
    kit.tree.touch(above)
    kit.tree.evict_pages(1)
    gap = kit.tree.missing_on_device(node)
    assert (gap.first_page, gap.pages, gap.snapshot) == (1, node.host.pages, node.host.snapshot)
    attached = kit.tree.attach_device(node, 1, [91], Snapshot(92, 93))
    assert (attached.taken, attached.has_taken_snapshot) == ([91], True)
    assert kit.tree.path_pages(node) == [1, 91]
    assert kit.tree.match("", ids("abcdefghijk"), 10).on_device is node
    assert kit.tree.missing_on_device(node).pages == []
    assert kit.tree.missing_on_device(node).snapshot is None


def test_a_load_takes_nothing_that_was_computed_in_the_meantime(kit):
    node = kit.add("abcdefgh")
    kit.save(node)
    kit.tree.evict_pages(1)
    gap = kit.tree.missing_on_device(node)
    kit.tree.lock_snapshot(node)
    computed = kit.insert("abcdefgh")
    assert len(computed.taken) == 2
    attached = kit.tree.attach_device(node, gap.first_page, [91, 92], Snapshot(93, None))
    assert (attached.taken, attached.has_taken_snapshot) == ([], False)


def test_a_transfer_survives_a_split_of_its_node(kit):
    node = kit.add("abcdefghijkl")
    gap = kit.tree.missing_on_host(node)
    kit.tree.lock_snapshot(node)
    upper = kit.add("abcdef")
    attached = kit.tree.attach_host(node, gap.first_page, [91, 92, 93], Snapshot(94, None))
    assert attached.taken == [91, 92, 93]
    assert (upper.host.pages, node.host.pages) == ([91], [92, 93])


def test_copies_that_leave_a_gap_are_refused_whole(kit):
    kit.add("abcd")
    node = kit.add("abcdefgh")
    for first_page, pages in ((1, [91]), (0, [91])):
        with pytest.raises(ValueError, match="leave a gap"):
            kit.tree.attach_host(node, first_page, pages, Snapshot(92, None))
    assert kit.tree.host.num_pages == 0


def test_the_snapshot_alone_can_leave_a_node_that_is_on_both(kit):
    node = kit.add("abcdefgh")
    kit.save(node)
    freed = kit.tree.evict_snapshot()
    assert (freed.pages, freed.slots) == ([], [1])
    assert kit.tree.path_pages(node) == [1, 2]
    gap = kit.tree.missing_on_device(node)
    assert (gap.first_page, gap.pages, gap.snapshot) == (2, [], node.host.snapshot)


def test_what_is_on_the_host_alone_vanishes_there_and_what_is_on_both_stays_on_the_device(kit):
    gone, both = kit.add("abcdefgh"), kit.add("xxxxxxxx")
    kit.save(gone)
    kit.save(both)
    kit.tree.evict_pages(1)
    freed = kit.tree.evict_host(4, 2)
    assert (len(freed.host_pages), len(freed.host_slots), freed.pages) == (4, 2, [])
    assert (kit.resume("abcdefgh"), kit.resume("xxxxxxxx")) == (0, 8)
    assert both.host.pages is None


def test_a_node_whose_only_snapshot_leaves_takes_its_host_pages_along(kit):
    above, node = kit.add("abcd"), kit.add("abcdefgh")
    kit.save(above)
    gap = kit.tree.missing_on_host(node)
    kit.tree.attach_host(node, gap.first_page, kit.pages(1), None)
    kit.tree.touch(above)
    freed = kit.tree.evict_snapshot()
    assert (len(freed.pages), len(freed.host_pages)) == (1, 1)
    assert node.parent.children == {}


def test_a_locked_node_stays_on_the_host_as_well(kit):
    node = kit.add("abcdefgh")
    kit.save(node)
    kit.tree.lock_snapshot(node)
    assert kit.tree.evict_host(9, 9) == Freed()
    kit.tree.unlock_snapshot(node)
    assert len(kit.tree.evict_host(9, 9).host_pages) == 2


def test_the_last_used_are_saved_first_and_superseded_saved_and_busy_ones_not_at_all(kit):
    old, middle, last, busy, saved = (
        kit.add("xxxx"),
        kit.add("abcd"),
        kit.add("abcdefgh"),
        kit.add("yyyy"),
        kit.add("zzzz"),
    )
    kit.tree.supersede(last)
    kit.tree.lock_snapshot(busy)
    kit.save(saved)
    assert kit.tree.backup_candidates(9) == [last, old]
    assert kit.tree.backup_candidates(1) == [last]
    kit.tree.touch(old)
    assert kit.tree.backup_candidates(1) == [old]
    assert middle.is_superseded


def test_what_host_memory_let_go_of_is_saved_again_only_after_it_was_used_again(kit):
    node = kit.add("abcd")
    kit.save(node)
    kit.tree.evict_host(9, 9)
    assert kit.tree.backup_candidates(9) == []
    kit.tree.touch(node)
    assert kit.tree.backup_candidates(9) == [node]


def test_what_was_tried_is_no_candidate_until_it_is_used_again(kit):
    old, new = kit.add("xxxx"), kit.add("abcd")
    kit.tree.tried(new)
    assert kit.tree.backup_candidates(9) == [old]
    kit.tree.touch(new)
    assert kit.tree.backup_candidates(9) == [new, old]


def test_for_a_node_nothing_leaves_the_host_that_was_used_after_it(kit):
    oldest, node, newest = kit.add("xxxx"), kit.add("abcd"), kit.add("yyyy")
    for each in (oldest, newest):
        kit.save(each)
    assert len(kit.tree.evict_host(2, 2, node).host_slots) == 1
    assert (oldest.host.snapshot, newest.host.snapshot is None) == (None, False)
    kit.tree.touch(node)
    assert len(kit.tree.evict_host(1, 1, node).host_pages) == 1
    assert newest.host.snapshot is None


def test_tokens_computed_again_put_a_node_of_the_host_back_on_the_device(kit):
    node = kit.add("abcdefgh")
    kit.save(node)
    kit.tree.evict_pages(1)
    inserted = kit.insert("abcdefghijkl")
    assert len(inserted.taken) == 3
    assert kit.tree.path_pages(inserted.node) == inserted.taken
    assert node.device.snapshot is None


# Watches.


def test_a_watch_hears_of_a_snapshot_it_can_use_and_of_its_loss(kit):
    watch, heard = kit.watch("abcdefghX")
    node = kit.add("abcdefgh")
    kit.tree.evict_pages(1)
    assert heard == [(8, node.number), (0, 0)]
    assert (watch.num_matched, watch.usable_tokens, watch.node) == (0, 0, 0)


def test_a_watch_hears_nothing_of_what_does_not_concern_it(kit):
    kit.add("abcd")
    _, heard = kit.watch("abcdefgh")
    _, other = kit.watch("abcdefgh", "salt")
    kit.add("abcdXXXX")
    kit.add("abcdefgh", "pepper")
    kit.add("xxxx")
    kit.tree.evict_pages(1)
    assert (heard, other) == ([], [])


def test_a_watch_hears_nothing_of_a_snapshot_beyond_its_limit(kit):
    watch, heard = kit.watch("abcdefgh")
    node = kit.add("abcdefgh")
    assert heard == [(0, node.number)]
    assert watch.num_matched == 8


def test_a_watch_falls_back_to_the_next_snapshot_above(kit):
    inner, leaf = kit.add("abcd"), kit.add("abcdefgh")
    watch, heard = kit.watch("abcdefghi")
    assert watch.usable_tokens == 8
    kit.tree.evict_snapshot()
    assert heard == []
    kit.insert("abcd")
    kit.tree.evict_snapshot()
    assert heard == [(4, inner.number)]
    assert leaf.device.pages is None


def test_a_watch_inside_a_node_moves_to_the_half_it_stands_in(kit):
    lower = kit.add("abcdefghijkl")
    short, short_heard = kit.watch("abcXX")
    exact, _ = kit.watch("abcdefXX")
    long, long_heard = kit.watch("abcdefghXX")
    upper = kit.add("abcdef")
    assert (short.node, exact.node, long.node) == (upper.number, upper.number, lower.number)
    assert (short_heard, long_heard) == ([(0, upper.number)], [(6, lower.number)])


@pytest.mark.parametrize("num_others", [0, 9])
def test_a_new_snapshot_high_up_serves_just_those_that_go_through_it_and_have_nothing_deeper(kit, num_others):
    # With few others the watches above are looked at, with many those beneath.
    for _ in range(num_others):
        kit.watch("zzzz")
    for text in ("abcdefghij", "abcdefghXX", "wwwwwwww"):
        kit.add(text)
    inside, _ = kit.watch("abcdXXXX")
    through, _ = kit.watch("abcdefgZZ")
    deeper, _ = kit.watch("abcdefghijZ")
    elsewhere, _ = kit.watch("wwwwwwww")
    node = kit.add("abcdefg")
    watches = (inside, through, deeper, elsewhere)
    assert [watch.usable_tokens for watch in watches] == [0, 7, 10, 0]
    assert [watch.num_matched for watch in watches] == [4, 7, 10, 8]
    assert inside.node == through.node == node.number


def test_a_node_that_leaves_the_device_but_is_saved_changes_nothing_for_a_watch(kit):
    node = kit.add("abcd")
    kit.save(node)
    watch, heard = kit.watch("abcde")
    kit.tree.evict_pages(1)
    assert (heard, watch.usable_tokens) == ([], 4)
    kit.tree.evict_host(1, 0)
    assert heard == [(0, 0)]


def test_a_watch_hears_of_a_cleared_tree_and_of_what_comes_after(kit):
    kit.add("abcd")
    _, heard = kit.watch("abcde")
    kit.tree.clear()
    node = kit.add("abcd")
    assert heard == [(0, 0), (4, node.number)]


def test_who_no_longer_watches_hears_nothing_more(kit):
    watch, heard = kit.watch("abcde")
    kit.tree.unwatch(watch)
    kit.add("abcd")
    assert heard == []
    with pytest.raises(ValueError, match="not watched"):
        kit.tree.unwatch(watch)


def test_a_callback_may_end_its_own_watch_and_others(kit):
    ended = []

    def end_all(_: Watch) -> None:
        for watch in watches:
            kit.tree.unwatch(watch)
        ended.extend(watches)
        watches.clear()

    watches = [kit.tree.watch("", ids("abcde"), 4, end_all) for _ in range(3)]
    kit.add("abcd")
    assert len(ended) == 3


def test_a_namespace_that_nobody_uses_leaves_nothing_behind(kit):
    for number in range(5):
        watch, _ = kit.watch("abcde", f"salt{number}")
        kit.add("abcd", f"salt{number}")
        kit.tree.evict_pages(1)
        kit.tree.unwatch(watch)
    assert kit.tree._radix.roots == {}
