"""Two web servers for cases with pages: the camera's own, and another that must receive no secret.

Both serve the same pages, in which their addresses replace ``{own}`` and ``{other}``. A page
``->ADDRESS`` is a redirect. The camera's server sets a cookie if a request has a secret.
"""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.sources.web_server import Handler, Server, serving

LOGIN, KEY, TOKEN, SESSION = "me:S3cretPw9", "S3cretKey9", "S3cretTok9", "S3cretSes9"
BASIC = base64.b64encode(LOGIN.encode()).decode()
SECRETS = (BASIC, "S3cretPw9", KEY, TOKEN, SESSION)


class _Web(Server):
    def __init__(self, wants_login: bool, session: str | None) -> None:
        super().__init__(_Handler)
        self.wants_login, self.session = wants_login, session
        self.pages: dict[str, bytes] = {}
        self.received: list[str] = []  # whole requests

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(Handler):
    server: _Web

    def do_GET(self) -> None:  # noqa: N802
        web = self.server
        web.received.append(f"{self.requestline}\n{self.headers}")
        page = web.pages.get(self.path.partition("?")[0])
        if web.wants_login and self.headers.get("Authorization") != f"Basic {BASIC}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            page = b""
        elif page is None:
            self.send_response(404)
            page = b""
        elif page.startswith(b"->"):
            self.send_response(302)
            self.send_header("Location", page[2:].decode("latin-1"))
            page = b""
        else:
            self.send_response(200)
        headers = f"{self.headers}"
        if web.session is not None and any(secret in headers for secret in SECRETS):
            self.send_header("Set-Cookie", f"session={web.session}; path=/")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


@dataclass
class Received:
    """``places``: the addresses that replace ``{own}`` and ``{other}``. ``other``: the text of each
    request to the other server. The list is complete when both servers have ended."""

    places: Mapping[str, str]
    other: list[str] = field(default_factory=list)

    def fill(self, text: str) -> str:
        for name, place in self.places.items():
            text = text.replace(f"{{{name}}}", place)
        return text

    def with_secrets(self) -> list[str]:
        return [text for text in self.other if any(secret in text for secret in SECRETS)]


@contextmanager
def two_servers(pages: Mapping[str, bytes], wants_login: bool) -> Iterator[Received]:
    own, other = _Web(wants_login, SESSION), _Web(False, None)
    received = Received({"own": own.place, "other": other.place}, other.received)
    for web in (own, other):
        web.pages = {
            path: received.fill(page.decode("latin-1")).encode("latin-1")
            for path, page in pages.items()
        }
    with serving(own), serving(other):
        yield received
