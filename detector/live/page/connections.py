"""Deadlines and limits of connections, against slow and idle clients.

uvicorn limits the size of a request's head, and closes idle connections after a response. This
module adds a deadline for the head, a limit on connections, and a way to close the connection of a
client that stopped reading. The limit counts sockets from ``accept`` on, so that unfinished TLS
handshakes cannot use up the run's descriptors.
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

from detector.live.page.access import to_block
from detector.live.page.binding import is_loopback

HEAD_S = 10.0  # time limit for a request's whole head, from connecting or from the last response
MOST = 256  # connections at the same time
MOST_PER_ADDRESS = 128  # connections from one address, which may be a proxy
RESERVE = 32  # connections reserved for clients on this machine
HEAD_BYTES = 16 << 10
# TCP probes: seconds to the first, seconds in between, number. They find a lost viewer in 60 s.
ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

Address = tuple[str, int]


class BoundedSocket(socket.socket):
    """Accepts up to ``most`` sockets, and up to ``each`` from one address. At a limit, it closes a
    socket of the lowest ``rank``; if all older sockets are ``known`` and ``busy``, it closes the
    new socket. The last ``reserve`` sockets are only for clients on this machine."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self.setblocking(False)
        self.most, self.each, self.reserve = MOST, MOST_PER_ADDRESS, RESERVE
        self.refused = self.displaced = 0  # new and older sockets that were closed for lack of room
        self.lock = threading.Lock()
        self._sockets: dict[Address, _CountedSocket] = {}  # least recently active first
        self._block_counts: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return len(self._sockets)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept like ``socket.accept``. Raises BlockingIOError if the new socket was closed."""
        accepted, peer = super().accept()
        new = _CountedSocket(accepted, self, peer)
        with self.lock:
            displaced = self._make_room(new)
            if displaced is new:
                self.refused += 1
            else:
                self._sockets[new.peer] = new
                self._block_counts[new.block] += 1
        if displaced is new:
            new.close()
            raise BlockingIOError
        if displaced is not None:
            displaced.end()
        new.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in ALIVE.items():  # some systems lack these options
            if hasattr(socket, name):
                new.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return new, peer

    def _make_room(self, new: _CountedSocket) -> _CountedSocket | None:
        """Return the socket to close; None if there is room. Forget it unless it is ``new``."""
        if self._block_counts[new.block] >= self.each:
            candidates = [held for held in self._sockets.values() if held.block == new.block]
        elif len(self._sockets) >= (self.most if new.is_local else self.most - self.reserve):
            candidates = list(self._sockets.values())
        else:
            return None
        rank = [held.rank for held in candidates]
        if not candidates or min(rank) >= WATCHING:
            return new
        # Choose by lowest rank, then by the address with most sockets, then by oldest activity.
        lowest = min(rank)
        least = [held for held in candidates if held.rank == lowest]
        displaced = max(least, key=lambda held: self._block_counts[held.block])
        self._forget(displaced)
        self.displaced += 1
        return displaced

    def get(self, peer: Address) -> _CountedSocket | None:
        with self.lock:
            return self._sockets.get(peer)

    def forget(self, held: _CountedSocket) -> None:
        with self.lock:
            self._forget(held)

    def _forget(self, held: _CountedSocket) -> None:
        if self._sockets.get(held.peer) is held:
            del self._sockets[held.peer]
            self._block_counts[held.block] -= 1
            if not self._block_counts[held.block]:
                del self._block_counts[held.block]

    def mark_active(self, held: _CountedSocket) -> None:
        with self.lock:
            if self._sockets.pop(held.peer, None) is held:
                self._sockets[held.peer] = held


class _CountedSocket(socket.socket):
    """An accepted socket. ``known``: its client may see the page. ``busy``: it serves a request."""

    def __init__(self, accepted: socket.socket, listening: BoundedSocket, peer: Any) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self.peer = to_address(peer)
        self.block = to_block(self.peer[0])
        self.is_local = is_loopback(self.peer[0])
        self.known = self.busy = False
        self._listening: BoundedSocket | None = listening

    @property
    def rank(self) -> int:
        """0: neither ``known`` nor ``busy``. 1: only ``busy``. 2: only ``known``. 3: both. Sockets
        of lower ranks are closed first."""
        return 2 * self.known + self.busy

    def end(self) -> None:
        """Shut down the socket; the event loop then closes it."""
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.forget(self)
        super().close()


WATCHING = 3  # the rank of a socket that is ``known`` and ``busy``


def to_address(peer: Any) -> Address:
    return (str(peer[0]), int(peer[1])) if peer else ("", 0)


class Connections:
    def __init__(self, socket: BoundedSocket) -> None:
        self.head_s = HEAD_S
        self._socket = socket
        self.cut = 0  # connections cut because they were too slow
        self._open: dict[Address, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: Connection, peer: Address) -> None:
        self._open[peer] = connection

    def closed(self, connection: Connection, peer: Address) -> None:
        if self._open.get(peer) is connection:
            del self._open[peer]

    def begin_request(self, peer: Any) -> None:
        if (connection := self._get(peer)) is not None:
            connection.expect_no_head()
            self._set_busy(peer, True)

    def end_request(self, peer: Any) -> None:
        if (connection := self._get(peer)) is not None:
            connection.expect_head(self.head_s)
            self._set_busy(peer, False)

    def mark_known(self, peer: Any) -> None:
        """Mark the client as logged in, or as needing no login."""
        if peer is not None and (held := self._socket.get(to_address(peer))) is not None:
            held.known = True

    def _set_busy(self, peer: Any, busy: bool) -> None:
        if (held := self._socket.get(to_address(peer))) is not None:
            held.busy = busy
            self._socket.mark_active(held)

    def cut_off(self, peer: Any) -> None:
        """Close a connection immediately, without its unsent data."""
        if (connection := self._get(peer)) is not None:
            self.cut += 1
            connection.abort()

    def cut_all(self) -> None:
        for connection in list(self._open.values()):
            connection.abort()

    def _get(self, peer: Any) -> Connection | None:
        return None if peer is None else self._open.get(tuple(peer))


class Connection(H11Protocol):
    """One connection, with deadlines. Subclasses set ``connections_of_server``."""

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
        """Abort if uvicorn raises, which may happen for data that is not HTTP."""
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
        self._deadline = asyncio.get_running_loop().call_later(within_s, self._cut_slow)

    def expect_no_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def abort(self) -> None:
        self.transport.abort()

    def _cut_slow(self) -> None:
        self._deadline = None
        if self._peer is not None:
            self.connections_of_server.cut_off(self._peer)


def make_protocol(connections: Connections) -> type[Connection]:
    return type("ServerConnection", (Connection,), {"connections_of_server": connections})
