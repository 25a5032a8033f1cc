"""Test the guard without a server: the largest accepted requests, and the next larger ones."""

import asyncio
from types import SimpleNamespace

import pytest

from detector.live.page.access import COOKIE, Access
from detector.live.page.binding import Binding

guard = pytest.importorskip("detector.live.page.guard", reason="machine: uvicorn is not installed")
HOST = ("host", "127.0.0.1")
HEAD_LEFT = guard.HEAD_BYTES - len("host127.0.0.1") - len("x-a")
TOKEN = "t" * 32


class GuardedApp:
    def __init__(self, token=None, raises=None):
        self.bodies, self.reports, self.cut, self.raises = [], [], [], raises
        ignore = lambda peer: None  # noqa: E731
        connections = SimpleNamespace(
            begin_request=ignore, end_request=ignore, mark_known=ignore, cut_off=self.cut.append
        )
        binding = Binding(None, "127.0.0.1", 1, token, None, frozenset())
        self.access = Access(token)
        self.guard = guard.Gate(self.app, binding, self.access, connections, self.reports.append)

    async def app(self, scope, receive, send):
        if self.raises is not None:
            raise self.raises
        if scope["method"] == "POST":
            self.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200})

    def ask(self, *headers, path="/", query="", method="GET", pieces=(b"",), kind="http"):
        sent = []
        messages = [
            {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
            for number, piece in enumerate(pieces, 1)
        ]

        async def receive():
            return messages.pop(0)

        async def send(message):
            sent.append(message)

        scope = {
            "type": kind,
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in (HOST, *headers)],
            "client": None,
        }
        asyncio.run(self.guard(scope, receive, send))
        return sent[0]["status"] if sent else None


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ((), "x" * (guard.TARGET_BYTES - 1), 200),
        ((), "x" * guard.TARGET_BYTES, 414),
        ((("x-a", "x" * HEAD_LEFT),), "", 200),
        ((("x-a", "x" * (HEAD_LEFT + 1)),), "", 431),
        ((("range", "x" * guard.RANGE_BYTES),), "", 200),
        ((("range", "x" * (guard.RANGE_BYTES + 1)),), "", 400),
        ((HOST,), "", 400),
        ((("authorization", "a"), ("authorization", "a")), "", 400),
        ((("origin", "http://127.0.0.1"),) * 2, "", 400),
        ((("content-length", "0"),) * 2, "", 400),
        ((("cookie", "a=b"), ("cookie", "c=d")), "", 200),
        ((("sec-fetch-site", "none"),), "", 200),
    ],
)
def test_request_head_above_a_limit_or_with_duplicates_is_refused(headers, query, status):
    assert GuardedApp().ask(*headers, query=query) == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "get"])
def test_only_get_head_and_post_reach_the_application(method):
    assert GuardedApp(raises=AssertionError("reached")).ask(method=method) == 405


@pytest.mark.parametrize(
    ("declared", "pieces", "status"),
    [
        (str(guard.BODY_BYTES), (b"a" * guard.BODY_BYTES,), 200),
        (str(guard.BODY_BYTES + 1), (b"a",), 413),
        ("-1", (b"a",), 413),
        ("x", (b"a",), 413),
        (None, (b"a" * 8000, b"b" * (guard.BODY_BYTES - 8000)), 200),
        (None, (b"a" * 8000, b"b" * (guard.BODY_BYTES - 7999)), 413),
    ],
)
def test_request_body_is_passed_whole_or_refused(declared, pieces, status):
    guarded = GuardedApp()
    headers = () if declared is None else (("content-length", declared),)
    assert guarded.ask(*headers, method="POST", pieces=pieces) == status
    assert guarded.bodies == ([b"".join(pieces)] if status == 200 else [])


def test_request_without_login_is_redirected_or_refused():
    guarded = GuardedApp(TOKEN)
    assert guarded.ask(method="HEAD") == 303
    assert guarded.ask(method="POST") == 401
    assert guarded.ask(path="/api/streams") == 401
    assert guarded.ask(path="/healthz") == 200
    assert guarded.ask(("authorization", f"bearer  {TOKEN}"), path="/api/streams") == 200
    cookies = f"x=1; {COOKIE}={guarded.access.open_session()}"
    assert guarded.ask(("cookie", cookies), path="/api/streams") == 200
    assert guarded.guard.requests == {303: 1, 401: 2, 200: 3}


def test_internal_error_is_answered_each_time_and_reported_once():
    guarded = GuardedApp(raises=ZeroDivisionError("of ours"))
    assert [guarded.ask() for _ in range(3)] == [500] * 3
    assert len(guarded.reports) == 1
    assert "ZeroDivisionError" in guarded.reports[0]
    disconnected = GuardedApp(raises=OSError("gone"))
    assert disconnected.ask() is None
    assert disconnected.cut == [None]
    assert disconnected.reports == []


def test_only_http_reaches_the_application():
    guarded = GuardedApp(raises=AssertionError("reached"))
    assert guarded.ask(kind="websocket") is None
    assert guarded.reports == []


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("a=1; b=2", "2"),
        ("b=2;b=3", "2"),
        ("b", None),
        ("xb=1", None),
        ("b=c=d", "c=d"),
        ("b=", ""),
        ("", None),
    ],
)
def test_cookie_value_is_found(header, value):
    assert guard.cookie(header, "b") == value
