"""Deadlines and bounds of connections, below HTTP: one that is slow or idle holds nothing for long.

uvicorn bounds the size of a request's head and ends idle connections after an answer. What it lacks
stands here: the first head must come in time, there is a bound on connections (counted from accept
on, so that half-done TLS handshakes take no descriptors from the run), and one whose reader has
stopped is cut off without waiting for it. The subclass relies on ``asyncio.Protocol`` alone.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0  # from the connection, or the end of the last answer, to the whole head
MOST = 256  # connections at once
HEAD_BYTES = 16 << 10
# Seconds, and tries: a watcher whose network has gone is noticed within a minute, though nothing is
# sent to it while its camera is silent.
ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

Address = tuple[str, int]


class BoundedSocket(socket.socket):
    """Listens, and keeps at most ``most`` accepted sockets open: more are closed at once."""

    def __init__(self, listening: socket.socket, most: int = MOST) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self.setblocking(False)
        self.most, self.open, self.refused = most, 0, 0
        self.lock = threading.Lock()

    def accept(self) -> tuple[socket.socket, Any]:
        """As ``socket.accept``. Raises BlockingIOError where the one that came was closed."""
        accepted, peer = super().accept()
        with self.lock:
            full = self.open >= self.most
            self.open += not full
            self.refused += full
        if full:
            accepted.close()
            raise BlockingIOError
        one = _Counted(accepted, self)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in ALIVE.items():  # where the system has them
            if hasattr(socket, name):
                one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return one, peer


class _Counted(socket.socket):
    def __init__(self, accepted: socket.socket, listening: BoundedSocket) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._counts: BoundedSocket | None = listening

    def close(self) -> None:
        counts, self._counts = self._counts, None
        if counts is not None:
            with counts.lock:
                counts.open -= 1
        super().close()


class Connections:
    """All connections of one server, by the address of their other end."""

    def __init__(self, head_s: float = HEAD_S) -> None:
        self.head_s = head_s
        self.cut = 0  # for they were too slow
        self._open: dict[Address, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, one: Connection, peer: Address) -> None:
        self._open[peer] = one

    def closed(self, one: Connection, peer: Address) -> None:
        if self._open.get(peer) is one:
            del self._open[peer]

    def answering(self, peer: Any) -> None:
        """A request's head is there: from now on its answer has deadlines of its own."""
        if (one := self._of(peer)) is not None:
            one.expect_no_head()

    def answered(self, peer: Any) -> None:
        if (one := self._of(peer)) is not None:
            one.expect_head(self.head_s)

    def cut_off(self, peer: Any) -> None:
        """Ends a connection at once; what waits to be sent is dropped."""
        if (one := self._of(peer)) is not None:
            self.cut += 1
            one.abort()

    def cut_all(self) -> None:
        for one in list(self._open.values()):
            one.abort()

    def _of(self, peer: Any) -> Connection | None:
        return None if peer is None else self._open.get(tuple(peer))


class Connection(H11Protocol):
    """One connection, which ``connections`` (set on a subclass for each server) keeps an eye on."""

    connections_of_server: Connections
    _peer: Address | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._peer = (str(peer[0]), int(peer[1])) if peer else ("", id(self))
        self.connections_of_server.opened(self, self._peer)
        self.expect_head(self.connections_of_server.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.expect_no_head()
        if self._peer is not None:
            self.connections_of_server.closed(self, self._peer)
        super().connection_lost(exc)

    def expect_head(self, within_s: float) -> None:
        self.expect_no_head()
        self._deadline = asyncio.get_running_loop().call_later(within_s, self._too_slow)

    def expect_no_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def abort(self) -> None:
        self.transport.abort()

    def _too_slow(self) -> None:
        self._deadline = None
        if self._peer is not None:
            self.connections_of_server.cut_off(self._peer)


def protocol_for(connections: Connections) -> type[Connection]:
    """The protocol of one server."""
    return type("ServerConnection", (Connection,), {"connections_of_server": connections})
