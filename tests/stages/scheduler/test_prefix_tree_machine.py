"""Random orders against the prefix tree: one owner a page, right content everywhere, and the same as a naive answer."""

from collections import Counter

import numpy as np
from attrs import define, field
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stages.scheduler.eviction import load_eviction
from stages.scheduler.nodes import DEVICE, HOST, Node, Snapshot, path_to, subtree, upwards
from stages.scheduler.pages import Pool
from stages.scheduler.prefix_tree import PrefixTree
from stages.scheduler.tiers import Freed, Gap
from stages.scheduler.watches import Watch

Prompt = tuple[int, ...]

# Long enough for several pages, and nearly the same so that prompts meet and part everywhere.
CONVERSATION = (0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0)
PROMPTS = st.builds(
    lambda shared, rest: (*CONVERSATION[:shared], *rest),
    st.integers(1, len(CONVERSATION)),
    st.lists(st.integers(0, 1), max_size=6),
)
NAMESPACES = st.sampled_from(["", "", "", "salt"])
EVICTIONS = {"slru": {}, "tlru": {"threshold": 8, "next_prompt_estimate": 2}}
NUM_PAGES, NUM_SLOTS = 2000, 300


def array(prompt: Prompt) -> np.ndarray:
    return np.array(prompt, np.int32)


def ways_on(node: Node) -> list[Node]:
    """Return the children that some prompt may still go to."""
    return [child for child in node.children.values() if not child.is_abandoned]


@define(eq=False)
class Store:
    """One tier's memory: who may use which number, and what was written there."""

    size: int
    pages: Pool = field(init=False)
    slots: Pool = field(init=False)
    page_content: dict[int, Prompt] = field(factory=dict)
    slot_content: dict[int, Prompt] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.pages, self.slots = Pool(NUM_PAGES), Pool(NUM_SLOTS)

    def page(self, content: Prompt) -> int:
        (page,) = self.pages.take(1)
        self.page_content[page] = content
        return page

    def snapshot(self, prompt: Prompt) -> Snapshot:
        (slot,) = self.slots.take(1)
        self.slot_content[slot] = prompt
        rest = len(prompt) % self.size
        return Snapshot(slot, self.page(prompt[-rest:]) if rest else None)

    def give_back(self, pages: list[int], slots: list[int]) -> None:
        self.pages.give_back(pages)
        self.slots.give_back(slots)
        for page in pages:
            del self.page_content[page]
        for slot in slots:
            del self.slot_content[slot]

    def give_back_snapshot(self, snapshot: Snapshot) -> None:
        self.give_back([] if snapshot.tail_page is None else [snapshot.tail_page], [snapshot.slot])


@define(eq=False)
class Run:
    """A request that computes its prompt piece by piece."""

    namespace: str
    prompt: Prompt
    table: list[int]
    own: set[int]
    node: Node | None
    position: int
    num_counted: int = 0


@define(eq=False)
class Transfer:
    node: Node
    target: int
    gap: Gap
    pages: list[int]
    snapshot: Snapshot | None


class PrefixTreeMachine(RuleBasedStateMachine):
    @initialize(
        size=st.sampled_from([4, 8]),
        eviction=st.sampled_from(["lru", "lfu", "slru", "tlru", "priority", "fifo", "mru", "filo"]),
    )
    def start(self, size: int, eviction: str) -> None:
        self.size = size
        self.eviction = load_eviction(eviction, EVICTIONS.get(eviction, {}))
        self.tree = PrefixTree(size, self.eviction)
        self.stores = (Store(size), Store(size))
        self.runs: list[Run] = []
        self.transfers: list[Transfer] = []
        self.locks: list[Node] = []
        self.pins: list[Node] = []
        self.watches: list[Watch] = []
        self.heard: dict[Watch, tuple[int, int]] = {}
        self.spared: set[Node] = set()
        # What the tree should hold a snapshot of, by its slot in each tier.
        self.known: tuple[dict[int, tuple[str, Prompt]], ...] = ({}, {})

    # What a caller does.

    @rule(namespace=NAMESPACES, prompt=PROMPTS, cuts=st.sets(st.integers(1, 34), max_size=3), stays=st.booleans())
    def run(self, namespace: str, prompt: Prompt, cuts: set[int], stays: bool) -> None:
        self.begin_run(namespace, prompt)
        for cut in sorted(cuts):
            self.compute(self.runs[-1], cut, True, len(prompt) % 5)
        if not stays:
            self.compute(self.runs[-1], len(prompt), True, len(prompt) % 5)
            self.leave(self.runs.pop())

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), count=st.integers(1, 13), inserts=st.booleans(), priority=st.integers(-2, 2))
    def go_on(self, data: st.DataObject, count: int, inserts: bool, priority: int) -> None:
        run = data.draw(st.sampled_from(self.runs))
        self.compute(run, run.position + count, inserts, priority)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def end_run(self, data: st.DataObject) -> None:
        self.leave(self.runs.pop(data.draw(st.integers(0, len(self.runs) - 1))))

    def begin_run(self, namespace: str, prompt: Prompt) -> None:
        store = self.stores[DEVICE]
        node = self.tree.match(namespace, array(prompt), len(prompt) - 1).on_device
        run = Run(namespace, prompt, [], set(), node, 0)
        if node is not None:
            self.tree.lock(node)
            self.tree.touch(node)
            run.table, run.position = self.tree.path_pages(node), node.end
            assert node.device.snapshot is not None
            if node.device.snapshot.tail_page is not None:
                page = store.page(store.page_content[node.device.snapshot.tail_page][: node.end % self.size])
                run.table.append(page)
                run.own.add(page)
        self.runs.append(run)

    def compute(self, run: Run, end: int, inserts: bool, priority: int) -> None:
        store = self.stores[DEVICE]
        for position in range(run.position, min(end, len(run.prompt))):
            if position % self.size == 0:
                run.table.append(store.page(()))
                run.own.add(run.table[-1])
            page = run.table[position // self.size]
            assert page in run.own, "nobody writes a page of the tree"
            store.page_content[page] += (run.prompt[position],)
            run.position = position + 1
        if inserts and run.position:
            self.insert(run, priority)

    def leave(self, run: Run) -> None:
        if run.node is not None:
            self.tree.unlock(run.node)
        self.stores[DEVICE].give_back(sorted(run.own), [])

    def insert(self, run: Run, priority: int) -> None:
        done = run.prompt[: run.position]
        snapshot = self.stores[DEVICE].snapshot(done)
        num_before = self.tree.num_pages
        hits = {node: node.hits for node in self.nodes()}
        inserted = self.tree.insert(
            run.namespace, array(done), run.table, snapshot.slot, snapshot.tail_page, priority, run.num_counted
        )
        assert set(inserted.taken) <= run.own
        assert inserted.node.end == run.position
        run.own -= set(inserted.taken)
        num_tail_pages = snapshot.num_pages if inserted.has_taken_snapshot else 0
        assert self.tree.num_pages == num_before + len(inserted.taken) + num_tail_pages
        if inserted.has_taken_snapshot:
            self.known[DEVICE][snapshot.slot] = (run.namespace, done)
        else:
            self.stores[DEVICE].give_back_snapshot(snapshot)
        path = path_to(inserted.node)
        for node in hits:
            assert node.hits - hits[node] == (node in path and node.end > run.num_counted)
        run.num_counted = run.position
        assert inserted.node.snapshot_access == inserted.node.last_access == max(node.last_access for node in path)
        assert not inserted.node.is_superseded
        assert all(node.history_tokens >= run.position and node.priority >= priority for node in path)
        self.tree.lock(inserted.node)
        if run.node is not None:
            self.tree.unlock(run.node)
        run.node = inserted.node

    @rule(data=st.data(), pins=st.booleans())
    def lock(self, data: st.DataObject, pins: bool) -> None:
        nodes = [node for node in self.nodes() if node.has_snapshot or not pins]
        if nodes:
            node = data.draw(st.sampled_from(nodes))
            (self.pins if pins else self.locks).append(node)
            (self.tree.lock_snapshot if pins else self.tree.lock)(node)

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        self.tree.unlock(self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1))))

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unlock_snapshot(self, data: st.DataObject) -> None:
        self.tree.unlock_snapshot(self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1))))

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        nodes = [node for node in self.nodes() if node.has_snapshot]
        if nodes:
            node = data.draw(st.sampled_from(nodes))
            self.tree.touch(node)
            assert not node.is_superseded
            accesses = [each.last_access for each in path_to(node)]
            assert accesses == sorted(set(accesses))
            assert max(each.last_access for each in self.nodes()) == accesses[-1] == node.snapshot_access

    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        leaves = [node for node in self.nodes() if node.device.snapshot is not None and not node.children]
        if leaves:
            node = data.draw(st.sampled_from(leaves))
            self.tree.abandon(node)
            assert node.goes_first

    @rule(data=st.data())
    def touch_forks(self, data: st.DataObject) -> None:
        nodes = self.nodes()
        if nodes:
            self.tree.touch_forks(data.draw(st.sampled_from(nodes)))

    @rule()
    def supersede(self) -> None:
        for node in self.nodes():
            if node.has_snapshot and not node.children:
                expected, is_covered = (
                    {above for above in upwards(node.parent) if above.is_superseded},
                    not node.is_abandoned,
                )
                for above in upwards(node.parent):
                    is_covered = is_covered and len(ways_on(above)) <= 1
                    if above.has_snapshot:
                        expected |= {above} if is_covered else set()
                        is_covered = True
                self.tree.supersede(node)
                assert expected == {above for above in upwards(node.parent) if above.is_superseded}

    @rule(namespace=NAMESPACES, prompts=st.lists(PROMPTS, min_size=1, max_size=4), slack=st.integers(0, 5))
    def watch(self, namespace: str, prompts: list[Prompt], slack: int) -> None:
        for prompt in prompts:
            watch = self.tree.watch(namespace, array(prompt), len(prompt) - slack, self.hear)
            self.watches.append(watch)
            self.heard[watch] = (watch.usable_tokens, watch.node)

    def hear(self, watch: Watch) -> None:
        answer = (watch.usable_tokens, watch.node)
        assert self.heard[watch] != answer, "only changes are told"
        self.heard[watch] = answer

    @precondition(lambda self: self.watches)
    @rule(data=st.data())
    def unwatch(self, data: st.DataObject) -> None:
        watch = self.watches.pop(data.draw(st.integers(0, len(self.watches) - 1)))
        self.tree.unwatch(watch)
        del self.heard[watch]

    # Who goes.

    @rule(count=st.integers(1, 6), tier=st.sampled_from([DEVICE, DEVICE, HOST]))
    def evict_pages(self, count: int, tier: int) -> None:
        num_evictable = self.naive_num_evictable_pages(tier)
        keys = {
            node: (not node.is_useless, *self.eviction.key(node.facts(node.last_access)))
            for node in self.nodes()
            if self.is_free_leaf(node, tier)
        }
        # The halves of a node are as old as each other, so there can be several.
        first = [node.held[tier].pages or [] for node, key in keys.items() if key == min(keys.values())]
        freed = self.keeping_locked(
            lambda: self.tree.evict_pages(count) if tier == DEVICE else self.tree.evict_host(count, 0)
        )
        assert len(freed.of(tier)[0]) >= min(count, num_evictable)
        assert not first or any(set(pages) <= set(freed.of(tier)[0]) for pages in first)

    @rule(tier=st.sampled_from([DEVICE, DEVICE, HOST]))
    def evict_snapshot(self, tier: int) -> None:
        keys = {
            snapshot.slot: (not node.goes_first, *self.eviction.key(node.facts(node.snapshot_access)))
            for node in self.nodes()
            if (snapshot := node.held[tier].snapshot) is not None and not node.snapshot_locks
        }
        freed = self.keeping_locked(
            lambda: self.tree.evict_snapshot() if tier == DEVICE else self.tree.evict_host(0, 1)
        )
        assert len(freed.of(tier)[1]) == bool(keys)
        assert all(keys[slot] == min(keys.values()) for slot in freed.of(tier)[1])

    @precondition(lambda self: not (self.runs or self.transfers or self.locks or self.pins))
    @rule()
    def clear(self) -> None:
        self.take(self.tree.clear())
        assert not list(self.nodes())
        assert not any(self.known)

    def keeping_locked(self, evict) -> Freed:
        locked = {
            node: [list(held.pages) if held.pages is not None else None for held in node.held]
            for node in self.nodes()
            if self.is_locked(node)
        }
        pinned = {node: [held.snapshot for held in node.held] for node in self.nodes() if self.is_pinned(node)}
        freed = evict()
        self.take(freed)
        nodes = set(self.nodes())
        for node, pages in locked.items():
            assert node in nodes
            assert [held.pages for held in node.held] == pages
        for node, snapshots in pinned.items():
            assert [held.snapshot for held in node.held] == snapshots
        return freed

    def take(self, freed: Freed) -> None:
        for tier, store in enumerate(self.stores):
            pages, slots = freed.of(tier)
            store.give_back(pages, slots)
            for slot in slots:
                del self.known[tier][slot]

    # Copies between the tiers.

    @rule(limit=st.integers(1, 3))
    def begin_backup(self, limit: int) -> None:
        worth = [
            node
            for node in self.nodes()
            if node.device.snapshot
            and not node.host.snapshot
            and not node.snapshot_locks
            and not node.goes_first
            and node.tried_access != node.snapshot_access
        ]
        nodes = self.tree.backup_candidates(limit)
        assert nodes == sorted(worth, key=lambda node: -node.snapshot_access)[:limit]
        for node in nodes:
            self.begin_transfer(node, HOST, self.tree.missing_on_host(node))

    @rule(namespace=NAMESPACES, prompt=PROMPTS)
    def begin_load(self, namespace: str, prompt: Prompt) -> None:
        node = self.tree.match(namespace, array(prompt), len(prompt)).resume
        if node is not None and node.device.snapshot is None:
            self.begin_transfer(node, DEVICE, self.tree.missing_on_device(node))

    def begin_transfer(self, node: Node, target: int, gap: Gap) -> None:
        self.tree.lock_snapshot(node)
        source, store = self.stores[1 - target], self.stores[target]
        pages = [store.page(source.page_content[page]) for page in gap.pages]
        assert gap.first_page + len(pages) == node.end // self.size
        snapshot = None
        if gap.snapshot is not None:
            snapshot = store.snapshot(source.slot_content[gap.snapshot.slot])
            assert (snapshot.tail_page is None) == (gap.snapshot.tail_page is None)
        self.transfers.append(Transfer(node, target, gap, pages, snapshot))

    @precondition(lambda self: self.transfers)
    @rule(data=st.data(), fails=st.booleans())
    def end_transfer(self, data: st.DataObject, fails: bool) -> None:
        transfer = self.transfers.pop(data.draw(st.integers(0, len(self.transfers) - 1)))
        node, store, taken, has_taken = transfer.node, self.stores[transfer.target], [], False
        if not fails:
            attach = (self.tree.attach_device, self.tree.attach_host)[transfer.target]
            attached = attach(node, transfer.gap.first_page, transfer.pages, transfer.snapshot)
            taken, has_taken = attached.taken, attached.has_taken_snapshot
        store.give_back([page for page in transfer.pages if page not in taken], [])
        if transfer.snapshot is not None and has_taken:
            self.known[transfer.target][transfer.snapshot.slot] = (node.namespace, self.prefix(node))
        elif transfer.snapshot is not None:
            store.give_back_snapshot(transfer.snapshot)
        self.tree.unlock_snapshot(node)

    # What a naive reader sees.

    def nodes(self) -> list[Node]:
        return list(self.tree._radix.nodes())

    def prefix(self, node: Node) -> Prompt:
        return tuple(int(token) for each in path_to(node) for token in each.tokens)

    def is_locked(self, node: Node) -> bool:
        held = [*self.locks, *self.pins, *(run.node for run in self.runs), *(each.node for each in self.transfers)]
        return any(node in upwards(each) for each in held)

    def is_pinned(self, node: Node) -> bool:
        return node in [*self.pins, *(each.node for each in self.transfers)]

    def is_free_leaf(self, node: Node, tier: int) -> bool:
        has_children = any(child.held[tier].pages is not None for child in node.children.values())
        return node.held[tier].pages is not None and not has_children and not self.is_locked(node)

    def naive_num_evictable_pages(self, tier: int) -> int:
        return sum(node.held[tier].num_pages for node in self.nodes() if not self.is_locked(node))

    def naive_match(self, namespace: str, prompt: Prompt, limit: int, tiers: tuple[int, ...]) -> int:
        known = [prefix for tier in tiers for space, prefix in self.known[tier].values() if space == namespace]
        return max((len(each) for each in known if len(each) <= limit and prompt[: len(each)] == each), default=0)

    def naive_num_matched(self, namespace: str, prompt: Prompt) -> int:
        paths = [self.prefix(node) for node in self.nodes() if node.namespace == namespace]
        return max(
            (max(n for n in range(min(len(path), len(prompt)) + 1) if path[:n] == prompt[:n]) for path in paths),
            default=0,
        )

    @invariant()
    def the_shape_is_a_radix_tree(self) -> None:
        parents = np.zeros_like(self.tree.parents())
        for root in self.tree._radix.roots.values():
            assert root.children or self.tree._watches.is_watched(root)
            for node in subtree(root):
                for first, child in node.children.items():
                    assert child.parent is node
                    assert (child.start, child.end) == (node.end, node.end + len(child.tokens))
                    assert int(child.tokens[0]) == first
                    parents[child.number] = node.number
        assert self.tree.parents().tolist() == parents.tolist()
        nodes = self.nodes()
        assert len({node.number for node in nodes}) == len(nodes)
        for node in nodes:
            if node.is_useless and node.locks:
                self.spared.add(node)
            assert not node.is_useless or node in self.spared, "what is of no use goes unless a lock kept it"
            if node.is_superseded:
                assert node.has_snapshot
                beneath = node
                while True:
                    # Answers that were left behind are ways on for nobody.
                    assert len(ways_on(beneath)) == 1
                    (beneath,) = ways_on(beneath)
                    if beneath.has_snapshot:
                        break

    @invariant()
    def every_number_has_one_owner(self) -> None:
        for tier, store in enumerate(self.stores):
            held = [node.held[tier] for node in self.nodes()]
            snapshots = [each.snapshot for each in held if each.snapshot is not None]
            moving = [each for each in self.transfers if each.target == tier]
            loose = [each.snapshot for each in moving if each.snapshot is not None]
            pages = [page for each in held for page in each.pages or ()]
            pages += [each.tail_page for each in snapshots if each.tail_page is not None]
            assert (self.tree.num_pages, self.tree.host.num_pages)[tier] == len(pages)
            assert (self.tree.num_snapshots, self.tree.host.num_snapshots)[tier] == len(snapshots)
            pages += [page for each in moving for page in each.pages]
            pages += [each.tail_page for each in loose if each.tail_page is not None]
            pages += [page for run in self.runs for page in run.own] if tier == DEVICE else []
            assert Counter(pages) == Counter(store.page_content.keys())
            slots = [each.slot for each in (*snapshots, *loose)]
            assert Counter(slots) == Counter(store.slot_content.keys())

    @invariant()
    def counts_equal_a_recount(self) -> None:
        nodes = self.nodes()
        for tier, kept in ((DEVICE, self.tree._device), (HOST, self.tree.host)):
            assert kept.num_evictable_pages == self.naive_num_evictable_pages(tier)
            assert len(kept.leaves) == sum(self.is_free_leaf(node, tier) for node in nodes)
            free = [node for node in nodes if node.held[tier].snapshot and not self.is_pinned(node)]
            assert kept.num_evictable_snapshots == len(free) == len(kept.snapshots)
            for node in nodes:
                inside = [child for child in node.children.values() if child.held[tier].pages is not None]
                assert node.held[tier].num_children == len(inside)
                if node.held[tier].pages is None:
                    assert not inside
                    assert node.held[tier].snapshot is None
        for node in nodes:
            assert bool(node.locks) == self.is_locked(node)

    @invariant()
    def every_page_and_slot_has_the_content_its_place_says(self) -> None:
        for node in self.nodes():
            prefix = self.prefix(node)
            for tier, store in enumerate(self.stores):
                held = node.held[tier]
                if held.pages is None:
                    continue
                pages = [page for each in path_to(node) for page in each.held[tier].pages or ()]
                if tier == DEVICE:
                    assert pages == self.tree.path_pages(node)
                assert len(pages) == node.end // self.size
                for index, page in enumerate(pages):
                    assert store.page_content[page] == prefix[index * self.size : (index + 1) * self.size]
                if held.snapshot is not None:
                    assert store.slot_content[held.snapshot.slot] == prefix
                    rest = node.end % self.size
                    assert (held.snapshot.tail_page is not None) == (rest > 0)
                    if held.snapshot.tail_page is not None:
                        assert store.page_content[held.snapshot.tail_page][:rest] == prefix[-rest:]

    @invariant()
    def runs_keep_what_they_stand_on(self) -> None:
        for run in self.runs:
            for index, page in enumerate(run.table):
                wanted = run.prompt[index * self.size : min(run.position, (index + 1) * self.size)]
                assert self.stores[DEVICE].page_content[page] == wanted

    @rule(namespace=NAMESPACES, prompt=PROMPTS, slack=st.integers(0, 9))
    def match(self, namespace: str, prompt: Prompt, slack: int) -> None:
        limit = len(prompt) - slack
        match = self.tree.match(namespace, array(prompt), limit)
        assert match.num_matched == self.naive_num_matched(namespace, prompt)
        for node, tiers in ((match.resume, (DEVICE, HOST)), (match.on_device, (DEVICE,))):
            assert (node.end if node else 0) == self.naive_match(namespace, prompt, limit, tiers)
            assert node is None or self.prefix(node) == prompt[: node.end]

    @invariant()
    def watches_equal_a_fresh_match(self) -> None:
        for watch in self.watches:
            prompt = tuple(map(int, watch.tokens))
            assert watch.num_matched == self.naive_num_matched(watch.namespace, prompt)
            assert watch.usable_tokens == self.naive_match(watch.namespace, prompt, watch.limit, (DEVICE, HOST))
            last = [
                node
                for node in self.nodes()
                if node.namespace == watch.namespace
                and node.start < watch.num_matched <= node.end
                and self.prefix(node)[: watch.num_matched] == prompt[: watch.num_matched]
            ]
            assert [watch.node] == [node.number for node in last] or (watch.node == 0 and not last)
            assert self.heard[watch] == (watch.usable_tokens, watch.node)


PrefixTreeMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestPrefixTree = PrefixTreeMachine.TestCase
