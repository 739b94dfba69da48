"""The dashboard in a real browser, over a stream the test writes."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from attrs import define, field

from tests.browser.snapshots import NOW_S, busy, failing, full, idle, speculating
from tests.browser.stand import Stand, standing

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
DESKTOP, PHONE = {"width": 1360, "height": 860}, {"width": 390, "height": 844}


@define(eq=False)
class Tab:
    """A page, and all it did that a person would not see."""

    page: Any
    requests: list[str] = field(factory=list)
    said: list[str] = field(factory=list)

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())

    def wait(self, selector: str, text: str) -> None:
        """Wait until an element's text has `text` in it."""
        self.page.locator(selector, has_text=text).first.wait_for(timeout=20_000)

    def eventually(self, condition: Callable[[], bool]) -> None:
        for _ in range(400):
            if condition():
                return
            self.page.wait_for_timeout(25)
        raise AssertionError("it never came to be")

    def stop_clock(self) -> None:
        """Let the page's time stand still but for what the test adds."""
        self.page.clock.pause_at(self.page.evaluate("Date.now()") / 1e3 + 0.1)

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Let a tenth of a second after the other go by in the page until condition holds."""
        for _ in range(30):
            if condition():
                return
            self.page.clock.run_for(100)
        raise AssertionError("it never came to be")

    def hide(self, is_hidden: bool) -> None:
        """Tell the page that its tab went to the back, or came to the front."""
        self.page.evaluate(
            "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
            " document.dispatchEvent(new Event('visibilitychange')) }",
            is_hidden,
        )


@pytest.fixture
def open_tab(browser: Any) -> Iterator[Callable[..., Tab]]:
    """Open a tab in a browser of its own, at a stand's page."""
    contexts = []

    def open_it(stand: Stand, has_clock: bool = False, **context: Any) -> Tab:
        contexts.append(browser.new_context(**{"viewport": DESKTOP, **context}))
        page = contexts[-1].new_page()
        tab = Tab(page)
        if has_clock:
            page.clock.install()
        page.on("request", lambda request: tab.requests.append(request.url))
        page.on("console", lambda message: tab.said.append(message.text))
        page.on("pageerror", lambda error: tab.said.append(str(error)))
        page.on("dialog", lambda dialog: (tab.said.append(dialog.message), dialog.dismiss()))
        page.goto(stand.url)
        return tab

    yield open_it
    for context in contexts:
        context.close()


# ---------------------------------------------------------------------------------------------------------------------
# The stream
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["", "/engines/a"])
def test_the_page_asks_for_itself_and_for_the_stream_and_for_nothing_else(
    open_tab: Callable[..., Tab], root: str
) -> None:
    with standing(root=root) as stand:
        stand.send(busy())
        tab = open_tab(stand)
        tab.wait("#link", "live")
        origin = f"http://127.0.0.1:{stand.port}{root}"
        assert [url for url in tab.requests if not url.startswith("data:")] == [
            f"{origin}/dashboard",
            f"{origin}/v1/stats/stream",
        ]
        assert tab.said == []


def test_figures_follow_the_stream(open_tab: Callable[..., Tab]) -> None:
    with standing() as stand:
        stand.send(idle())
        tab = open_tab(stand)
        tab.wait("#headline", "Healthy")
        assert "idle" in tab.text("#because").lower()
        stand.send(busy(running=7))
        tab.wait("#n-running", "7")
        assert stand.num_connects == 1


def test_a_stream_that_ends_is_opened_again_and_until_then_the_page_says_that_its_figures_are_old(
    open_tab: Callable[..., Tab],
) -> None:
    with standing() as stand:
        stand.send(busy(running=7))
        tab = open_tab(stand)
        tab.wait("#link", "live")
        stand.status = 502
        stand.cut()
        tab.wait("#headline", "No figures")
        assert tab.text("#n-running") == "7"
        tab.wait("#link", "the server answers 502")
        stand.status = 200
        tab.wait("#link", "live")
        tab.wait("#headline", "Healthy")
        assert stand.num_readers == 1


def test_a_stream_that_falls_silent_is_taken_for_lost(open_tab: Callable[..., Tab]) -> None:
    with standing() as stand:
        stand.send(busy())
        tab = open_tab(stand, has_clock=True)
        tab.wait("#link", "live")
        tab.stop_clock()
        tab.page.clock.run_for(5_000)
        assert (stand.num_connects, tab.text("#link")) == (1, "live")
        tab.run_until(lambda: "silent" in tab.text("#link"))
        tab.page.clock.run_for(1_000)
        tab.eventually(lambda: stand.num_connects == 2)
        tab.wait("#link", "live")


def test_a_ping_is_a_sign_of_life_and_an_event_may_come_in_any_pieces(open_tab: Callable[..., Tab]) -> None:
    with standing() as stand:
        stand.send(idle())
        tab = open_tab(stand, has_clock=True)
        tab.wait("#link", "live")
        tab.stop_clock()
        for _ in range(4):
            stand.write(b": ping\n\n")
            tab.page.wait_for_timeout(300)
            tab.page.clock.run_for(4_000)
        assert stand.num_connects == 1
        event = b"data: " + orjson.dumps(busy(running=9)) + b"\r\n\r\n"
        for cut in (event[:9], event[9:700], event[700:-2], event[-2:]):
            stand.write(cut)
            tab.page.wait_for_timeout(50)
        tab.page.clock.run_for(100)
        tab.wait("#n-running", "9")


def test_a_hidden_tab_asks_for_nothing_and_one_that_is_seen_again_is_live_at_once(open_tab: Callable[..., Tab]) -> None:
    with standing() as stand:
        stand.send(busy())
        tab = open_tab(stand)
        tab.wait("#link", "live")
        tab.hide(True)
        tab.wait("#link", "paused")
        tab.eventually(lambda: stand.num_readers == 0)
        tab.page.wait_for_timeout(1_500)
        assert stand.num_connects == 1
        tab.hide(False)
        tab.wait("#link", "live")
        assert stand.num_connects == 2


def test_an_event_that_is_not_json_is_told_and_the_next_stream_is_read(open_tab: Callable[..., Tab]) -> None:
    with standing() as stand:
        stand.write(b"data: {\n\n")
        tab = open_tab(stand)
        tab.wait("#link", "not JSON")
        stand.send(idle())
        tab.wait("#link", "live")


# ---------------------------------------------------------------------------------------------------------------------
# The key
# ---------------------------------------------------------------------------------------------------------------------


def test_the_key_is_asked_for_once_and_kept_in_the_tab(open_tab: Callable[..., Tab]) -> None:
    with standing(key="right") as stand:
        stand.send(idle())
        tab = open_tab(stand)
        tab.page.locator("#ask").wait_for()
        assert tab.page.evaluate("document.activeElement.id") == "ask-key"
        assert not tab.page.locator(".card").first.is_visible()
        tab.page.keyboard.type("wrong")
        tab.page.keyboard.press("Enter")
        tab.wait("#ask-wrong", "does not take this key")
        tab.page.keyboard.press("Escape")
        assert tab.page.locator("#ask").is_visible()
        tab.page.keyboard.type("right")
        tab.page.keyboard.press("Enter")
        tab.wait("#link", "live")
        assert not tab.page.locator("#ask").is_visible()
        tab.page.reload()
        tab.wait("#link", "live")
        assert tab.page.evaluate("Object.values(sessionStorage)") == ["right"]
        assert tab.page.evaluate("localStorage.length + document.cookie.length") == 0
        assert not any("right" in url for url in tab.requests)
        assert [key for path, key in stand.asked if path.endswith("/stream")] == [
            None, "Bearer wrong", "Bearer right", "Bearer right",
        ]  # fmt: skip
        open_tab(stand).page.locator("#ask").wait_for()


def test_a_key_that_is_taken_no_more_is_asked_for_anew(open_tab: Callable[..., Tab]) -> None:
    with standing(key="old") as stand:
        stand.send(idle())
        tab = open_tab(stand)
        tab.page.locator("#ask-key").fill("old")
        tab.page.keyboard.press("Enter")
        tab.wait("#link", "live")
        stand.key = "new"
        stand.cut()
        tab.page.locator("#ask").wait_for()
        assert tab.page.evaluate("sessionStorage.length") == 0


# ---------------------------------------------------------------------------------------------------------------------
# What it says
# ---------------------------------------------------------------------------------------------------------------------


def test_whatever_a_client_names_itself_is_text(open_tab: Callable[..., Tab]) -> None:
    with standing() as stand:
        stand.send(failing(name=MARKUP))
        tab = open_tab(stand)
        tab.wait("#link", "live")
        for table in ("#running", "#queued", "#errors"):
            tab.wait(f"{table} tbody tr", MARKUP)
        tab.wait("#refused tbody tr", MARKUP)
        assert tab.page.locator("body img, body script script, table script").count() == 0
        tab.page.wait_for_timeout(200)
        assert tab.said == []


def test_speculation_is_there_only_where_it_is_on(open_tab: Callable[..., Tab]) -> None:
    with standing() as stand:
        stand.send(busy())
        tab = open_tab(stand)
        tab.wait("#link", "live")
        assert not tab.page.locator("#speculation-card").is_visible()
        stand.send(speculating())
        tab.page.locator("#speculation-card").wait_for()


def test_a_renderer_has_no_engine_of_its_own_and_shows_neither_its_memory_nor_its_places(
    open_tab: Callable[..., Tab],
) -> None:
    with standing() as stand:
        shown = busy(role="render", worker=1, engine=None)
        stages = {stage["name"]: stage for stage in shown["stages"]}
        behind = {**stages["executor"], "name": "engine", "capacity": None, "depth": 18}
        stand.send({**shown, "stages": [stages["ingress"], stages["prompt"], behind, stages["detokenizer"]]})
        tab = open_tab(stand)
        tab.wait("#headline", "Healthy")
        tab.wait("#facts", "render · worker 1")
        assert not tab.page.locator("#cache-card").is_visible()
        assert tab.text("#n-running") == "18"
        assert "18 calls" in tab.text("[data-stage=engine]").replace("\n", " ")
        assert tab.page.locator(".chart figcaption b").all_inner_texts() == [
            "Output", "First token", "Requests", "Prompts",
        ]  # fmt: skip
        behind |= {"capacity": 20}
        stand.send({**shown, "stages": [stages["ingress"], stages["prompt"], behind, stages["detokenizer"]]})
        tab.wait("[data-neck=tight]", "Engine")
        tab.wait("#because", "18 of 20 places there are taken")
        stand.send(busy(after_s=1))
        tab.wait(".chart", "Device memory in use")
        assert tab.said == []


def test_no_token_for_half_a_minute_while_something_runs_is_a_stall(open_tab: Callable[..., Tab]) -> None:
    with standing() as stand:
        stand.send(busy())
        tab = open_tab(stand)
        tab.wait("#headline", "Healthy")
        stand.send(busy(after_s=12, tokens=0))
        tab.wait("#headline", "Slow")
        stand.send(busy(after_s=31, tokens=0))
        tab.wait("#headline", "Stalled")
        stand.send(busy(after_s=32, tokens=1))
        tab.wait("#headline", "Healthy")
        stand.send(busy(after_s=90, tokens=1, is_paused=True))
        tab.wait("#headline", "Paused")


@pytest.mark.parametrize(
    ("make", "changes", "headline", "neck"),
    [
        (idle, {}, "Healthy", None),
        (busy, {}, "Healthy", "executor"),
        (full, {}, "Requests wait", "executor"),
        (full, {"busy": 0.5}, "Requests wait", "scheduler"),
        # Those that got through the queue tell nothing of those who are still in it.
        (full, {"wait_s": 0.01, "age_s": 60}, "Requests wait", "executor"),
        (full, {"wait_s": 0.01, "age_s": 0.5}, "Healthy", "executor"),
        (full, {"busy": 0.5, "running": 20, "cached": 0, "held": 4000}, "Requests wait", "scheduler"),
        (busy, {"inboxes": {"prompt": 900}}, "Healthy", "prompt"),
        (busy, {"inboxes": {"prompt": 4000}}, "Prompt nearly full", "prompt"),
        (busy, {"inboxes": {"grammar": 12}}, "Healthy", "grammar"),
        (failing, {}, "Requests fail", "executor"),
        (full, {"refused": {"queue_full": 3}}, "Refusing requests", "executor"),
        (idle, {"wrong": 5}, "Requests are wrong", None),
        (idle, {"wrong": 4}, "Healthy", None),
        (busy, {"wrong": 100}, "Healthy", "executor"),
        (busy, {"wrong": 300}, "Requests are wrong", "executor"),
        (idle, {"status": "draining"}, "Draining", None),
        (idle, {"status": "starting"}, "Starting", None),
        (busy, {"is_paused": True}, "Paused", "executor"),
    ],
    ids=str,
)
def test_the_verdict_says_whether_it_is_well_and_which_stage_is_the_neck(
    open_tab: Callable[..., Tab],
    make: Callable[..., dict[str, Any]],
    changes: dict[str, Any],
    headline: str,
    neck: str | None,
) -> None:
    with standing() as stand:
        tab = open_tab(stand)
        for after_s in range(3):
            stand.send(make(after_s=after_s, **changes))
            tab.page.wait_for_timeout(60)
        tab.wait("#headline", headline)
        marked = tab.page.locator(".stage[data-neck]")
        assert [one.get_attribute("data-stage") for one in marked.all()] == ([] if neck is None else [neck])


# ---------------------------------------------------------------------------------------------------------------------
# How it looks
# ---------------------------------------------------------------------------------------------------------------------

# What each says, and a snapshot of it.
STATES = [
    ("Healthy", idle()),
    ("Healthy", busy()),
    ("Requests wait", full()),
    ("Refusing requests", full(queued=256, refused={"queue_full": 37, "queue_timeout": 4})),
    ("Requests fail", failing()),
    ("Requests fail", failing(name="x" * 300, refused={f"cause_{i}": 10**i for i in range(9)})),
]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_moves_when_figures_change_and_nothing_is_wider_than_the_screen(
    open_tab: Callable[..., Tab], viewport: dict[str, int]
) -> None:
    with standing() as stand:
        stand.send(idle())
        tab = open_tab(stand, viewport=viewport)
        places = []
        for after_s, (headline, shown) in enumerate(STATES):
            stand.send({**shown, "unix_s": NOW_S + after_s})
            tab.wait("#headline", headline)
            tab.page.wait_for_timeout(150)
            places.append(
                tab.page.evaluate(
                    "[...document.querySelectorAll('.card')].filter(card => card.checkVisibility())"
                    ".map(card => [card.offsetLeft, card.offsetTop, card.offsetWidth])"
                )
            )
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert places == [places[0]] * len(STATES)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(open_tab: Callable[..., Tab], scheme: str) -> None:
    pairs = [("text", "page"), ("text", "card"), ("dim", "page"), ("dim", "card"), ("bad", "card"), ("card", "link")]
    pairs += [(tone, f"{tone}-back") for tone in ("ok", "warn", "bad", "none")]
    pairs += [("text", f"{tone}-back") for tone in ("ok", "warn", "bad", "none")]
    with standing() as stand:
        tab = open_tab(stand, color_scheme=scheme)
        for over, under in pairs:
            colours = [
                tab.page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')")
                for name in (over, under)
            ]
            assert contrast(*colours) >= 4.5, (over, under, colours)


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast of two #rrggbb colours."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part, 16) / 255 for part in re.findall("..", colour.strip().removeprefix("#"))]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_keyboard_reaches_what_scrolls_and_the_figures_are_read_out(open_tab: Callable[..., Tab]) -> None:
    with standing() as stand:
        stand.send(full())
        tab = open_tab(stand)
        tab.wait("#link", "live")
        reached = []
        for _ in range(8):
            tab.page.keyboard.press("Tab")
            reached.append(tab.page.evaluate("document.activeElement.getAttribute('aria-label')"))
        assert {"Requests that run", "Requests that wait", "Requests that failed"} <= set(reached)
        assert tab.page.locator("#charts svg").first.get_attribute("aria-label") == "Output: generated 900\u202ftok/s"
        assert tab.page.locator("#headline").get_attribute("role") == "status"
