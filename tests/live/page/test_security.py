"""Test each attack in the table of docs/live.md, and the headers of every response."""

import json
import socket
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from urllib.parse import quote

import pytest

from detector.live.config import PageConfig
from detector.live.page.access import COOKIE, TRIES
from detector.live.page.binding import TOKEN
from tests.live.page.client import Client, until_closed
from tests.live.page.conftest import Served
from tests.live.page.fake_run import FakeRun
from tests.waiting import PATIENCE_S, wait_for

connections = pytest.importorskip(
    "detector.live.page.connections", reason="machine: uvicorn is not installed"
)
BoundedSocket, MOST_PER_ADDRESS = connections.BoundedSocket, connections.MOST_PER_ADDRESS
pytestmark = pytest.mark.net
RIGHT = "correct-horse-battery-staple-0001"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ADDRESSES = (
    "/",
    "/metrics",
    "/openapi.json",
    "/api/streams",
    "/api/streams/door",
    "/api/streams/door/snapshot.jpg",
    "/api/streams/door/stream.mjpg",
    "/api/pictures",
    "/api/history",
    "/api/events",
    "/api/recordings",
    "/api/recordings/door/video/20261122T120000Z.mp4",
    "/page.js",
    "/nothing",
)


def serve_with_token() -> Served:
    """Return a page that listens on all addresses, and so needs a token."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKEN, RIGHT)
        config = PageConfig(serve="0.0.0.0:0", page_hosts=("cam.example.org",))
        return Served(FakeRun("door"), config)


@pytest.fixture
def locked():
    with serve_with_token() as served:
        yield served


@pytest.fixture(scope="module")
def shared_locked():
    with serve_with_token() as served:
        yield served


@pytest.fixture(scope="module")
def shared_page():
    with Served(FakeRun("door", "gate")) as served:
        yield served


def login(client: Client, token: str = RIGHT, **headers: str):
    return client.ask("/login", "POST", f"token={quote(token)}", {**FORM, **headers})


# ---------------------------------------------------------------------- token


def test_without_login_only_health_and_login_are_served(locked):
    for path in ADDRESSES:
        answer = locked.client.ask(path)
        assert answer.status == (303 if path == "/" else 401), path
        assert b"door" not in answer.body
    assert locked.client.ask("/").headers["location"] == "/login"
    assert locked.client.ask("/api/streams").headers["www-authenticate"] == "Bearer"
    for change in ("stop", "zones"):
        assert locked.client.post(f"/api/streams/door/{change}").status == 401
    assert locked.client.ask("/healthz").body == b"ok\n"
    assert locked.client.ask("/login").status == 200


def test_bearer_token_in_the_header_is_accepted(locked):
    right = Client(locked.server.port, {"Authorization": f"Bearer {RIGHT}"})
    assert right.ask("/api/streams").status == 200
    assert right.ask("/metrics").status == 200
    assert right.ask("/").status == 200
    for wrong in (f"Basic {RIGHT}", RIGHT, "Bearer", f"Bearer {RIGHT}x"):
        assert locked.client.ask("/metrics", headers={"Authorization": wrong}).status == 401
    # A token in the URL is refused, because logs and histories keep URLs.
    for query in (f"token={RIGHT}", f"access_token={RIGHT}"):
        assert locked.client.ask(f"/metrics?{query}").status == 401


def test_login_form_gives_a_session_cookie(locked):
    answer = login(locked.client)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert RIGHT not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # browsers send Secure cookies only over https
    session = Client(locked.server.port, {"Cookie": cookie.partition(";")[0]})
    page = session.ask("/")
    assert page.status == 200
    assert b'action="/logout"' in page.body
    assert session.ask("/logout", "POST", "", FORM).status == 303
    assert session.ask("/api/streams").status == 401
    assert locked.client.ask("/", headers={"Cookie": f"{COOKIE}={RIGHT}"}).status == 303
    behind = login(locked.client, Host="cam.example.org", Origin="https://cam.example.org")
    assert "Secure" in behind.headers["set-cookie"]  # the browser talks https to a proxy


def test_wrong_logins_are_limited_and_the_right_token_passes(locked, monkeypatch):
    monkeypatch.setattr(locked.server.access, "_clock", lambda: 1000.0)  # all within a minute
    for _ in range(TRIES):
        answer = login(locked.client, "wrong-" * 5)
        assert answer.status == 403
    assert b"Wrong token" in answer.body
    late = login(locked.client, "wrong-" * 5)
    assert late.status == 429
    assert int(late.headers["retry-after"]) > 50
    assert b'role="alert"' in late.body
    for token, status in ((RIGHT, 200), ("wrong", 429)):
        by_machine = {"Authorization": f"Bearer {token}"}
        assert locked.client.ask("/metrics", headers=by_machine).status == status
    assert login(locked.client).status == 303


@pytest.mark.parametrize(
    "body",
    [
        "&".join(f"f{n}=1" for n in range(9)),
        "token=a&" * 5,
        "=&" * 2000,
        "%",
        "token=%ff%00",
        "&&&",
    ],
)
def test_malformed_or_oversized_login_form_is_answered_400_or_403(locked, body):
    answer = locked.client.ask("/login", "POST", body, FORM)
    assert answer.status in (400, 403)
    assert locked.server.page.gate.requests.get(500, 0) == 0


# ---------------------------------------------------------------------- Host and Origin


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:{port}", 200),
        ("LOCALHOST", 200),
        ("[::1]:{port}", 200),
        ("evil.example:{port}", 421),  # DNS rebinding: the name's owner points it at 127.0.0.1
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("192.168.1.5:{port}", 421),  # not a loopback address
        ("0.0.0.0:{port}", 421),
        ("", 421),
        ("x@127.0.0.1", 421),
        ("[::1", 421),
    ],
)
def test_page_on_loopback_refuses_unknown_host_headers(shared_page, host, status):
    header = host.format(port=shared_page.server.port)
    assert shared_page.client.ask("/api/streams", headers={"Host": header}).status == status
    if status != 200:
        assert shared_page.client.ask("/healthz", headers={"Host": header}).status == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("192.168.1.5:8080", 200),  # DNS cannot point an IP address elsewhere
        ("[fd00::5]:8080", 200),
        ("127.0.0.1", 200),
        ("cam.example.org", 200),  # --page-hosts
        ("CAM.example.org:443", 200),
        (socket.gethostname(), 200),
        ("evil.example", 421),
        ("cam.example.org.evil.example", 421),
    ],
)
def test_page_on_all_addresses_refuses_unknown_host_names(shared_locked, host, status):
    assert shared_locked.client.ask("/healthz", headers={"Host": host}).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 409),  # passes the check; 409: this run has no cameras to stop
        ({"Origin": "http://{host}"}, 409),
        ({"Origin": "https://{host}"}, 409),  # a proxy that ends TLS
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://{host}.evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),  # another server on this machine
        ({"Origin": "null"}, 403),
        ({"Origin": "file://"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 409),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
    ],
)
def test_requests_of_other_sites_change_nothing(shared_page, headers, status):
    host = f"127.0.0.1:{shared_page.server.port}"
    sent = {name: value.format(host=host) for name, value in headers.items()}
    assert shared_page.client.post("/api/streams/door/stop", **sent).status == status


def test_other_sites_may_only_link_to_the_page(shared_page):
    other = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    for path in ADDRESSES:
        assert shared_page.client.ask(path, headers=other).status == 403
    link = {**other, "Sec-Fetch-Mode": "navigate"}
    assert shared_page.client.ask("/", headers=link).status == 200
    preflight = shared_page.client.ask("/api/streams/door/stop", "OPTIONS")
    assert preflight.status == 405
    assert not any(name.startswith("access-control") for name in preflight.headers)


# ---------------------------------------------------------------------- requests and responses


def test_every_response_has_the_security_headers(shared_page):
    for path in (*ADDRESSES[:5], "/healthz", "/nothing", "/api/streams/nobody"):
        headers = shared_page.client.ask(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/api/streams/door%0d%0aSet-Cookie:%20a=b/snapshot.jpg",
        "/api/streams/door/snapshot.jpg?width=1%0d%0aSet-Cookie:a=b",
        "/%0d%0aSet-Cookie:%20a=b",
        "/api/pictures?cameras=door%0d%0aX-Camera:gate",
        "/api/recordings?camera=%0d%0aSet-Cookie:a=b",
    ],
)
def test_headers_cannot_be_injected(shared_page, path):
    answer = shared_page.client.ask(path)
    assert "set-cookie" not in answer.headers
    assert answer.status in (200, 404, 422)


def test_markup_in_a_camera_name_stays_text(served):
    """Names are validated when cameras are read, but the page does not rely on that."""
    name = '<img src=x onerror=alert(1)>"\r\nSet-Cookie: a=b'
    error = "<script>alert(1)</script>"
    served.run.streams[name] = replace(served.run.streams["door"], name=name, error=error)
    wait_for(lambda: name in served.page.sampler.names)
    answer = served.client.ask("/api/streams")
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["streams"][-1]["name"] == name
    metrics = served.client.ask("/metrics").body.decode()
    assert "\r\nSet-Cookie" not in metrics
    assert 'onerror=alert(1)>\\"' in metrics  # a label's value, with its quote escaped
    # Response headers contain only validated camera names.
    assert served.client.ask(f"/api/streams/{quote(name)}/snapshot.jpg").status == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/streams/door/snapshot.jpg?width=-1", 422),
        ("/api/streams/door/snapshot.jpg?width=nan", 422),
        ("/api/streams/door/snapshot.jpg?width=99999", 422),
        ("/api/pictures?rate=inf", 422),
        ("/api/pictures?rate=0", 422),
        ("/api/pictures?cameras=nobody", 404),
        ("/api/recordings?limit=1e9", 422),
    ],
)
def test_invalid_parameters_are_refused(shared_page, path, status):
    assert shared_page.client.ask(path).status == status


def test_large_or_malformed_request_head_is_refused(served):
    head = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    answer = served.client.raw(head + b"X-Long: " + b"x" * 40_000 + b"\r\n\r\n")
    assert answer.split()[1] in (b"400", b"431")
    assert served.client.raw(head + b"Host: evil.example\r\n\r\n").split()[1] == b"400"
    assert served.client.raw(b"\x16\x03\x01 what is this\r\n\r\n").split()[1] == b"400"


def test_connections_with_slow_request_heads_are_closed(served):
    """Slow loris: clients send an endless request head, one byte at a time."""
    served.server.connections.head_s = 0.4
    slow = [served.client.connect() for _ in range(20)]
    for connection in slow:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ")

    def drip() -> bool:
        for connection in slow:
            with suppress(OSError):
                connection.sendall(b"b")
        # Other clients are served meanwhile. If this machine is slow, they may be cut off, too.
        with suppress(OSError, HTTPException):
            assert served.client.ask("/healthz").status == 200
        return served.server.connections.cut >= 20

    wait_for(drip)
    for connection in slow:
        assert until_closed(connection) == b""
        connection.close()
    wait_for(lambda: len(served.server.connections) == 0)


@pytest.mark.parametrize("more", [b"\r\n\r\n", b"no http\r\n\r\n", bytes(70_000)])
def test_bytes_that_are_not_http_close_the_connection_silently(served, caplog, more):
    with served.client.stream("/api/events") as stream:
        wait_for(lambda: served.page.streams.open == 1)
        with suppress(OSError):
            stream.socket.sendall(more)
        wait_for(lambda: served.page.streams.open == 0)
    assert [record.getMessage() for record in caplog.records] == []


def test_idle_connection_is_closed_after_a_response(served):
    served.server.connections.head_s = 0.3

    def answered_then_ended() -> bool:
        with served.client.connect() as connection, suppress(OSError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            return b"ok" in until_closed(connection)
        return False

    wait_for(answered_then_ended)  # repeated, because this thread may be too slow


def test_slow_bodies_are_refused(served):
    served.server.page.gate.body_s = 0.3
    head = b"POST /api/streams/door/stop HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n{"
    assert served.client.raw(head).startswith(b"HTTP/1.1 408")


@pytest.mark.slow
def test_idle_connections_make_room_for_new_ones(served):
    """None of 300 idle connections delays a health check or displaces a viewer."""
    with served.client.stream("/api/events"):
        idle = [served.client.connect() for _ in range(300)]
        wait_for(lambda: served.server.socket.displaced >= 300 - MOST_PER_ADDRESS)
        for _ in range(20):
            assert served.client.ask("/healthz").status == 200
        assert served.server.socket.open <= MOST_PER_ADDRESS
        assert served.page.streams.open == 1
        for connection in idle:
            connection.close()
    wait_for(lambda: served.server.socket.open == 0)
    assert served.server.socket.refused == 0


def test_connection_beyond_the_limit_is_closed_if_none_is_idle(served):
    served.server.socket.each = 2
    with served.client.stream("/api/events"), served.client.stream("/api/pictures"):
        wait_for(lambda: served.page.streams.open == 2)
        with served.client.connect() as connection:
            assert until_closed(connection) == b""  # closed at once
    assert served.server.socket.refused == 1
    wait_for(lambda: served.server.socket.open == 0)
    assert served.client.ask("/healthz").status == 200


def test_number_of_streams_is_bounded(served, monkeypatch):
    monkeypatch.setattr("detector.live.page.app.MOST_STREAMS", 2)
    with served.client.stream("/api/events"), served.client.stream("/api/pictures"):
        wait_for(lambda: served.page.streams.open == 2)
        assert served.client.ask("/api/pictures").status == 503
        assert served.client.ask("/api/streams").status == 200
    wait_for(lambda: served.page.streams.open == 0)
    wait_for(lambda: served.hub.watchers() == 0)


class BoundedListener:
    """A BoundedSocket to which a test connects from addresses of its choice."""

    def __init__(self, **bounds):
        self.bounded = BoundedSocket(socket.create_server(("127.0.0.1", 0)))
        vars(self.bounded).update(bounds)
        self.bounded.settimeout(PATIENCE_S)
        self.ends = []

    def connect_from(self, address):
        end = socket.create_connection(self.bounded.getsockname(), source_address=(address, 0))
        self.ends.append(end)
        accepted, _ = self.bounded.accept()
        self.ends.append(accepted)
        return accepted


@pytest.fixture
def make_listener(monkeypatch):
    monkeypatch.setattr(
        "detector.live.page.connections.is_loopback", lambda host: host == "127.0.0.1"
    )
    listeners = []

    def make(**bounds):
        listeners.append(BoundedListener(**bounds))
        return listeners[-1]

    yield make
    for listener in listeners:
        listener.bounded.close()
        for end in listener.ends:
            end.close()


def is_ended(accepted):
    accepted.setblocking(False)
    with suppress(BlockingIOError):
        return accepted.recv(1) == b""
    return False


def test_full_socket_first_closes_idle_connections_that_have_no_login(make_listener):
    listener = make_listener(most=6, each=4, reserve=0)
    logged_in = listener.connect_from("127.0.0.2")
    logged_in.known = True
    busy = listener.connect_from("127.0.0.3")
    busy.busy = True
    first, second, third = (listener.connect_from("127.0.0.4") for _ in range(3))
    single = listener.connect_from("127.0.0.5")
    listener.bounded.mark_active(first)  # it has just sent a request, so it is closed last
    new = listener.connect_from("127.0.0.6")
    assert [is_ended(connection) for connection in (first, second, third)] == [False, True, False]
    assert not any(map(is_ended, (logged_in, busy, single, new)))
    for connection in (first, third, single, new):
        connection.known = connection.busy = True
    listener.connect_from("127.0.0.7").busy = True
    assert is_ended(busy)  # busy, but without a login; an idle connection with a login stays
    assert not is_ended(logged_in)


def test_each_address_has_a_limit_and_loopback_has_a_reserve(make_listener):
    listener = make_listener(most=6, each=3, reserve=2)
    connections = [listener.connect_from("127.0.0.2") for _ in range(4)]
    assert [is_ended(connection) for connection in connections] == [True, False, False, False]
    others = [listener.connect_from("127.0.0.3")]
    assert listener.bounded.open == 4
    listener.connect_from("127.0.0.4")  # the two free places are reserved for this machine
    assert listener.bounded.open == 4
    probes = [listener.connect_from("127.0.0.1") for _ in range(2)]
    assert listener.bounded.open == 6
    assert not any(map(is_ended, probes + others))


def test_bounded_socket_counts_open_and_refused_connections(make_listener):
    listener = make_listener(most=1, each=1, reserve=0)
    accepted = listener.connect_from("127.0.0.1")
    accepted.known = accepted.busy = True
    with pytest.raises(BlockingIOError):
        listener.connect_from("127.0.0.1")
    assert (listener.bounded.open, listener.bounded.refused) == (1, 1)
    accepted.close()
    accepted.close()
    assert listener.bounded.open == 0
