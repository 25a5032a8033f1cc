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
from collections import Counter
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from detector.live.page.access import block_of
from detector.live.page.binding import is_loopback

HEAD_S = 10.0  # from the connection, or the end of the last answer, to the whole head
MOST = 256  # connections at once
OF_ONE_ADDRESS = 128  # of them of one address, which may be a proxy's
RESERVE = 32  # of them for this machine alone
HEAD_BYTES = 16 << 10
# Seconds, and tries: notice within a minute that a watcher of a silent camera has gone.
ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

Address = tuple[str, int]


class BoundedSocket(socket.socket):
    """Listen, and keep at most ``most`` accepted sockets open, ``each`` of them from one address.
    When full, close the longest idle one, without a login first, else the new one. ``reserve``
    places are for this machine's health checks."""

    def __init__(
        self,
        listening: socket.socket,
        most: int = MOST,
        each: int = OF_ONE_ADDRESS,
        reserve: int = RESERVE,
    ) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self.setblocking(False)
        self.most, self.each, self.reserve = most, each, reserve
        self.refused = self.displaced = 0
        self.lock = threading.Lock()
        self._held: dict[Address, _Counted] = {}  # the one that came or asked first is first
        self._of_block: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return len(self._held)

    def accept(self) -> tuple[socket.socket, Any]:
        """As ``socket.accept``. Raises BlockingIOError where the one that came was closed."""
        accepted, peer = super().accept()
        one = _Counted(accepted, self, peer)
        with self.lock:
            displaced = self._make_room(one)
            if displaced is one:
                self.refused += 1
            else:
                self._held[one.peer] = one
                self._of_block[one.block] += 1
        if displaced is one:
            one.close()
            raise BlockingIOError
        if displaced is not None:
            displaced.end()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in ALIVE.items():  # where the system has them
            if hasattr(socket, name):
                one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return one, peer

    def _make_room(self, one: _Counted) -> _Counted | None:
        """Who gives way: None where there is room, the new one where nobody else may."""
        if self._of_block[one.block] >= self.each:
            candidates = [held for held in self._held.values() if held.block == one.block]
        elif len(self._held) >= (self.most if one.is_local else self.most - self.reserve):
            candidates = list(self._held.values())
        else:
            return None
        worth = [held.worth for held in candidates]
        if not candidates or min(worth) >= WATCHING:
            return one
        # Of several that are worth the least, one of the address that has most, the oldest first.
        lowest = min(worth)
        least = [held for held in candidates if held.worth == lowest]
        gives_way = max(least, key=lambda held: self._of_block[held.block])
        self._forget(gives_way)
        self.displaced += 1
        return gives_way

    def of(self, peer: Address) -> _Counted | None:
        with self.lock:
            return self._held.get(peer)

    def forget(self, one: _Counted) -> None:
        with self.lock:
            self._forget(one)

    def _forget(self, one: _Counted) -> None:
        if self._held.get(one.peer) is one:
            del self._held[one.peer]
            self._of_block[one.block] -= 1
            if not self._of_block[one.block]:
                del self._of_block[one.block]

    def moved(self, one: _Counted) -> None:
        """It has just been of use, so it is the last to give way among its like."""
        with self.lock:
            if self._held.pop(one.peer, None) is one:
                self._held[one.peer] = one


class _Counted(socket.socket):
    """``known``: its visitor has logged in, or needs no login. ``busy``: a request is answered."""

    def __init__(self, accepted: socket.socket, listening: BoundedSocket, peer: Any) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self.peer = address_of(peer)
        self.block = block_of(self.peer[0])
        self.is_local = is_loopback(self.peer[0])
        self.known = self.busy = False
        self._counts: BoundedSocket | None = listening

    @property
    def worth(self) -> int:
        """Idle without a login, busy without one, idle with one, ``WATCHING``."""
        return 2 * self.known + self.busy

    def end(self) -> None:
        """The event loop reads the end, and closes it."""
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        counts, self._counts = self._counts, None
        if counts is not None:
            counts.forget(self)
        super().close()


WATCHING = 3


def address_of(peer: Any) -> Address:
    return (str(peer[0]), int(peer[1])) if peer else ("", 0)


class Connections:
    """All connections of one server, by the address of their other end."""

    def __init__(self, socket: BoundedSocket, head_s: float = HEAD_S) -> None:
        self.head_s = head_s
        self._socket = socket
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
            self._is_busy(peer, True)

    def answered(self, peer: Any) -> None:
        if (one := self._of(peer)) is not None:
            one.expect_head(self.head_s)
            self._is_busy(peer, False)

    def knows(self, peer: Any) -> None:
        """This visitor has logged in, or needs no login: who has not gives way first."""
        if peer is not None and (held := self._socket.of(address_of(peer))) is not None:
            held.known = True

    def _is_busy(self, peer: Any, busy: bool) -> None:
        if (held := self._socket.of(address_of(peer))) is not None:
            held.busy = busy
            self._socket.moved(held)

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

    def data_received(self, data: bytes) -> None:
        """Close what is not HTTP in mid-answer: uvicorn would try to answer, and fail."""
        try:
            super().data_received(data)
        except h11.ProtocolError:
            self.abort()

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
    return type("ServerConnection", (Connection,), {"connections_of_server": connections})
