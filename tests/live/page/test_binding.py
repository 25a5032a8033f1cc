"""Test the address, token and certificate of ``--serve``, and their errors."""

import ssl
import subprocess
import sys
import urllib.request

import pytest

from detector.core.errors import DetectVideoError, OutputError, UsageError
from detector.core.errors.secrets import redact
from detector.live.config import PageConfig
from detector.live.page import serve
from detector.live.page.binding import TOKEN, bind, parse_address
from tests.live.page.conftest import skip_without_libraries
from tests.live.page.fake_run import FakeRun
from tests.live.servers import silent_listener
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.net
SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8080", ("127.0.0.1", 8080)),
        ("0", ("127.0.0.1", 0)),
        (":0", None),
        ("localhost:1", ("localhost", 1)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
        ("[::1]:8080", ("::1", 8080)),
        ("::1:8080", None),
        ("65536", None),
        ("http://x:80", None),
        ("a b:80", None),
        ("-x:80", None),
        ("", None),
        ("host:", None),
        ("host:80/path", None),
        ("user@host:80", None),
    ],
)
def test_serve_address_is_parsed_or_refused(text, expected):
    if expected is None:
        with pytest.raises(UsageError, match="--serve"):
            parse_address(text)
    else:
        assert parse_address(text) == expected


def refused(error: type[DetectVideoError], **config: object) -> str:
    with pytest.raises(error) as caught:
        bind(PageConfig(**config))  # type: ignore[arg-type]
    return str(caught.value)


def test_serving_other_machines_needs_a_token(monkeypatch, tmp_path):
    error = refused(UsageError, serve="0.0.0.0:0")
    assert "openssl rand" in error
    assert "--token-file" in error
    assert TOKEN in error
    refused(UsageError, serve="0", page_hosts=("cam.example.org",))
    monkeypatch.setenv(TOKEN, SECRET)
    bound = bind(PageConfig(serve="0.0.0.0:0"))
    bound.socket.close()
    assert bound.token == SECRET
    assert bound.address == f"http://127.0.0.1:{bound.port}/"
    assert redact(f"it is {SECRET}") == "it is ***"


def test_token_file_overrides_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv(TOKEN, "x" * 32)
    file = tmp_path / "token"
    file.write_text(SECRET + "\n")
    bound = bind(PageConfig(serve="0", token_file=str(file)))
    bound.socket.close()
    assert bound.token == SECRET  # used on loopback, too


@pytest.mark.parametrize(
    "content", [None, b"", b"short", b"two words of it, long enough", b"\xff" * 40, b"x" * 5000]
)
def test_invalid_or_missing_token_file_is_refused(tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    assert "token" in refused(UsageError, serve="0", token_file=str(file))


def test_port_in_use_is_reported(tmp_path):
    with silent_listener() as port:
        error = refused(OutputError, serve=str(port))
    assert str(port) in error
    assert "in use" in error


def test_address_of_another_machine_is_refused(monkeypatch):
    monkeypatch.setenv(TOKEN, SECRET)
    assert "0.0.0.0" in refused(UsageError, serve="192.0.2.1:0")


@pytest.mark.parametrize("name", ["starlette", "uvicorn", "prometheus_client"])
def test_error_about_a_missing_library_says_which_extra_to_install(monkeypatch, name):
    """Forget the server's modules first, because a user's process has not imported them yet."""
    for module in [one for one in sys.modules if one.startswith("detector.live.page.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"'detect-video\[serve\]'"):
        serve(FakeRun().hub, PageConfig(serve="0"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    for name in ("one", "other"):
        words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split()
        words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        words += ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    return folder


def test_page_is_served_over_tls(certificate):
    skip_without_libraries()
    (file := certificate / "token").write_text(SECRET)
    file.chmod(0o644)
    chain, key = (str(certificate / f"one.{kind}") for kind in ("pem", "key"))
    config = PageConfig(serve="0", tls_cert=chain, tls_key=key, token_file=str(file))
    server = serve(FakeRun("door").hub, config, (said := []).append)
    assert "every user can read it" in said[0]
    try:
        assert server.address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=certificate / "one.pem")
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), NoRedirect()
        )
        with opener.open(f"{server.address}login", timeout=PATIENCE_S) as answer:
            assert b"Token" in answer.read()
        with pytest.raises(urllib.error.HTTPError) as caught:  # the redirect after the login
            opener.open(f"{server.address}login", f"token={SECRET}".encode(), timeout=PATIENCE_S)
        cookie = caught.value.headers["set-cookie"].lower()
        caught.value.close()
        assert "; secure" in cookie
        assert "; httponly" in cookie
        assert "samesite=strict" in cookie
    finally:
        server.close()


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@pytest.mark.parametrize(
    ("chain", "key"),
    [
        ("one.pem", None),
        (None, "one.key"),
        ("one.pem", "other.key"),
        ("one.key", "one.pem"),
        ("absent.pem", "one.key"),
    ],
)
def test_mismatched_certificate_and_key_are_refused(certificate, chain, key):
    chain, key = (name and str(certificate / name) for name in (chain, key))
    assert "--tls" in refused(UsageError, serve="0", tls_cert=chain, tls_key=key)
