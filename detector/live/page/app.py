"""Handles the routes of the page."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from detector.core import wings
from detector.core.errors import DetectVideoError, UsageError
from detector.core.errors.secrets import redact
from detector.core.errors.text import counted
from detector.live import zone_counts
from detector.live.base import format_utc
from detector.live.hub import RATE, Controls, Hub
from detector.live.page import documents
from detector.live.page.access import COOKIE, SESSION_S, Access
from detector.live.page.connections import Connections
from detector.live.page.guard import Gate, HttpError
from detector.live.page.metrics import CONTENT_TYPE, make_registry
from detector.live.page.openapi import description
from detector.live.page.recordings import RecordedFile, find_recording, list_recordings
from detector.live.page.sampler import Sampler
from detector.live.page.streams import EVENTS, MOST_STREAMS, MULTIPART, EndlessResponse, Streams
from detector.live.sources.base import NAME

CHANGE_S = 5.0  # timeout for a change in the run
MESSAGE = b"<!--message-->"  # replaced by an error message
LOGOUT, BUTTON = b"<!--logout-->", b'<button type="submit">Log out</button>'
ASSETS = {
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/draw.js": ("draw.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class Page:
    """The routes of one server. Only the server's thread may use them."""

    def __init__(
        self, hub: Hub, access: Access, connections: Connections, executor: Executor, secure: bool
    ) -> None:
        self.hub, self.access, self.connections = hub, access, connections
        self._executor, self._secure = executor, secure
        self.controls: Controls | None = None
        self.recordings: Path | None = None
        self.sampler = Sampler(hub.figures)
        self.streams = Streams(hub, executor)
        self.gate: Gate  # set by the server

    def app(self) -> Starlette:
        api = "/api/streams/{camera}"
        return Starlette(
            routes=[
                Route("/", self.index),
                *(Route(path, self.asset) for path in ASSETS),
                Route("/login", self.login, methods=["GET", "POST"]),
                Route("/logout", self.logout, methods=["POST"]),
                Route("/healthz", self.health),
                Route("/metrics", self.metrics),
                Route("/openapi.json", self.openapi),
                Route("/api/streams", self.all_streams),
                Route(api, self.one_stream),
                Route(f"{api}/snapshot.jpg", self.snapshot),
                Route(f"{api}/stream.mjpg", self.stream),
                Route(f"{api}/start", self.change, methods=["POST"]),
                Route(f"{api}/stop", self.change, methods=["POST"]),
                Route(f"{api}/zones", self.draw, methods=["POST"]),
                Route("/api/pictures", self.pictures),
                Route("/api/history", self.history),
                Route("/api/counts", self.counts),
                Route("/api/events", self.events),
                Route("/api/recordings", self.all_recordings),
                Route("/api/recordings/{camera}/{kind}/{name}", self.recording),
            ],
            exception_handlers={HttpError: _error_response, HTTPException: _error_response},
        )

    async def index(self, request: Request) -> Response:
        body = _site("index.html")
        if request.scope.get("session"):
            body = body.replace(LOGOUT, b'<form method="post" action="/logout">%b</form>' % BUTTON)
        return Response(body, media_type="text/html")

    async def asset(self, request: Request) -> Response:
        name, media_type = ASSETS[request.scope["path"]]
        return Response(_site(name), media_type=media_type)

    async def login(self, request: Request) -> Response:
        if not self.access.needed:
            return RedirectResponse("/", 303)
        if request.method != "POST":
            return _login_page("", 200)
        if _media_type(request) != "application/x-www-form-urlencoded":
            raise HttpError(415, "send the form as application/x-www-form-urlencoded")
        try:
            form = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=4)
        except ValueError:
            raise HttpError(400, "the form needs exactly one field, token") from None
        try:
            is_right = self.gate.is_token(form.get("token", [""])[0], request.scope)
        except HttpError as refusal:
            message = f"{refusal.error[0].upper()}{refusal.error[1:]}."
            return _login_page(message, 429, refusal.headers)
        if not is_right:
            return _login_page("Wrong token.", 403)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            COOKIE,
            self.access.open_session(),
            max_age=int(SESSION_S),
            path="/",
            httponly=True,
            samesite="strict",
            # If a proxy terminates TLS, only the Origin header shows that the browser used https.
            secure=self._secure or request.headers.get("origin", "").startswith("https:"),
        )
        return response

    async def logout(self, request: Request) -> Response:
        if request.scope.get("session"):
            self.access.close_session(request.scope["session"])
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return response

    async def health(self, request: Request) -> Response:
        """Answer without details, because this route needs no login."""
        if documents.is_healthy(self.sampler.newest):
            return Response("ok\n", media_type="text/plain")
        return Response("not ok\n", 503, media_type="text/plain")

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        return Response(json.dumps(description()), media_type="application/json")

    @cached_property
    def _registry(self) -> CollectorRegistry:
        return make_registry(lambda: self.sampler.newest, self)

    async def all_streams(self, request: Request) -> Response:
        return _json(self._live())

    async def one_stream(self, request: Request) -> Response:
        camera = self._camera(request)
        return _json(next(one for one in self._live().streams if one.name == camera))

    def _live(self) -> documents.LiveDocument:
        if self.sampler.newest is None:
            raise HttpError(
                503, "the run has not started, or is not responding", {"retry-after": "2"}
            )
        return documents.live(self.sampler.newest, self.sampler.at_s, list(self._controllable()))

    def _controllable(self) -> Collection[str]:
        return () if self.controls is None else self.controls.cameras()

    def _camera(self, request: Request) -> str:
        camera = str(request.path_params["camera"])
        # The name is sent in headers, so it must match ``NAME``.
        if camera not in self.sampler.names or not re.fullmatch(NAME, camera):
            raise HttpError(404, "no such camera")
        return camera

    async def history(self, request: Request) -> Response:
        return _json(self.sampler.history())

    async def counts(self, request: Request) -> Response:
        count, cameras = int(_number(request, "days", 30, 1, 366)), sorted(self.sampler.names)
        days = zone_counts.days_before(time.time(), count)
        sums_of_zones = {}
        if self.recordings is not None:
            known = [one for one in cameras if re.fullmatch(NAME, one)]
            sums_of_zones = await self._in_thread(
                zone_counts.read_days, self.recordings, known, days
            )
        zones = [
            documents.ZoneDaysDocument(
                camera, zone, [documents.SumsDocument(*sums) for sums in of_days]
            )
            for (camera, zone), of_days in sums_of_zones.items()
        ]
        return _json(documents.CountsDocument(1, days, zones))

    async def snapshot(self, request: Request) -> Response:
        camera, width = self._camera(request), _width(request)
        snapshot = await self.streams.snapshot(camera, width)
        if snapshot is None:
            raise HttpError(503, "no frame arrived in time", {"retry-after": "2"})
        shot, coded = snapshot
        name = f"{camera}-{format_utc(shot.utc_s).replace(':', '').replace('-', '')}.jpg"
        headers = {
            "content-disposition": f'inline; filename="{name}"',
            "x-number": str(shot.number),
            "x-time": format_utc(shot.utc_s),
            "x-objects": str(shot.objects),
        }
        return Response(coded, media_type="image/jpeg", headers=headers)

    async def stream(self, request: Request) -> Any:
        return self._stream_response(request, [self._camera(request)])

    async def pictures(self, request: Request) -> Any:
        """Stream several cameras in one response: browsers open only six connections per host."""
        named = request.query_params.get("cameras")
        known = {one for one in self.sampler.names if re.fullmatch(NAME, one)}
        cameras = sorted(known) if named is None else named.split(",")
        if unknown := [one for one in cameras if one not in known]:
            raise HttpError(404, f"{counted(len(unknown), 'camera', 'does')} not exist")
        return self._stream_response(request, list(dict.fromkeys(cameras)))

    def _stream_response(self, request: Request, cameras: list[str]) -> Any:
        rate, width = _number(request, "rate", RATE, 0.1, RATE), _width(request)
        if request.method == "HEAD":
            return Response(media_type=MULTIPART)
        self._check_stream_limit()
        return EndlessResponse(self.streams, self.streams.pictures(cameras, width, rate), MULTIPART)

    async def events(self, request: Request) -> Any:
        if request.method == "HEAD":
            return Response(media_type=EVENTS)
        self._check_stream_limit()
        after = request.headers.get("last-event-id", "0")
        number = int(after) if after.isdecimal() and len(after) < 16 else 0
        chunks = self.streams.events(self.sampler, number, self._controllable)
        return EndlessResponse(self.streams, chunks, EVENTS)

    def _check_stream_limit(self) -> None:
        if self.streams.open >= MOST_STREAMS:
            raise HttpError(
                503, f"{MOST_STREAMS} streams are already being watched", {"retry-after": "10"}
            )

    async def change(self, request: Request) -> Response:
        action = request.scope["path"].rpartition("/")[2]
        if _media_type(request) != "application/json":
            raise HttpError(415, "send application/json with the body {}")
        if (await request.body()).strip() not in (b"", b"{}"):
            raise HttpError(422, "the body must be {}; the address already names the camera")
        camera = str(request.path_params["camera"])
        if self.controls is None or not self.controls.cameras():
            raise HttpError(409, "this run has no cameras that can be started or stopped")
        if camera not in self.controls.cameras():
            raise HttpError(404, "no such camera in cameras.yaml")
        act = self.controls.start if action == "start" else self.controls.stop
        await self._call_run(409, act, camera)
        return _json(documents.ChangeDocument(1, camera, action), 202)

    async def draw(self, request: Request) -> Response:
        """Set a camera's lines and zones. The body is a section of a --zones file."""
        if _media_type(request) not in ("application/json", "application/yaml"):
            raise HttpError(415, "send lines and zones as application/json or application/yaml")
        camera, drawing = self._camera(request), (await request.body()).decode("utf-8", "replace")
        if self.controls is None:
            raise HttpError(409, "this run reads files; only cameras can get new lines or zones")
        changes = await self._call_run(422, self.controls.draw, camera, drawing)
        return _json(documents.ChangeDocument(1, camera, *changes), 202)

    async def _call_run(self, status: int, act: Callable[..., Any], *given: str) -> Any:
        try:
            async with asyncio.timeout(CHANGE_S):
                return await self._in_thread(act, *given)
        except TimeoutError:
            raise HttpError(504, "the run did not respond") from None
        except DetectVideoError as error:
            status = status if isinstance(error, UsageError) else 409
            raise HttpError(status, redact(str(error))) from error

    async def all_recordings(self, request: Request) -> Response:
        limit = int(_number(request, "limit", 100, 1, 500))
        camera = request.query_params.get("camera")
        kind = request.query_params.get("kind")
        recordings = await self._in_thread(list_recordings, self.recordings, camera, kind, limit)
        return _json(recordings)

    async def recording(self, request: Request) -> Response:
        parts = (request.path_params[part] for part in ("camera", "kind", "name"))
        recorded = await self._in_thread(find_recording, self.recordings, *parts)
        if recorded is None:
            raise HttpError(404, "no such recording")
        filename = f"{recorded.camera}-{recorded.path.name}"
        if not recorded.finished:
            return await self._partial_response(recorded, filename)
        return FileResponse(
            recorded.path,
            media_type=recorded.media_type,
            filename=filename,
            content_disposition_type="inline" if recorded.kind == "snapshots" else "attachment",
        )

    async def _partial_response(self, recorded: RecordedFile, filename: str) -> Response:
        """Return the part of an unfinished file that can be played now."""
        try:
            size, data = await self._in_thread(recorded.read_so_far)
        except OSError:
            size = 0
        if not size:
            raise HttpError(
                404, "no part of this recording can be played yet", {"retry-after": "2"}
            )
        headers = {
            "content-length": str(size),
            "content-disposition": f'attachment; filename="{filename}"',
        }
        return StreamingResponse(data, headers=headers, media_type=recorded.media_type)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)


def _site(name: str) -> bytes:
    """Return a file of the page, from the folder ``site`` of any wing."""
    folders = (Path(__file__).parent, *(wings.ROOT / wing for wing in wings.names()))
    files = (folder / "site" / name for folder in folders)
    return next((file.read_bytes() for file in files if file.is_file()), b"")


def _login_page(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return the login page. ``message`` is not escaped, so it must not hold text from outside."""
    note = f'<p class="wrong" role="alert">{message}</p>' if message else ""
    body = _site("login.html").replace(MESSAGE, note.encode())
    return Response(body, status, headers, "text/html")


def _json(document: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _width(request: Request) -> int | None:
    if "width" not in request.query_params:
        return None
    return int(_number(request, "width", 0, 16, 8192))


def _number(request: Request, name: str, default: float, least: float, most: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise HttpError(422, f"{name} must be a number from {least:g} to {most:g}")
    return value


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error, HttpError):
        status, text, headers = error.status, error.error, error.headers
    elif isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
        text = {404: "not found", 405: "method not allowed"}.get(status, error.detail)
    else:
        raise error
    body = msgspec.json.encode(documents.ErrorDocument(1, text))
    return Response(body, status, headers, "application/json")
