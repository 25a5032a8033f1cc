"""What urllib3 leaves to us: where logins may go, redirects, endless headers, its errors."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from urllib.error import HTTPError

import pytest

from detector.core import http
from detector.core.http import open_url
from tests.sources.web_server import make_certificate, web_server

pytestmark = pytest.mark.net
LOGIN = ("me", "S3cret:Pw/ä")
AS_SENT = "me:S3cret:Pw/ä"


@pytest.mark.parametrize("block", [b"X-Endless: ", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_head_without_an_end_is_given_up(block):
    """A socket's timeout starts again with each byte, and http.client accepts a truncated head."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle():
            client = server.accept()[0]
            with client, suppress(OSError):
                client.sendall(block if b"100" in block else b"HTTP/1.1 200 OK\r\n" + block)
                while True:
                    client.sendall(block if b"100" in block else b"x")
                    time.sleep(0.01)

        threading.Thread(target=trickle, daemon=True).start()
        with pytest.raises(TimeoutError, match="head"):
            open_url(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, timeout_s=0.2)


def test_a_redirect_to_another_scheme_and_back_takes_no_login_along(tmp_path, monkeypatch):
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with web_server() as own, web_server(certificate) as other:
        own.put(
            "/start",
            status=302,
            login=AS_SENT,
            headers={"Location": other.url("/a", host="localhost")},
        )
        other.put("/a", status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        with pytest.raises(HTTPError, match="401"):
            open_url(own.url("/start"), {}, timeout_s=9, login=LOGIN)
        other.put("/a", status=307, headers={"Location": own.url("/end")})
        own.put("/end", b"abc", login=AS_SENT)
        answer = open_url(own.url("/start"), {}, timeout_s=9, login=LOGIN)
        assert (answer.read(), answer.url) == (b"abc", own.url("/end"))
        assert other.requests
        assert not any("Authorization" in headers for _, headers in other.requests)


def test_redirects_have_an_end():
    with web_server() as web:
        url = web.put("/a", status=302, headers={"Location": "/a"})
        with pytest.raises(HTTPError, match="redirects"):
            open_url(url, {}, timeout_s=9)
        assert len(web.requests) == http.MOST_REDIRECTS + 1


def test_proxies_of_the_environment(monkeypatch):
    with web_server() as proxy, web_server() as web:
        monkeypatch.setenv("http_proxy", proxy.url("", "pu:p%40"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert open_url(web.put("/a", b"abc"), {}, timeout_s=9).read() == b"abc"
        with pytest.raises(HTTPError):
            open_url("http://files.invalid/a", {}, timeout_s=9)
        ((path, headers),) = proxy.requests
        assert (path, headers["Proxy-Authorization"]) == (
            "http://files.invalid/a",
            "Basic cHU6cEA=",
        )
