"""Serves the page in a thread."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import uvicorn

from detector.live.config import PageConfig
from detector.live.hub import Hub
from detector.live.page.access import Access
from detector.live.page.app import Page
from detector.live.page.binding import Binding, bind
from detector.live.page.connections import HEAD_BYTES, BoundedSocket, Connections, make_protocol
from detector.live.page.guard import Gate

START_S = 10.0
END_S = 2.0  # ``close`` returns after this time, even if clients stay connected
LAST_MESSAGES_S = 0.3  # time to send the last messages to viewers
STEPS = 3  # LAST_MESSAGES_S is split into this many timers: a suspension shortens only one of them
WORKERS = 2  # threads that encode pictures and list files


class Server:
    """The server. ``address``: its URL for a browser on this machine."""

    def __init__(
        self, hub: Hub, config: PageConfig, say: Callable[[str], None] = lambda line: None
    ) -> None:
        binding = bind(config)
        if config.token_file and os.stat(config.token_file).st_mode & 0o004:
            say(f"--token-file {config.token_file}: every user can read it; run chmod o-r on it")
        self.address = binding.address
        self.port = binding.port
        self.access = Access(binding.token)
        self.socket = BoundedSocket(binding.socket)
        self.connections = Connections(self.socket)
        self.page: Page | None = None
        self._say = say
        self._hub = hub
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._started = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(binding,), name="detect-video page", daemon=True
        )
        self._thread.start()
        self._started.wait(START_S)
        if self._failed is not None or self.page is None:
            self._thread.join(END_S)
            raise RuntimeError("the web server of the page did not start") from self._failed

    def close(self) -> None:
        """Send all viewers the message ``end``, and stop within 2 s. May be called twice."""
        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end)
        self._thread.join(END_S)

    def _run(self, binding: Binding) -> None:
        try:
            asyncio.run(self._serve(binding))
        except BaseException as error:
            self._failed = error
        finally:
            self.socket.close()
            self._started.set()

    async def _serve(self, binding: Binding) -> None:
        self._loop = asyncio.get_running_loop()
        # This logger would print a line for each write to a visitor who has left.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        workers = ThreadPoolExecutor(WORKERS, "detect-video page")
        page = Page(
            self._hub,
            self.access,
            self.connections,
            workers,
            secure=binding.certificate is not None,
        )
        page.gate = Gate(page.app(), binding, self.access, self.connections, self._say)
        chain, key = binding.certificate or (None, None)
        self._server = uvicorn.Server(
            uvicorn.Config(
                page.gate,
                http=make_protocol(self.connections),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                proxy_headers=False,  # otherwise, a client could forge its address in a header
                h11_max_incomplete_event_size=HEAD_BYTES,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=1,
                ssl_certfile=chain,
                ssl_keyfile=key,
            )
        )
        sampling = asyncio.ensure_future(page.sampler.run())
        self.page = page
        self._started.set()
        try:
            await self._server.serve(sockets=[self.socket])
        finally:
            sampling.cancel()
            page.streams.end()
            self.connections.cut_all()
            workers.shutdown(wait=False, cancel_futures=True)

    def _end(self) -> None:
        assert self._loop is not None
        if self.page is not None:
            self.page.streams.end()
        if self._server is not None:
            self._server.should_exit = True
        self._cut_after(STEPS)

    def _cut_after(self, steps: int) -> None:
        assert self._loop is not None
        if steps:
            self._loop.call_later(LAST_MESSAGES_S / STEPS, self._cut_after, steps - 1)
        else:
            self.connections.cut_all()
