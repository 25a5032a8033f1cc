"""Endless responses: pictures of cameras, and events as they happen.

The newest picture is sent when the client is ready, so slow clients skip pictures. The socket's
buffer limits unread data, and guard.py disconnects clients that read nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from detector.live.base import format_utc
from detector.live.events.wording import as_document
from detector.live.hub import Hub
from detector.live.page.documents import live as live_document
from detector.live.page.sampler import Sampler

BOUNDARY = "detect-video-picture"
MULTIPART = f"multipart/x-mixed-replace; boundary={BOUNDARY}"
EVENTS = "text/event-stream"
SNAPSHOT_S = 2.0  # longest wait of a snapshot for the next picture
FRESH_NS = 100_000_000  # a snapshot uses the newest picture if it is not older than this
RECHECK_S = 15.0  # longest wait for a new picture before cameras are checked again
MOST_STREAMS = 64  # streams of all viewers at once

Message = MutableMapping[str, Any]


class Streams:
    """The open streams of a server. Only ``wake`` may be called outside the server's thread."""

    def __init__(self, hub: Hub, executor: Executor) -> None:
        self.hub, self._executor = hub, executor
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.ending = False
        self.open = 0
        self.skipped = 0  # pictures that slow clients skipped
        hub.set_wake(self.wake)

    def wake(self) -> None:
        """Wake all streams. Thread-safe; may be called after the server has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake_streams)

    def _wake_streams(self) -> None:
        self.hub.clear_wake()
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        self.ending = True
        self.hub.set_wake(lambda: None)
        self._changed.set()

    async def jpeg(self, camera: str, width: int | None) -> tuple[Any, bytes] | None:
        return await self._loop.run_in_executor(self._executor, self.hub.jpeg, camera, width)

    async def snapshot(self, camera: str, width: int | None) -> tuple[Any, bytes] | None:
        """Return a current picture and its JPEG; None if no picture arrives in time."""
        shot = self.hub.newest(camera)
        if shot is not None and self.hub.age_ns(shot) <= FRESH_NS:
            return await self.jpeg(camera, width)
        before = self.hub.request_picture(camera)
        deadline = self._loop.time() + SNAPSHOT_S
        while (left_s := deadline - self._loop.time()) > 0 and not self.ending:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            shot = self.hub.newest(camera)
            if shot is not None and shot.number > before:
                return await self.jpeg(camera, width)
        return None

    async def pictures(
        self, cameras: Collection[str], width: int | None, rate: float
    ) -> AsyncIterator[bytes]:
        """Yield the parts of a multipart response, which are JPEGs of these cameras."""
        watch = self.hub.watch(cameras, rate)
        interval_s = watch.interval_ns / 1e9
        sent = dict.fromkeys(cameras, 0)
        due_s = dict.fromkeys(cameras, 0.0)
        try:
            yield f"--{BOUNDARY}\r\n".encode()
            while not self.ending:
                changed = self._changed  # before reading pictures, so that no change is missed
                for camera in sent:
                    shot = self.hub.newest(camera)
                    now_s = self._loop.time()
                    if shot is None or shot.number <= sent[camera]:
                        continue
                    # The hub keeps pictures at the highest requested rate; skip some of them here.
                    if now_s < due_s[camera] - interval_s / 2:
                        continue
                    picture = await self.jpeg(camera, width)
                    if picture is None:
                        continue
                    if sent[camera]:
                        self.skipped += picture[0].number - sent[camera] - 1
                    sent[camera] = picture[0].number
                    due_s[camera] = max(due_s[camera], now_s - interval_s / 2) + interval_s
                    yield _part(camera, *picture)
                with suppress(TimeoutError):
                    async with asyncio.timeout(RECHECK_S):
                        await changed.wait()
        finally:
            self.hub.leave(watch)

    async def events(
        self, sampler: Sampler, after: int, controllable: Callable[[], Collection[str]]
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events: ``figures`` each second (``silent`` if the run hangs),
        ``event``, ``lost`` with the number of missed events, and ``end``."""
        subscription = self.hub.subscribe(after)
        sent_s = -1.0
        try:
            yield b"retry: 1000\n\n"
            while not self.ending:
                changed, sampled = (
                    self._changed,
                    sampler.sampled,
                )  # before reading, as in ``pictures``
                waiting, lost = subscription.take()
                if lost:
                    yield f'event: lost\ndata: {{"lost":{lost}}}\n\n'.encode()
                for number, one in waiting:
                    yield _message("event", msgspec.json.encode(as_document(one)), number)
                if sampler.at_s != sent_s and sampler.newest is not None:
                    sent_s = sampler.at_s
                    document = live_document(sampler.newest, sampler.at_s, list(controllable()))
                    yield _message("figures", msgspec.json.encode(document))
                elif sampler.at_s != sent_s:
                    sent_s = sampler.at_s
                    yield _message("silent", b"{}")
                await _wait_for_first(changed.wait(), sampled.wait())
            yield _message("end", b"{}")
        finally:
            self.hub.unsubscribe(subscription)


class EndlessResponse:
    """An ASGI response that sends ``chunks`` until they end or the client disconnects."""

    def __init__(self, streams: Streams, chunks: AsyncIterator[bytes], media_type: str) -> None:
        self._streams, self._chunks, self._media_type = streams, chunks, media_type

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self._streams.open += 1
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.open -= 1
            leaving.cancel()
            if not sending.done():
                sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending

    async def _send(self, send: Callable[[Message], Awaitable[None]]) -> None:
        headers = [
            (b"content-type", self._media_type.encode()),
            (b"connection", b"close"),
            (b"x-accel-buffering", b"no"),  # so that nginx does not buffer the response
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._chunks) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _wait_for_disconnect(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _wait_for_first(*waits: Any) -> None:
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _part(camera: str, shot: Any, jpeg: bytes) -> bytes:
    """Return a picture and the boundary after it. Browsers show no picture before that boundary."""
    head = (
        f"Content-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\nX-Camera: {camera}\r\n"
        f"X-Number: {shot.number}\r\nX-Time: {format_utc(shot.utc_s)}\r\n"
        f"X-Objects: {shot.objects}\r\n\r\n"
    )
    return head.encode() + jpeg + f"\r\n--{BOUNDARY}\r\n".encode()


def _message(kind: str, data: bytes, number: int | None = None) -> bytes:
    """Return one server-sent event. ``data`` is JSON, which has no line breaks."""
    tag = b"" if number is None else f"id: {number}\n".encode()
    return b"event: " + kind.encode() + b"\n" + tag + b"data: " + data + b"\n\n"
