"""Open sessions and what is pinned for them."""

import math

import numpy as np
import pytest
from attrs import define, field

from stages.scheduler.eviction.lru import Lru
from stages.scheduler.nodes import Node
from stages.scheduler.prefix_tree import PrefixTree
from stages.scheduler.sessions import Sessions


@define(eq=False)
class Desk:
    """A tree of one-page prefixes and its sessions, two of which may pin."""

    tree: PrefixTree = field(factory=lambda: PrefixTree(4, Lru()))
    sessions: Sessions = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.sessions = Sessions(self.tree, 2)

    def node(self, number: int) -> Node:
        """Return the node of a prefix of its own."""
        tokens = np.arange(4, dtype=np.int32) + 10 * number
        return self.tree.insert("", tokens, [number], number, None).node


def test_beyond_the_limit_the_session_idle_for_longest_loses_its_pin():
    desk = Desk()
    nodes = [desk.node(number) for number in range(1, 4)]
    for name, index in (("a", 0), ("b", 1), ("a", 0), ("c", 2)):
        desk.sessions.pin(name, nodes[index])
    assert [node.snapshot_locks for node in nodes] == [1, 0, 1]


def test_a_request_that_leaves_nothing_to_pin_keeps_its_session_open_all_the_same():
    sessions = Desk().sessions
    sessions.open("a", 10)
    for now_s in (8.0, 16.0):
        sessions.expire(now_s)
        sessions.began("a")
        sessions.ended("a")
    sessions.expire(25.9)
    with pytest.raises(ValueError, match="open already"):
        sessions.open("a", None)
    sessions.expire(26.0)
    sessions.open("a", None)


def test_a_session_does_not_time_out_while_one_of_its_requests_runs():
    sessions = Desk().sessions
    sessions.open("a", 10)
    sessions.began("a")
    sessions.began("a")
    sessions.ended("a")
    sessions.expire(100.0)
    assert sessions.next_expiry_s == math.inf
    sessions.ended("a")
    assert sessions.next_expiry_s == 110.0
    sessions.expire(110.0)
    with pytest.raises(KeyError):
        sessions.close("a")


def test_a_closed_session_gives_up_its_pin_whether_it_was_opened_or_not():
    desk = Desk()
    nodes = [desk.node(1), desk.node(2)]
    desk.sessions.open("a", None)
    for name, node in zip("ab", nodes, strict=True):
        desk.sessions.pin(name, node)
        desk.sessions.close(name)
        assert not node.snapshot_locks
        with pytest.raises(KeyError):
            desk.sessions.close(name)


def test_when_everything_is_unpinned_open_sessions_stay_open():
    desk = Desk()
    desk.sessions.open("a", None)
    desk.sessions.pin("a", desk.node(1))
    desk.sessions.unpin_all()
    assert desk.sessions.num_pinned == 0
    with pytest.raises(ValueError, match="open already"):
        desk.sessions.open("a", None)
