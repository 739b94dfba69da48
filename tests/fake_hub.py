"""A model hub on 127.0.0.1: the three routes that fetching a model's files takes."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from attrs import define, field

COMMIT = "a" * 40
BRANCH_COMMIT = "b" * 40


@define(eq=False)
class FakeHub:
    """One model `org/name`, its files by path; with a token it is refused without it."""

    files: Mapping[str, bytes]
    name: str = "org/name"
    token: str | None = None
    is_gated: bool = False
    url: str = ""
    asked: list[str] = field(factory=list)


@contextmanager
def fake_hub(hub: FakeHub) -> Iterator[FakeHub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(path)
            status, headers, body = respond(hub, path, self.headers.get("authorization"))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def respond(hub: FakeHub, path: str, authorization: str | None) -> tuple[int, dict[str, str], bytes]:
    if not path.startswith((f"/api/models/{hub.name}", f"/{hub.name}/resolve/")):
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
    if hub.token is not None and authorization != f"Bearer {hub.token}":
        status, code = (403, "GatedRepo") if hub.is_gated else (401, "RepoNotFound")
        return status, {"X-Error-Code": code}, b"{}"
    commits = {"main": COMMIT, COMMIT: COMMIT, "other": BRANCH_COMMIT, BRANCH_COMMIT: BRANCH_COMMIT}
    api = f"/api/models/{hub.name}"
    if path == api:
        return found({"id": hub.name, "sha": COMMIT, "siblings": []})
    if path.startswith(f"{api}/revision/"):
        commit = commits.get(path.removeprefix(f"{api}/revision/"))
        if commit is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        return found({"id": hub.name, "sha": commit, "siblings": []})
    if path.startswith(f"{api}/tree/"):
        sizes = {name: {"size": len(data), "oid": etag(data)} for name, data in hub.files.items()}
        return found([{"type": "file", "path": name, **size} for name, size in sizes.items()])
    revision, name = path.removeprefix(f"/{hub.name}/resolve/").split("/", 1)
    if name not in hub.files:
        return 404, {"X-Error-Code": "EntryNotFound"}, b""
    headers = {"etag": f'"{etag(hub.files[name])}"', "x-repo-commit": commits[revision], "accept-ranges": "bytes"}
    return 200, headers, hub.files[name]


def found(value: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"content-type": "application/json"}, json.dumps(value).encode()


def etag(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
