"""`python -m trnrt.probe` against servers that answer well, badly and not at all."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import UnixStreamServer

import pytest

from trnrt.probe import connection, failure, main

PATH = "/_sglang_renderer/ready"


class Answer(BaseHTTPRequestHandler):
    """Answers with the status that the server has, and keeps the path."""

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.send_response(self.server.statuses.pop() if len(self.server.statuses) > 1 else self.server.statuses[0])
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "here"


@contextmanager
def serving(server: HTTPServer | UnixStreamServer, *statuses: int) -> Iterator[list[str]]:
    server.statuses, server.paths = list(statuses), []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def http_server() -> HTTPServer:
    return HTTPServer(("127.0.0.1", 0), Answer)


def environ_of(server: HTTPServer) -> dict[str, str]:
    return {"TRNRT_PORT": str(server.server_address[1]), "TRNRT_HOST": "0.0.0.0"}


@pytest.mark.parametrize(("status", "told"), [(204, None), (200, None), (503, f"{PATH} answered 503"), (302, "302")])
def test_only_success_is_well(http_server: HTTPServer, status: int, told: str | None):
    with serving(http_server, status):
        why = failure(PATH, environ_of(http_server))
    assert why is None if told is None else told in str(why)


def test_a_path_below_a_root_is_asked_there(http_server: HTTPServer):
    with serving(http_server, 204) as paths:
        assert failure(PATH, {**environ_of(http_server), "TRNRT_ROOT_PATH": "/llm/"}) is None
    assert paths == [f"/llm{PATH}"]


def test_a_socket_in_the_file_system_is_asked(tmp_path: Path):
    path = str(tmp_path / "s")
    with serving(UnixStreamServer(path, Answer), 204) as paths:
        assert failure(PATH, {"TRNRT_UDS": path}) is None
    assert paths == [PATH]


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", ""])
def test_nobody_there_is_told(host: str):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # not listening: nobody else takes the port meanwhile
        why = failure(PATH, {"TRNRT_HOST": host, "TRNRT_PORT": str(held.getsockname()[1])})
    assert why is not None
    assert "refused" in why


def test_what_speaks_no_http_is_told():
    def answer(server: socket.socket) -> None:
        asked, _ = server.accept()
        with asked:
            asked.recv(1000)
            asked.sendall(b"SSH-2.0\r\n")

    assert _failure_of(answer) is not None


def test_one_who_never_answers_is_given_up():
    def answer(server: socket.socket) -> None:
        asked, _ = server.accept()
        with asked:
            while asked.recv(1000):
                pass

    assert "timed out" in str(_failure_of(answer))


def _failure_of(answer: Callable[[socket.socket], None]) -> str | None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=[server])
        thread.start()
        try:
            return failure(PATH, {"TRNRT_PORT": str(server.getsockname()[1])}, timeout_s=0.2)
        finally:
            thread.join()


def test_a_certificate_makes_it_https_and_every_address_the_local_one():
    import http.client

    made = connection({"TRNRT_SSL_CERTFILE": "x", "TRNRT_HOST": "::"}, 1.0)
    assert isinstance(made, http.client.HTTPSConnection)
    assert (made.host, made.port) == ("::1", 30000)


def test_what_listens_everywhere_is_asked_on_the_local_address():
    asked = [connection({"TRNRT_HOST": host}, 1.0).host for host in ("0.0.0.0", "", "10.0.0.1")]
    assert asked == ["127.0.0.1", "127.0.0.1", "10.0.0.1"]


def test_exit_codes_say_it(http_server: HTTPServer, monkeypatch, capsys):
    for name, value in environ_of(http_server).items():
        monkeypatch.setenv(name, value)
    with serving(http_server, 503):
        assert main([PATH]) == 1
    assert capsys.readouterr().err == f"not well: {PATH} answered 503\n"
    again = HTTPServer(("127.0.0.1", 0), Answer)
    monkeypatch.setenv("TRNRT_PORT", str(again.server_address[1]))
    with serving(again, 204, 503, 503) as paths:
        assert main([PATH, "--wait", "30"]) == 0
    assert len(paths) == 3


def test_a_port_that_is_no_number_is_told(monkeypatch, capsys):
    monkeypatch.setenv("TRNRT_PORT", "http")
    assert main([PATH]) == 1
    assert "http" in capsys.readouterr().err
