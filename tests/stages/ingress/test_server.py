import socket

import pytest

from stages.errors import StartupError
from stages.ingress.server import bind, http_config, listen
from stages.settings import IngressSettings
from tests.fakes import silent
from tests.stages.ingress.http import alive, running


async def test_a_port_in_use_is_a_startup_error_that_names_the_flag() -> None:
    async with running(silent) as server:
        with pytest.raises(StartupError, match=rf"--port {server.port}: cannot listen there: Address already in use"):
            bind(IngressSettings(port=server.port))
        assert await alive(server.port)


def test_an_address_taken_while_we_loaded_is_a_startup_error_too() -> None:
    with bind(IngressSettings(port=0)) as first:
        settings = IngressSettings(port=first.getsockname()[1])
        with bind(settings) as second:
            listen(settings, first)
            with pytest.raises(StartupError, match="cannot listen there"):
                listen(settings, second)


def test_a_bound_address_takes_no_connections_before_it_listens() -> None:
    with bind(IngressSettings(port=0)) as sock:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(sock.getsockname(), timeout=5)


@pytest.mark.parametrize(
    ("host", "flag"), [("no-such-host.invalid", "--host"), ("192.0.2.1", "--host"), (f"{'a' * 70}.b", "--host")]
)
def test_a_host_that_is_not_ours_is_a_startup_error_that_names_the_flag(host: str, flag: str) -> None:
    with pytest.raises(StartupError, match=flag):
        bind(IngressSettings(host=host, port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_port_0_listens_on_a_free_one(host: str) -> None:
    settings = IngressSettings(host=host, port=0)
    with bind(settings) as sock:
        listen(settings, sock)
        port = sock.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            assert port > 0


def test_hypercorn_is_told_our_limits_and_no_read_timeout() -> None:
    config = http_config(IngressSettings(drain_timeout_s=5.0, keep_alive_timeout_s=9.0, write_timeout_s=3.0))
    assert config.backlog == 2048
    assert config.accesslog is None
    assert config.read_timeout is None
    assert config.keep_alive_timeout == 9.0
    assert config.write_timeout_s == 3.0
    assert config.graceful_timeout == 6.0
    assert config.keep_alive_max_requests > 10**9
