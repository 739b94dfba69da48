"""The renderer as processes: several that serve one address, and an engine that it starts, watches and stops."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = [sys.executable, str(Path(__file__).with_name("engine_process.py"))]
DEMO = "trnrt/models/demo_files"

pytestmark = pytest.mark.slow


class Renderer:
    """A renderer that was started; its log so far."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trnrt", "render", DEMO, *flags],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines: list[str] = []
        self.reader = Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def found(self, pattern: str) -> str:
        """Return the first group of a pattern once the log has it."""
        until(lambda: re.search(pattern, self.log) is not None or self.process.poll() is not None)
        match = re.search(pattern, self.log)
        assert match is not None, self.log
        return match.group(1)

    @property
    def url(self) -> str:
        return self.found(r"listening on (\S+)")

    def tell(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        code = self.process.wait(40)
        self.reader.join(10)
        return code


@contextmanager
def started(*flags: str) -> Iterator[Renderer]:
    renderer = Renderer(*flags)
    try:
        yield renderer
    finally:
        if renderer.process.poll() is None:
            renderer.tell()
            try:
                renderer.process.wait(30)
            except subprocess.TimeoutExpired:
                renderer.process.kill()
                renderer.process.wait()
        renderer.reader.join(10)
        assert renderer.process.stderr is not None
        renderer.process.stderr.close()


def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if is_alive(int(one))]


def tokenize(url: str, transport: httpx.BaseTransport | None = None) -> int:
    with httpx.Client(transport=transport) as client:
        return client.post(f"{url}/tokenize", json={"prompt": "Hello"}, timeout=30).status_code


# ---------------------------------------------------------------------------------------------------------------------
# --workers
# ---------------------------------------------------------------------------------------------------------------------


def test_workers_share_a_free_port_and_one_that_dies_is_replaced_with_nothing_lost() -> None:
    with started("--port", "0", "--workers", "2") as renderer:
        url = renderer.url
        assert "(render-only, 2 workers)" in renderer.log
        workers = children(renderer.process.pid)
        assert len(workers) == 2
        # Both answer: with one that cannot, the other does.
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
            assert tokenize(url) == 200
            os.kill(pid, signal.SIGCONT)
        os.kill(workers[0], signal.SIGKILL)
        assert [tokenize(url) for _ in range(10)] == [200] * 10
        until(lambda: len(children(renderer.process.pid)) == 2)
        assert "was ended by SIGKILL" in renderer.log
        renderer.tell()
        assert renderer.ended() == 0
        assert not any(is_alive(pid) for pid in workers)


def test_workers_share_a_unix_socket_and_leave_none_behind(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with started("--uds", path, "--workers", "2") as renderer:
        assert renderer.url == f"unix:{path}"
        transport = httpx.HTTPTransport(uds=path)
        assert tokenize("http://x", transport) == 200
        renderer.tell(signal.SIGINT)
        assert renderer.ended() == 0
        assert not os.path.exists(path)


def test_workers_end_with_a_parent_that_was_killed() -> None:
    with started("--port", "0", "--workers", "2") as renderer:
        assert renderer.url
        workers = children(renderer.process.pid)
        renderer.process.kill()
        until(lambda: not any(is_alive(pid) for pid in workers), 30)


def test_workers_that_cannot_start_are_given_up_with_their_own_reason_and_code(tmp_path: Path) -> None:
    with started("--port", "0", "--workers", "2", "--tokenizer-path", str(tmp_path)) as renderer:
        assert renderer.ended() == 2
        assert "giving up" in renderer.log
        assert str(tmp_path) in renderer.log
        assert "Traceback" not in renderer.log


# ---------------------------------------------------------------------------------------------------------------------
# --launch-engine
# ---------------------------------------------------------------------------------------------------------------------


def launching(*behaviours: str, flags: tuple[str, ...] = ()) -> tuple[str, ...]:
    port = str(free_port())
    hosted = ("--engine-url", f"http://127.0.0.1:{port}", "--proxy-unhandled-routes", "--engine-stop-timeout", "1")
    return ("--port", "0", *hosted, *flags, "--launch-engine", "--", *ENGINE, port, *behaviours)


@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_a_launched_engine_is_well_before_anything_listens_and_ends_with_the_renderer(num_workers: str) -> None:
    with started(*launching("with-child", flags=("--workers", num_workers))) as renderer:
        url = renderer.url
        engine, child = int(renderer.found(r"engine (\d+)")), int(renderer.found(r"child (\d+)"))
        assert httpx.get(f"{url}/health").text == str(engine)
        renderer.tell()
        assert renderer.ended() == 0
        assert not is_alive(engine)
        until(lambda: not is_alive(child), 5)


def test_an_engine_that_does_not_end_is_ended() -> None:
    with started(*launching("stubborn")) as renderer:
        assert renderer.url
        engine = int(renderer.found(r"engine (\d+)"))
        renderer.tell()
        assert renderer.ended() == 0
        assert not is_alive(engine)


@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_an_engine_ends_with_its_children_though_the_renderer_was_killed(num_workers: str) -> None:
    with started(*launching("with-child", "stubborn", flags=("--workers", num_workers))) as renderer:
        assert renderer.url
        engine, child = int(renderer.found(r"engine (\d+)")), int(renderer.found(r"child (\d+)"))
        renderer.process.kill()
        until(lambda: not is_alive(engine) and not is_alive(child), 20)


@pytest.mark.skipif(sys.platform != "linux", reason="death signals are Linux's")
def test_an_engine_whose_guard_was_killed_ends_with_the_renderer() -> None:
    with started(*launching()) as renderer:
        assert renderer.url
        engine = int(renderer.found(r"engine (\d+)"))
        os.kill(int(renderer.found(r"the engine starts: .* \(process (\d+)\)")), signal.SIGKILL)
        assert renderer.ended() == 1
        until(lambda: not is_alive(engine), 5)


def test_an_engine_that_ends_at_its_start_ends_the_renderer_with_its_code_and_its_own_words() -> None:
    with started(*launching("dies")) as renderer:
        assert renderer.ended() == 2
        assert "the engine says why" in renderer.log
        assert "the engine ended with exit code 7 before it was well" in renderer.log


@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_an_engine_that_ends_while_serving_ends_the_renderer_and_calls_under_way(num_workers: str) -> None:
    with started(*launching(flags=("--workers", num_workers))) as renderer:
        url = renderer.url
        with httpx.stream("GET", f"{url}/slow", timeout=30) as response:
            pieces = response.iter_raw()
            assert next(pieces)
            os.kill(int(renderer.found(r"engine (\d+)")), signal.SIGKILL)
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in pieces:
                    pass
        assert renderer.ended() == 1
        assert "the engine that --launch-engine has started was ended by SIGKILL" in renderer.log
        assert "Traceback" not in renderer.log


@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_a_signal_while_the_engine_starts_ends_both(num_workers: str) -> None:
    with started(*launching("never-well", "with-child", flags=("--workers", num_workers))) as renderer:
        child = int(renderer.found(r"child (\d+)"))
        time.sleep(1.5)  # past what is read at the start
        renderer.tell()
        assert renderer.ended() in (0, 128 + signal.SIGTERM)
        until(lambda: not is_alive(child), 5)


def test_an_engine_that_never_gets_well_is_given_up() -> None:
    with started(*launching("never-well", flags=("--engine-start-timeout", "1"))) as renderer:
        assert renderer.ended() == 2
        assert "not well within 1 s" in renderer.log


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--launch-engine", "--"], "no command behind --"),
        (["--", "x"], "goes with --launch-engine"),
        (["--launch-engine", "--", "no-such-command-x"], "no command 'no-such-command-x'"),
        (["--launch-engine", "'x"], "--launch-engine"),
        (["--launch-engine", " "], "--launch-engine"),
    ],
)
def test_a_command_that_is_none_is_told_at_once(flags: list[str], words: str) -> None:
    with started("--port", "0", "--engine-url", "http://127.0.0.1:9", *flags) as renderer:
        assert renderer.ended() == 2
        assert words in renderer.log
    with suppress(AssertionError), started("--port", "0", "--launch-engine", "--", "true") as renderer:
        assert renderer.ended() == 2
        assert "without --engine-url" in renderer.log
