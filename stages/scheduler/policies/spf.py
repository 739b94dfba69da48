"""Short name of shortest-prefill-first."""

from stages.scheduler.policies.shortest_prefill_first import POLICY

__all__ = ["POLICY"]
