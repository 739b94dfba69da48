"""Passes calls on to the engine that nothing here answers, both bodies as they come, in pieces, at the same time.

Each call has a connection of its own to the engine, which is closed with it: a client that leaves is told to the engine
at once, no call's bytes can follow another client's, and nothing is ever sent twice. Nothing here has a time limit but
connecting: how long an answer may take is between the client and the engine.

An answer that breaks off is broken off: the connection to the client closes without the end of the body.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import trio
from attrs import define, field

from stages.engine.http_client import Exchange, HttpClient, Response
from stages.errors import RemoteFailure, RequestError
from stages.ingress.forwarding import ForwardingRules, Pairs, plain_path, response_headers, target_of
from stages.ingress.wire import AsgiWire

BAD_GATEWAY = 502
FRAMING = (b"content-length", b"transfer-encoding")
# How often it is asked whether the client is still there while the engine takes no more of its body.
STALLED_POLL_S = 0.5
STOPPING = "The server is shutting down."

log = logging.getLogger("trnrt.ingress")

Receive = Callable[[], Awaitable[Any]]


@define(eq=False)
class Proxy:
    """What answers calls to paths that the application does not own."""

    client: HttpClient
    rules: ForwardingRules
    num_running: int = 0
    _idle: trio.Event = field(factory=trio.Event)

    def checked_path(self, scope: Mapping[str, Any]) -> str:
        """Return the plain path of a call that may be passed on; raises RequestError for one that may not."""
        path = plain_path(target_of(scope["raw_path"], scope["query_string"]))
        self.rules.check(scope["method"], path)
        return path

    async def idle(self) -> None:
        """Wait until no call is being passed on."""
        while self.num_running:
            await self._idle.wait()

    async def pass_on(
        self,
        scope: Mapping[str, Any],
        receive: Receive,
        wire: AsgiWire,
        *,
        adds_key: bool,
        ours: Pairs = (),
        stop: trio.Event,
    ) -> None:
        """Answer one call with the engine's answer to it, until the client leaves or `stop` is set."""
        self.num_running += 1
        call = _Call(wire, ours)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop, stop, call, nursery.cancel_scope)
                await self._exchange(scope, receive, call, adds_key, nursery)
                nursery.cancel_scope.cancel()
        finally:
            self.num_running -= 1
            if not self.num_running:
                self._idle.set()
                self._idle = trio.Event()

    async def _exchange(
        self, scope: Mapping[str, Any], receive: Receive, call: "_Call", adds_key: bool, nursery: trio.Nursery
    ) -> None:
        exchange: Exchange | None = None
        uploading = trio.Event()
        body = Body(receive, nursery.cancel_scope)
        try:
            headers = self.rules.request_headers(scope["headers"], adds_key=adds_key)
            target = target_of(scope["raw_path"], scope["query_string"])
            nursery.start_soon(body.run, uploading)
            has_body = any(name.lower() in FRAMING for name, _ in scope["headers"])
            if has_body:
                nursery.start_soon(body.watch, call.wire)
            exchange = await self.client.begin(scope["method"], target, headers, has_body=has_body)
            body.exchange = exchange
            uploading.set()
            async with await exchange.response() as response:
                await call.answer(response)
        except RequestError as error:
            await call.refuse(error.status, error.message)
        except RemoteFailure as failure:
            log.warning("%s %s was not passed on: %s", scope["method"], scope["path"], failure.message)
            status = failure.status if failure.status < 500 else BAD_GATEWAY
            await call.refuse(status, f"engine unavailable: {failure.message}")
        finally:
            if exchange is not None:
                await exchange.close()


class Client(Protocol):
    """Who knows whether the client is still there."""

    @property
    def has_left(self) -> bool:
        """Whether the client has closed its side."""
        ...


@define(eq=False)
class Body:
    """The client's side: its body goes to the engine as long as that reads, its leaving ends the call."""

    receive: Receive
    call: trio.CancelScope
    exchange: Exchange | None = None
    num_read: int = 0

    async def run(self, connected: trio.Event) -> None:
        """Send on what comes once there is a connection, until the client leaves."""
        is_read = True
        while True:
            # Invariant: what the engine has no room for is not asked of the client, so nothing piles up here.
            message = await self.receive()
            self.num_read += 1
            if message["type"] == "http.disconnect":
                self.call.cancel()
                return
            await connected.wait()
            if is_read:
                is_read = await self._sent(message)

    async def watch(self, wire: Client) -> None:
        """End the call when the client leaves behind a body that nobody reads, where its end cannot be read either."""
        num_read = -1
        while True:
            if num_read == self.num_read and wire.has_left:
                self.call.cancel()
            num_read = self.num_read
            await trio.sleep(STALLED_POLL_S)

    async def _sent(self, message: Mapping[str, Any]) -> bool:
        """Send a piece on, giving whether the engine still reads; whether it answers is the other task's to see."""
        assert self.exchange is not None
        with suppress(RemoteFailure):
            if message.get("body"):
                await self.exchange.write(message["body"])
            if not message.get("more_body", False):
                await self.exchange.end()
            return True
        return False


@define(eq=False)
class _Call:
    """The answer to one call."""

    wire: AsgiWire
    ours: Pairs

    async def answer(self, response: Response) -> None:
        """Send the engine's response on; raises RemoteFailure when it breaks off."""
        await self.wire.start_pairs(response.status, response_headers(response.headers, self.ours))
        while piece := await response.read():
            await self.wire.write(piece)
        await self.wire.end()

    async def refuse(self, status: int, text: str) -> None:
        """Answer with a line of text, or leave an answer that has begun without an end."""
        if self.wire.started:
            return
        body = f"{text}\n".encode()
        head = ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body)))
        await self.wire.start_pairs(status, (*head, *self.ours), body)
        await self.wire.end()


async def _stop(stop: trio.Event, call: _Call, scope: trio.CancelScope) -> None:
    """End a call when the server stops."""
    await stop.wait()
    await call.refuse(503, STOPPING)
    scope.cancel()
