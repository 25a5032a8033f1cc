"""An MQTT broker that is silent, floods, disconnects or sends invalid data: ``kind`` says which.

with hostile_broker("floods") as broker: broker.port, broker.connections
"""

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

WELCOME = b"\x20\x02\x00\x00"
CONNECT, PUBLISH = 0x10, 0x30
FLOOD = 64 << 10  # bytes that are sent at once


class Visit:
    """One connection. ``send`` raises OSError after the peer has left or the test has ended."""

    def __init__(self, connection: socket.socket, over: threading.Event, number: int) -> None:
        self.socket, self.over, self.number = connection, over, number
        connection.settimeout(0.2)

    def read(self) -> bytes:
        while not self.over.is_set():
            with suppress(TimeoutError):
                return self.socket.recv(FLOOD)
        return b""

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if self.over.is_set():
                raise ConnectionAbortedError
            with suppress(TimeoutError):
                rest = rest[self.socket.send(rest) :]

    def wait(self) -> None:
        while self.read():
            pass

    def flood(self, packets: Iterator[bytes]) -> None:
        while True:
            batch = bytearray()
            while len(batch) < FLOOD:
                batch += next(packets)
            self.send(batch)


def length(number: int) -> bytes:
    """Encode the remaining length of a packet, 7 bits per byte."""
    encoded = bytearray()
    while True:
        number, low = number >> 7, number & 127
        encoded.append(low | (128 if number else 0))
        if not number:
            return bytes(encoded)


def published(mid: int, qos: int, payload: bytes, topic: bytes = b"t") -> bytes:
    body = struct.pack("!H", len(topic)) + topic
    body += (struct.pack("!H", mid & 0xFFFF or 1) if qos else b"") + payload
    return bytes([PUBLISH | qos << 1]) + length(len(body)) + body


def _greet(visit: Visit) -> None:
    visit.read()
    visit.send(WELCOME)


def _answer_each(data: bytes) -> Callable[[Visit], None]:
    """Greet, then answer every packet with ``data``."""

    def behave(visit: Visit) -> None:
        _greet(visit)
        while visit.read():
            visit.send(data)

    return behave


def _send(data: bytes, leave: bool = False) -> Callable[[Visit], None]:
    def behave(visit: Visit) -> None:
        visit.read()
        visit.send(data)
        if not leave:
            visit.wait()

    return behave


def _flood(packets: Callable[[], Iterator[bytes]]) -> Callable[[Visit], None]:
    def behave(visit: Visit) -> None:
        _greet(visit)
        visit.flood(packets())

    return behave


def _repeat(data: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: (data for _ in count())


def _noise(visit: Visit) -> None:
    chance = random.Random(visit.number)
    if chance.random() < 0.7:
        _greet(visit)
    else:
        visit.read()
    for _ in range(chance.randint(1, 50)):
        head = chance.choice((0x20, 0x30, 0x32, 0x34, 0x40, 0x50, 0x62, 0x70, 0x90, 0xB0, 0xD0))
        body = chance.randbytes(chance.choice((0, 1, 2, 3, 4, 40, 4000)))
        packet = bytes([head]) + length(len(body)) + body
        visit.send(packet if chance.random() < 0.7 else chance.randbytes(len(packet)))
    if chance.random() < 0.5:
        visit.wait()


def _drip(visit: Visit) -> None:
    visit.read()
    for byte in WELCOME + bytes(1000):
        visit.send(bytes([byte]))
        visit.over.wait(0.2)


def _leave(visit: Visit) -> None:
    pass


def _leave_after_greeting(visit: Visit) -> None:
    _greet(visit)


def _leave_at_each_packet(visit: Visit) -> None:
    _greet(visit)
    visit.read()


def _never_read(visit: Visit) -> None:
    _greet(visit)
    visit.over.wait()


def _ask_for_an_older_version(visit: Visit) -> None:
    """Refuse the protocol version. paho reconnects in its callback, but the port is closed."""
    visit.read()
    visit.send(b"\x20\x02\x00\x01")


def _acknowledge(visit: Visit) -> None:
    """Acknowledge as a broker should, then disconnect, every time."""
    _greet(visit)
    visit.read()
    visit.send(b"".join(b"\x40\x02" + struct.pack("!H", mid) for mid in range(1, 50)))


KINDS: dict[str, Callable[[Visit], None]] = {
    "never answers": Visit.wait,
    "leaves at once": _leave,
    "leaves after its greeting": _leave_after_greeting,
    "leaves at each packet": _leave_at_each_packet,
    "acknowledges and leaves": _acknowledge,
    "never reads": _never_read,
    "never acknowledges": _answer_each(b""),
    "drips": _drip,
    "noise": _noise,
    "another protocol": _send(b"HTTP/1.1 400 Bad Request\r\n\r\n", leave=True),
    "zeros": _send(bytes(4096)),
    "truncated greeting": _send(b"\x20\x02\x00"),
    "truncated greeting, then leaves": _send(b"\x20\x02\x00", leave=True),
    "empty greeting": _send(b"\x20\x00"),
    "long greeting": _send(b"\x20\x05\x00\x00\x00\x00\x00"),
    "packet length of five bytes": _send(b"\x20\xff\xff\xff\xff\x7f"),
    "older version": _ask_for_an_older_version,
    **{f"code {code}": _send(bytes([0x20, 2, 0, code])) for code in (2, 3, 4, 5, 6, 127, 128, 255)},
    "a packet of 256 MB": _flood(lambda: _huge()),
    "greetings": _flood(_repeat(WELCOME)),
    "messages": _flood(_repeat(published(0, 0, bytes(100)))),
    "messages of 1 MB": _flood(_repeat(published(0, 0, bytes(1 << 20)))),
    "messages with QoS 1": _flood(lambda: (published(n, 1, b"x") for n in count(1))),
    "messages with QoS 2": _flood(lambda: (published(n, 2, bytes(4000)) for n in count(1))),
    "messages with the invalid QoS 3": _flood(_repeat(published(1, 3, b""))),
    "a topic that is too long": _answer_each(b"\x30\x04\xff\xfftt"),
    "a topic of invalid UTF-8": _answer_each(published(0, 0, b"", b"\xff\xfe")),
    "pings": _flood(_repeat(b"\xc0\x00")),
    "ping responses": _flood(_repeat(b"\xd0\x00")),
    "acknowledgements of unknown messages": _flood(
        lambda: (b"\x40\x02" + struct.pack("!H", n & 0xFFFF) for n in count(1))
    ),
    "receipts": _flood(lambda: (b"\x50\x02" + struct.pack("!H", n & 0xFFFF) for n in count(1))),
    "releases": _flood(lambda: (b"\x62\x02" + struct.pack("!H", n & 0xFFFF) for n in count(1))),
    "truncated acknowledgements": _answer_each(b"\x40\x00\x40\x01\x00"),
    "an unknown command": _answer_each(b"\x00\x00"),
    "subscriptions": _answer_each(b"\x90\x03\x00\x01\x80\xb0\x00"),
    "disconnects": _answer_each(b"\xe0\x00"),
}
# With these kinds the connection may stay open, because they do no harm.
PATIENT = {
    "never answers", "never reads", "never acknowledges", "drips", "truncated greeting",
    "a topic that is too long", "a topic of invalid UTF-8",
}  # fmt: skip


def _huge() -> Iterator[bytes]:
    yield b"\x30\xff\xff\xff\x7f"
    while True:
        yield bytes(FLOOD)


class HostileBroker:
    def __init__(self, kind: str) -> None:
        self.connections, self._behave = 0, KINDS[kind]
        self._only_once = self._behave is _ask_for_an_older_version
        self._over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.1)
        self.port: int = self._listening.getsockname()[1]
        self._visits: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self.connections += 1
            if self._only_once:
                self._listening.close()
            visit = Visit(connection, self._over, self.connections)
            thread = threading.Thread(target=self._serve, args=(visit,), daemon=True)
            self._visits.append(thread)
            thread.start()

    def _serve(self, visit: Visit) -> None:
        with visit.socket, suppress(OSError):
            self._behave(visit)

    @property
    def is_gone(self) -> bool:
        return self._only_once and self.connections > 0

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._listening.close()
        for thread in self._visits:
            thread.join()


@contextmanager
def hostile_broker(kind: str) -> Iterator[HostileBroker]:
    broker = HostileBroker(kind)
    try:
        yield broker
    finally:
        broker.close()
