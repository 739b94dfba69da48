"""What an operator orders: flush, pause, resume, sessions; the answer comes when the order was carried out. Core."""

from typing import assert_never

from attrs import define, field

from stages.messages import (
    Cancel,
    CloseSession,
    Command,
    CommandResult,
    FlushCache,
    OpenSession,
    Pause,
    Resume,
)
from stages.scheduler.core import SchedulerCore

FLUSH_PENDING = "Another flush_cache is already in progress."
PAUSED = "Generation paused successfully."
RESUMED = "Generation continued successfully."
NO_SESSION = "There is no session {!r}."


@define(eq=False)
class Commands:
    """Carries out orders on the core; those that need it quiet or idle wait until `settle` finds it so."""

    core: SchedulerCore
    _pending: list[Command] = field(factory=list)
    _answers: list[tuple[Command, CommandResult]] = field(factory=list)

    def take(self, command: Command) -> None:
        """Carry out an order now, or as soon as it can be."""
        order = command.order
        match order:
            case FlushCache():
                self._flush(command, order.waits)
            case Pause():
                self._pause(command, order)
            case Resume():
                self.core.is_paused = False
                self._answer(command, CommandResult(True, RESUMED))
            case OpenSession():
                self._open(command, order)
            case CloseSession():
                self._close(command, order)
            case _:
                assert_never(order)

    def settle(self) -> None:
        """Carry out what waited for the core to be as it is now; an order whose reply nobody awaits is dropped."""
        for command in list(self._pending):
            if not _is_awaited(command):
                self._pending.remove(command)
                command.reply.close()
            elif isinstance(command.order, FlushCache) and self._can_flush:
                self._pending.remove(command)
                self._flush_now(command)
            elif isinstance(command.order, Pause) and not self.core.flights:
                self._pending.remove(command)
                self._quiet(command, command.order)

    def take_answers(self) -> list[tuple[Command, CommandResult]]:
        """Return and forget what there is to answer."""
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """Drop every order that waits: its sender hears that nobody answers any more."""
        for command in self._pending:
            command.reply.close()
        self._pending.clear()

    def _answer(self, command: Command, result: CommandResult) -> None:
        self._answers.append((command, result))

    # --- flush --------------------------------------------------------------------------------------------------------

    @property
    def _can_flush(self) -> bool:
        # A retracting pause leaves choices that wait, and nothing that reads the cache.
        core = self.core
        is_quiet = (
            not core.flights and not core.roster.num_running and not (core.host is not None and core.host.is_busy)
        )
        return is_quiet and (core.is_paused or core.is_idle)

    def _flush(self, command: Command, waits: bool) -> None:
        if any(isinstance(other.order, FlushCache) and _is_awaited(other) for other in self._pending):
            self._answer(command, CommandResult(False, FLUSH_PENDING))
        elif self._can_flush:
            self._flush_now(command)
        elif waits:
            self._pending.append(command)
        else:
            self._answer(command, CommandResult(False))

    def _flush_now(self, command: Command) -> None:
        self.core.flush()
        self._answer(command, CommandResult(True))

    # --- pause --------------------------------------------------------------------------------------------------------

    def _pause(self, command: Command, order: Pause) -> None:
        self.core.is_paused = True
        if order.mode == "abort":
            self.core.cancel(Cancel("", deliver=True, scope="all"))
        if order.mode == "in_place":
            self._answer(command, CommandResult(True, PAUSED))
        else:
            self._pending.append(command)

    def _quiet(self, command: Command, order: Pause) -> None:
        if order.mode == "retract" and self.core.is_paused:
            for choice in list(self.core.roster.running()):
                self.core.roster.retract(choice)
        self._answer(command, CommandResult(True, PAUSED))

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _open(self, command: Command, order: OpenSession) -> None:
        try:
            session_id = self.core.sessions.open(order.session_id, order.timeout_s)
        except ValueError as error:
            self._answer(command, CommandResult(False, str(error)))
        else:
            self._answer(command, CommandResult(True, session_id))

    def _close(self, command: Command, order: CloseSession) -> None:
        try:
            self.core.sessions.close(order.session_id)
        except KeyError:
            self._answer(command, CommandResult(False, NO_SESSION.format(order.session_id)))
        else:
            self._answer(command, CommandResult(True))


def _is_awaited(command: Command) -> bool:
    return command.reply.statistics().open_receive_channels > 0
