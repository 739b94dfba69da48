"""All that is logged in a process goes to one log, with the id of the call it was made for."""

import io
import json
import logging
import threading
import warnings

import pytest
import trio
import trio.lowlevel

from stages.calls import CallContext, working_for
from stages.logs.handler import logging_to, num_lost_lines


class Log(io.StringIO):
    @property
    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.getvalue().splitlines()]

    @property
    def messages(self) -> list[str]:
        return [line["message"] for line in self.lines]


def test_libraries_and_warnings_and_failed_threads_are_lines_like_any_other():
    log = Log()
    with logging_to(log, "info", "json"):
        logging.getLogger("some.library").warning("old %s", "pipe")
        logging.getLogger("some.library").debug("chatter")
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn("this will change", UserWarning, stacklevel=1)
        thread = threading.Thread(target=lambda: 1 / 0, name="worker")
        thread.start()
        thread.join()
    first, second, third = log.lines
    assert (first["logger"], first["level"], first["message"]) == ("some.library", "warning", "old pipe")
    assert second["logger"] == "py.warnings"
    assert "this will change" in second["message"]
    assert third["message"] == "thread worker failed"
    assert third["traceback"].endswith("ZeroDivisionError: division by zero\n")


def test_a_line_is_what_its_arguments_were_when_it_was_said():
    log = Log()
    told = ["before"]
    with logging_to(log, "info", "json"):
        logging.getLogger("trnrt").info("%s", told)
        told[0] = "after"
    assert log.messages == ["['before']"]


def test_the_block_leaves_logging_as_it_was():
    root = logging.getLogger()
    before = root.level, root.handlers[:], threading.excepthook
    with pytest.raises(KeyError), logging_to(Log(), "debug", "text"):
        raise KeyError
    assert (root.level, root.handlers[:], threading.excepthook) == before


async def test_a_line_has_the_id_of_the_call_its_task_or_the_tasks_it_started_work_for():
    log = Log()
    say = logging.getLogger("trnrt").info

    async def child() -> None:
        say("child")

    async def serve(request_id: str) -> None:
        with working_for(CallContext(request_id)):
            await trio.lowlevel.checkpoint()
            say("parent")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child)
            await trio.to_thread.run_sync(say, "thread")
        say("nobody")

    with logging_to(log, "info", "json"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, "a")
            nursery.start_soon(serve, "b")
    told = [(line["message"], line.get("request_id")) for line in log.lines]
    assert sorted(told, key=str) == sorted(
        [
            *((message, name) for message in ("parent", "child", "thread") for name in ("a", "b")),
            ("nobody", None),
            ("nobody", None),
        ],
        key=str,
    )


def test_who_knows_better_may_name_the_call():
    log = Log()
    with logging_to(log, "info", "json"), working_for(CallContext("a")):
        logging.getLogger("trnrt").info("x", extra={"request_id": "b"})
    assert log.lines[0]["request_id"] == "b"


def test_what_a_log_that_cannot_be_written_lost_is_known() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    before = num_lost_lines()
    with logging_to(Gone(), "info", "json") as writer:
        logging.getLogger("trnrt").info("one")
        logging.getLogger("trnrt").info("two")
        writer.close()
        assert num_lost_lines() == before + 2
    assert num_lost_lines() == before
