"""A web server at 127.0.0.1 with configurable responses: ranges, early ends, logins.

with web_server() as web: web.put("/clip.mp4", data)
"""

import base64
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Page:
    """A response. ``length``: whether to state the length, or lengths to state. ``cut``: the server
    stops at this byte of the file, in the next ``cuts`` connections. ``silent``: the server keeps
    these connections open until this event."""

    data: bytes = b""
    kind: str = "application/octet-stream"
    status: int = 200
    ranges: bool = True
    length: bool | tuple[str, ...] = True
    cut: int | None = None
    cuts: int = 1 << 30
    silent: threading.Event | None = None
    login: str | None = None  # user:password
    headers: dict[str, str] = field(default_factory=dict)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    scheme = "http"

    def __init__(self, handler: type[BaseHTTPRequestHandler], host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), handler)
        self.requests: list[tuple[str, dict[str, str]]] = []

    def url(self, path: str, login: str | None = None, host: str = "127.0.0.1") -> str:
        port = self.server_address[1]
        return f"{self.scheme}://{login + '@' if login else ''}{host}:{port}{path}"

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that leave."""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class WebServer(Server):
    def __init__(self) -> None:
        super().__init__(_Handler)
        self.pages: dict[str, Page] = {}

    def put(self, path: str, data: bytes = b"", **more: Any) -> str:
        self.pages[path] = Page(data, **more)
        return self.url(path)


class _Handler(Handler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers.items())))
        pages, path = self.server.pages, self.path.partition("?")[0]
        page = pages.get(self.path) or pages.get(path, Page(status=404))
        if page.login is not None and self.headers.get("Authorization") != basic(page.login):
            page = Page(status=401, headers={"WWW-Authenticate": 'Basic realm="files"'})
        requested, data, total = self.headers.get("Range"), page.data, len(page.data)
        start, status = 0, page.status
        if requested and page.ranges and status == 200 and (parts := _RANGE.fullmatch(requested)):
            start = int(parts[1])
            status = 206 if start < total else 416
            data = data[start : int(parts[2]) + 1 if parts[2] else total]
        self.send_response(status)
        self.send_header("Content-Type", page.kind)
        for name, value in page.headers.items():
            self.send_header(name, value)
        if status == 206 and page.status == 200:
            self.send_header("Content-Range", f"bytes {start}-{start + len(data) - 1}/{total}")
        self.close_connection = True
        self.send_header("Connection", "close")
        for stated in (str(len(data)),) if page.length is True else page.length or ():
            self.send_header("Content-Length", stated)
        if not page.length:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        ends = page.cut is not None and page.cuts > 0
        if ends:
            page.cuts -= 1
            data = data[: max(0, (page.cut or 0) - start)]
        self._send(data, bool(page.length), whole=not ends)
        if ends and page.silent is not None:
            self.wfile.flush()
            page.silent.wait(PATIENCE_S)

    def _send(self, data: bytes, length: bool, *, whole: bool) -> None:
        if length:
            self.wfile.write(data)
            return
        for at in range(0, len(data), 4096):
            part = data[at : at + 4096]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        if whole:
            self.wfile.write(b"0\r\n\r\n")


def basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


@contextmanager
def web_server(certificate: Path | None = None) -> Iterator[WebServer]:
    """Run a server, with TLS if there is a ``certificate`` (made by ``make_certificate``)."""
    server = WebServer()
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.scheme = "https"
    with serving(server):
        yield server


@contextmanager
def serving(server: HTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_certificate(folder: Path) -> Path:
    """Make a self-signed certificate for localhost: key and certificate in one file."""
    key, path = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(path), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    path.write_text(key.read_text() + path.read_text())
    return path
