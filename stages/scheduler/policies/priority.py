"""Best priority first; the waiting table puts ranks before every policy, so what is left to order here are equals."""

from attrs import frozen

from stages.scheduler.policies.fcfs import Fcfs


@frozen
class Priority(Fcfs):
    """Equals in order of arrival; choosing it switches priority scheduling on, which can starve the worst rank."""

    can_starve: bool = True


POLICY = Priority()
