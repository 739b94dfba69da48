"""The detokenizer task: events reach the right mailboxes, and nobody is waited for."""

import gc
import weakref
from pathlib import Path

import pytest
import trio

from stages.channels import open_mailbox
from stages.detokenizer.stage import Detokenizer, open_decoding, run_detokenizer
from stages.errors import CheckpointError, ConfigError
from stages.messages import Cancel, ChoiceKey, Delta, Ended, Event, Finish, Submit, Tokens, TokensRow, Usage
from stages.settings import DetokenizerSettings
from tests.small_tokenizer import ids, write_small_tokenizer
from tests.stages.detokenizer.rows import LENGTH, PARSED, decoding, drained, joined, rows, singly, submit


def detokenizer() -> tuple[Detokenizer, list[Cancel]]:
    cancels: list[Cancel] = []
    return Detokenizer(decoding(), cancels.append, clock=lambda: 0.0), cancels


def row(sent: Submit, text: str, finish: Finish | None = None) -> TokensRow:
    return TokensRow(sent, ids(text), finish=finish, usage=Usage(1, len(ids(text))))


async def test_the_task_delivers_batches_until_their_channel_ends(tmp_path: Path) -> None:
    settings = DetokenizerSettings(str(write_small_tokenizer(tmp_path)), "glm45", "glm47")
    tokens_send, tokens = trio.open_memory_channel[Tokens](10)
    mailbox, events = open_mailbox(20, 1)
    sent = submit(PARSED, mailbox=mailbox, in_reasoning=True)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_detokenizer, settings, tokens, lambda _: None)
            for each in rows(sent, singly(ids("why</think>so<tool_call>f</tool_call>")), LENGTH):
                tokens_send.send_nowait(Tokens((each,)))
            tokens_send.close()
    result = joined(drained(events))
    assert (result.reasoning, result.text, result.calls) == ("why", "so", (("f", "{}"),))
    assert result.finish == LENGTH


async def test_an_idle_task_keeps_nothing_of_the_last_step(tmp_path: Path) -> None:
    settings = DetokenizerSettings(str(write_small_tokenizer(tmp_path)))
    tokens_send, tokens = trio.open_memory_channel[Tokens](10)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_detokenizer, settings, tokens, lambda _: None)
        sent = submit()
        gone = weakref.ref(sent)
        tokens_send.send_nowait(Tokens((row(sent, "a", LENGTH),)))
        del sent
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert gone() is None
        tokens_send.close()


def test_a_start_a_token_and_an_end_of_the_shortest_request_fit_its_mailbox_unread() -> None:
    stage, cancels = detokenizer()
    mailbox, events = open_mailbox(1, 2)
    both = [submit(choice=choice, mailbox=mailbox, tells_start=True, max_new_tokens=1) for choice in (0, 1)]
    stage.deliver(Tokens(tuple(TokensRow(each, (), usage=Usage(7, 0, 3)) for each in both)))
    stage.deliver(Tokens(tuple(row(each, "a", LENGTH) for each in both)))
    got = drained(events)
    assert got[:2] == [Delta(choice, (), usage=Usage(7, 0, 3)) for choice in (0, 1)]
    assert [joined(event for event in got[2:] if event.choice == choice).text for choice in (0, 1)] == ["a", "a"]
    assert cancels == []


def test_choices_of_one_request_share_a_mailbox_and_nothing_else() -> None:
    stage, cancels = detokenizer()
    mailbox, events = open_mailbox(10, 2)
    first, second = (submit(PARSED, choice, mailbox=mailbox, stop=("b",)) for choice in (0, 1))
    stage.deliver(Tokens((row(first, "<tool_call>f"), row(second, "a"))))
    stage.deliver(Tokens((row(first, "</tool_call>", LENGTH), row(second, "b"))))
    got = drained(events)
    zero, one = ([event for event in got if event.choice == choice] for choice in (0, 1))
    assert joined(zero).calls == (("f", "{}"),)
    assert joined(one).text == "a"
    assert joined(one).finish == Finish("stop", matched="b")
    assert cancels == [Cancel("r", 1, num_generated=0)]


def test_rows_after_a_stop_string_are_ignored() -> None:
    stage, cancels = detokenizer()
    mailbox, events = open_mailbox(10, 1)
    sent = submit(mailbox=mailbox, stop=("b",))
    for text in ("ab", "c", "d"):
        stage.deliver(Tokens((row(sent, text),)))
    assert joined(drained(events)).text == "a"
    # The token that completed the stop string is no part of the next turn.
    assert cancels == [Cancel("r", 0, num_generated=1)]


def test_a_stop_string_in_a_choices_last_step_cancels_nothing() -> None:
    stage, cancels = detokenizer()
    mailbox, events = open_mailbox(10, 1)
    stage.deliver(Tokens((row(submit(mailbox=mailbox, stop=("b",)), "ab", LENGTH),)))
    assert joined(drained(events)).finish == Finish("stop", matched="b")
    assert cancels == []


def test_a_scheduler_that_has_gone_is_not_missed() -> None:
    orders_send, orders = trio.open_memory_channel[Cancel](10)
    orders.close()
    stage = Detokenizer(decoding(), orders_send.send_nowait, clock=lambda: 0.0)
    mailbox, events = open_mailbox(10, 1)
    gone_mailbox, gone = open_mailbox(10, 1)
    gone.close()
    stopped, unread = submit(mailbox=mailbox, stop=("b",)), submit(mailbox=gone_mailbox)
    stage.deliver(Tokens((row(stopped, "b"), row(unread, "a"))))
    assert joined(drained(events)).finish == Finish("stop", matched="b")


def test_an_end_that_is_the_schedulers_own_cancels_nothing() -> None:
    stage, cancels = detokenizer()
    mailbox, events = open_mailbox(10, 1)
    stage.deliver(Tokens((row(submit(mailbox=mailbox), "a", LENGTH),)))
    assert isinstance(drained(events)[-1], Ended)
    assert cancels == []


def test_a_reader_that_fell_behind_is_cut_off_with_all_its_choices_and_no_one_else() -> None:
    stage, cancels = detokenizer()
    mailbox, events = open_mailbox(1, 1)
    slow = [submit(choice=choice, mailbox=mailbox) for choice in (0, 1)]
    other_mailbox, other_events = open_mailbox(10, 1)
    other = submit(request_id="other", mailbox=other_mailbox)
    for _ in range(3):
        stage.deliver(Tokens((*(row(each, "a") for each in slow), row(other, "b"))))
    assert len(drained(events)) == 3
    with pytest.raises(trio.EndOfChannel):
        events.receive_nowait()
    assert set(cancels) == {Cancel("r")}
    assert len(cancels) == 2
    assert joined(drained(other_events)).text == "bbb"


def test_a_reader_that_has_gone_is_cut_off() -> None:
    stage, cancels = detokenizer()
    mailbox, events = open_mailbox(1, 1)
    sent = submit(mailbox=mailbox)
    events.close()
    stage.deliver(Tokens((row(sent, "a"),)))
    stage.deliver(Tokens((row(sent, "a"),)))
    assert cancels == [Cancel("r")]


def test_state_goes_with_the_submit_however_the_choice_ended() -> None:
    stage, _ = detokenizer()
    for number in range(5):
        sent = submit(request_id=str(number), stop=("b",))
        stage.deliver(Tokens((row(sent, "a" if number % 2 else "b"),)))
        del sent
    gc.collect()
    assert stage.num_choices == 0


def test_a_request_id_used_again_starts_clean() -> None:
    stage, _ = detokenizer()
    stage.deliver(Tokens((row(submit(stop=("ab",)), "a"),)))
    mailbox, events = open_mailbox(10, 1)
    again = submit(mailbox=mailbox, stop=("ab",))
    assert again.key == ChoiceKey("r", 0)
    stage.deliver(Tokens((row(again, "b", LENGTH),)))
    assert joined(drained(events)).text == "b"


def test_unknown_parsers_and_tokenizers_without_their_tags_stop_the_start(tmp_path: Path) -> None:
    path = str(write_small_tokenizer(tmp_path))
    with pytest.raises(ConfigError, match=r"--reasoning-parser.*glm45"):
        open_decoding(DetokenizerSettings(path, "nothing"))
    with pytest.raises(ConfigError, match=r"--tool-call-parser.*glm47"):
        open_decoding(DetokenizerSettings(path, None, "nothing"))
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace("<arg_key>", "<arg_kex>"))
    with pytest.raises(CheckpointError, match="<arg_key>"):
        open_decoding(DetokenizerSettings(path, "glm45", "glm47"))


def test_parsers_that_are_off_leave_text_alone(tmp_path: Path) -> None:
    settings = DetokenizerSettings(str(write_small_tokenizer(tmp_path)))
    off = Detokenizer(open_decoding(settings), lambda _: None, clock=lambda: 0.0)
    mailbox, events = open_mailbox(10, 1)
    off.deliver(Tokens((row(submit(PARSED, mailbox=mailbox, in_reasoning=True), "a</think>b", LENGTH),)))
    got: list[Event] = drained(events)
    assert joined(got).text == "a</think>b"
    assert joined(got).usage == Usage(1, 3)
