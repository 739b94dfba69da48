"""How stages reach stats: a send that neither waits nor fails, and counts what it lost."""

import trio
from attrs import define

from stages.messages import StatsInbox


@define(eq=False)
class StatsSend:
    """The senders' end of the stats channel."""

    channel: "trio.MemorySendChannel[StatsInbox]"
    num_lost: int = 0

    def send(self, item: StatsInbox) -> None:
        """Send `item` if there is room and a reader; otherwise count it as lost."""
        try:
            self.channel.send_nowait(item)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            self.num_lost += 1
