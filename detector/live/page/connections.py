"""Deadlines and limits of connections, below HTTP, so that slow or idle clients hold nothing for
long.

uvicorn limits the size of a request's head and ends idle connections after a response. This module
adds the rest: a deadline for the first head, a limit on connections (counted from accept on, so
that half-done TLS handshakes take no descriptors from the run), and an immediate end for a client
that stopped reading. The subclass relies only on ``asyncio.Protocol``.
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

HEAD_S = 10.0  # to receive a whole head, from the connection or the last response
MOST = 256  # connections at once
OF_ONE_ADDRESS = 128  # of them from one address, which may be a proxy
RESERVE = 32  # of them for clients on this machine
HEAD_BYTES = 16 << 10
# Seconds, seconds, probes: detect within a minute that a viewer of a silent camera has gone.
ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

Address = tuple[str, int]


class BoundedSocket(socket.socket):
    """A listening socket that keeps at most ``most`` accepted sockets open, ``each`` from one
    address. When full, it closes the longest idle one, those without a login first, or else the new
    one. ``reserve`` places are for this machine's health checks."""

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
        self._held: dict[Address, _Counted] = {}  # least recently active first
        self._of_block: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return len(self._held)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept like ``socket.accept``. Raises BlockingIOError if the new one was closed."""
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
        for name, value in ALIVE.items():  # not on every system
            if hasattr(socket, name):
                one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return one, peer

    def _make_room(self, one: _Counted) -> _Counted | None:
        """Pick the connection to close: None if there is room, ``one`` if no other may go."""
        if self._of_block[one.block] >= self.each:
            candidates = [held for held in self._held.values() if held.block == one.block]
        elif len(self._held) >= (self.most if one.is_local else self.most - self.reserve):
            candidates = list(self._held.values())
        else:
            return None
        worth = [held.worth for held in candidates]
        if not candidates or min(worth) >= WATCHING:
            return one
        # Of the least worthy ones, the oldest of the address with the most connections.
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
        with self.lock:
            if self._held.pop(one.peer, None) is one:
                self._held[one.peer] = one


class _Counted(socket.socket):
    """An accepted socket. ``known``: the client needs no login, or has one. ``busy``: in a
    request."""

    def __init__(self, accepted: socket.socket, listening: BoundedSocket, peer: Any) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self.peer = address_of(peer)
        self.block = block_of(self.peer[0])
        self.is_local = is_loopback(self.peer[0])
        self.known = self.busy = False
        self._counts: BoundedSocket | None = listening

    @property
    def worth(self) -> int:
        """Idle without a login (0), busy without one, idle with one, ``WATCHING`` (3)."""
        return 2 * self.known + self.busy

    def end(self) -> None:
        """Shut down; the event loop then reads the end of the stream and closes it."""
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
    def __init__(self, socket: BoundedSocket, head_s: float = HEAD_S) -> None:
        self.head_s = head_s
        self._socket = socket
        self.cut = 0  # connections that were too slow
        self._open: dict[Address, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, one: Connection, peer: Address) -> None:
        self._open[peer] = one

    def closed(self, one: Connection, peer: Address) -> None:
        if self._open.get(peer) is one:
            del self._open[peer]

    def answering(self, peer: Any) -> None:
        """Stop the deadline of the head: a request's head has arrived."""
        if (one := self._of(peer)) is not None:
            one.expect_no_head()
            self._is_busy(peer, True)

    def answered(self, peer: Any) -> None:
        if (one := self._of(peer)) is not None:
            one.expect_head(self.head_s)
            self._is_busy(peer, False)

    def knows(self, peer: Any) -> None:
        """Mark the client as logged in, or as needing no login: others are closed first."""
        if peer is not None and (held := self._socket.of(address_of(peer))) is not None:
            held.known = True

    def _is_busy(self, peer: Any, busy: bool) -> None:
        if (held := self._socket.of(address_of(peer))) is not None:
            held.busy = busy
            self._socket.moved(held)

    def cut_off(self, peer: Any) -> None:
        """Close a connection at once; unsent data is dropped."""
        if (one := self._of(peer)) is not None:
            self.cut += 1
            one.abort()

    def cut_all(self) -> None:
        for one in list(self._open.values()):
            one.abort()

    def _of(self, peer: Any) -> Connection | None:
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
        """Abort at data that is not HTTP: uvicorn would fail to answer during a response."""
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
