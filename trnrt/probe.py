"""`python -m trnrt.probe PATH [--wait SECONDS]`: does the server on this machine answer PATH with 2xx? Exit 0 or 1.

What a container's health check and a service's start run, where there is no curl. Where the server listens is read from
the environment that it reads itself: TRNRT_PORT, TRNRT_HOST, TRNRT_UDS, TRNRT_SSL_CERTFILE, TRNRT_ROOT_PATH.
"""

import argparse
import http.client
import os
import socket
import ssl
import sys
import time
from collections.abc import Mapping, Sequence

# Shorter than the time-out of a container's health check, so that the reason is told.
TIMEOUT_S = 4.0
POLL_S = 0.2


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the path."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connection(environ: Mapping[str, str], timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection, not yet made, to where the environment says that the server listens."""
    if path := environ.get("TRNRT_UDS"):
        return UnixConnection(path, timeout_s)
    # What listens on every address listens on the local one.
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(given := environ.get("TRNRT_HOST", ""), given)
    port = int(environ.get("TRNRT_PORT") or 30000)
    if environ.get("TRNRT_SSL_CERTFILE"):
        context = ssl.create_default_context()
        # The certificate is for the name that clients know, and nobody else can listen on this address.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def failure(path: str, environ: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Return why PATH was not answered with 2xx, None where it was."""
    try:
        asked = connection(environ, timeout_s)
        try:
            asked.request("GET", environ.get("TRNRT_ROOT_PATH", "").rstrip("/") + path)
            status = asked.getresponse().status
        finally:
            asked.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return None if 200 <= status < 300 else f"{path} answered {status}"


def main(argv: Sequence[str] | None = None) -> int:
    """Ask once, or until --wait is over; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trnrt.probe", description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="ask again for so long [0]")
    given = parser.parse_args(argv)
    until_s = time.monotonic() + given.wait
    while (why := failure(given.path, os.environ)) is not None:
        if time.monotonic() >= until_s:
            print(f"not well: {why}", file=sys.stderr)
            return 1
        time.sleep(POLL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
