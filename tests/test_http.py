"""What urllib3 leaves to us: where logins may go, redirects, endless headers, proxies."""

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
SENT_LOGIN = "me:S3cret:Pw/ä"


@pytest.mark.parametrize("block", [b"X-Endless: ", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_endless_response_headers_time_out(block):
    """A read timeout does not help, because it restarts at each byte. If we only hung up,
    http.client would accept the headers received so far."""
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


def test_login_is_not_sent_after_a_redirect_to_another_scheme(tmp_path, monkeypatch):
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with web_server() as own, web_server(certificate) as other:
        own.put(
            "/start",
            status=302,
            login=SENT_LOGIN,
            headers={"Location": other.url("/a", host="localhost")},
        )
        other.put("/a", status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        with pytest.raises(HTTPError, match="401"):
            open_url(own.url("/start"), {}, timeout_s=9, login=LOGIN)
        other.put("/a", status=307, headers={"Location": own.url("/end")})
        own.put("/end", b"abc", login=SENT_LOGIN)
        response = open_url(own.url("/start"), {}, timeout_s=9, login=LOGIN)
        assert (response.read(), response.url) == (b"abc", own.url("/end"))
        assert other.requests
        assert not any("Authorization" in headers for _, headers in other.requests)


def test_number_of_redirects_is_limited():
    with web_server() as web:
        url = web.put("/a", status=302, headers={"Location": "/a"})
        with pytest.raises(HTTPError, match="redirects"):
            open_url(url, {}, timeout_s=9)
        assert len(web.requests) == http.MOST_REDIRECTS + 1


def test_proxies_from_the_environment_are_used(monkeypatch):
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
