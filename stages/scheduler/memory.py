"""Pages and slots of one device: who holds what, and what fits. Core."""

from collections.abc import Iterable

from attrs import define, field

from graphs.step import Capacity
from stages.scheduler.budget import Budget
from stages.scheduler.choice import Choice
from stages.scheduler.pages import Pool
from stages.scheduler.slots import SlotTable


@define(eq=False)
class Memory:
    """Gives choices their slot and pages and takes them back; the slot table always says the same as the choices."""

    capacity: Capacity
    budget: Budget
    pages: Pool = field(init=False)
    slots: Pool = field(init=False)
    table: SlotTable = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pages = Pool(self.capacity.num_pages)
        self.slots = Pool(self.capacity.num_slots)
        self.table = SlotTable(self.capacity.num_slots, self.capacity.buckets.pages[-1])

    def fits(self, num_tokens: int, num_remaining: int, num_running: int, num_reserved: int) -> bool:
        """Return whether a choice can be let in beside num_running others that keep num_reserved pages to come."""
        if num_running >= self.budget.max_rows or not self.slots.num_free:
            return False
        # Alone it always fits: what is foreseen never exceeds what one row can hold.
        return self.budget.foreseen_pages(num_tokens, num_remaining) + num_reserved <= self.pages.num_free

    def reserved_pages(self, running: Iterable[Choice]) -> int:
        """Return the pages to keep free for what the running choices will still write, tokens in flight counted."""
        return sum(
            max(0, self.budget.foreseen_pages(choice.num_tokens + ahead, choice.num_remaining - ahead) - held)
            for choice, ahead, held in ((choice, choice.num_flights, len(choice.pages)) for choice in running)
        )

    def hold(self, choice: Choice) -> None:
        """Give `choice` a slot and the pages of all its tokens; raises IndexError when they are not free."""
        choice.pages = self.pages.take(self.budget.pages_for(choice.num_tokens))
        (choice.slot,) = self.slots.take(1)
        self.table.fill(choice.slot, choice.submit, choice.pages)

    def lacks_pages(self, choice: Choice) -> bool:
        """Return whether the choice's newest token, in flight or known, has no page yet."""
        return len(choice.pages) < self.budget.pages_for(choice.num_tokens + choice.num_flights)

    def add_page(self, choice: Choice) -> None:
        """Give `choice` one more page; raises IndexError when none is free."""
        (page,) = self.pages.take(1)
        self.table.add_page(choice.slot, len(choice.pages), page)
        choice.pages.append(page)

    def release(self, choice: Choice) -> None:
        """Take back whatever `choice` holds."""
        if choice.slot:
            self.table.clear(choice.slot)
            self.slots.give_back([choice.slot])
        self.pages.give_back(choice.pages)
        choice.slot, choice.pages = 0, []
