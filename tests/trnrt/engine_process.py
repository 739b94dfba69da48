"""A process that answers /health and a slow stream at /slow, to be started as an engine: PORT [how it behaves...]."""

import http.server
import os
import signal
import subprocess
import sys
import time


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        is_slow = self.path == "/slow"
        self.send_response(200)
        self.send_header("content-length", "1000" if is_slow else str(len(str(os.getpid()))))
        self.end_headers()
        for _ in range(1000 if is_slow else 0):
            self.wfile.write(b"x")
            time.sleep(0.05)
        self.wfile.write(str(os.getpid()).encode())

    def do_POST(self) -> None:
        self.send_error(404)

    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    port, *behaviours = sys.argv[1:]
    if "stubborn" in behaviours:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "dies" in behaviours:
        print("the engine says why", file=sys.stderr, flush=True)
        sys.exit(7)
    if "with-child" in behaviours:
        child = subprocess.Popen(
            [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
        )
        print(f"child {child.pid}", file=sys.stderr, flush=True)
    if "never-well" in behaviours:
        time.sleep(600)
    print(f"engine {os.getpid()}", file=sys.stderr, flush=True)
    http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Answers).serve_forever()


if __name__ == "__main__":
    main()
