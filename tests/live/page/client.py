"""A client that talks to a page over a real socket, as a browser or an attacker would."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.waiting import PATIENCE_S


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A client of one page. Each request opens a new connection and sends ``headers``."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        self.port, self.headers = port, dict(headers or {})

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, names, answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: str = "{}", **headers: str) -> Answer:
        return self.ask(path, "POST", body, {"Content-Type": "application/json", **headers})

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(PATIENCE_S)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def raw(self, text: bytes) -> bytes:
        with self.connect() as connection:
            connection.sendall(text)
            return until_closed(connection)

    def stream(self, path: str, receive_buffer: int | None = None) -> Stream:
        connection = self.connect(receive_buffer)
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return Stream(connection)


class Stream:
    def __init__(self, connection: socket.socket) -> None:
        self.socket, self._file = connection, connection.makefile("rb")
        head = b"".join(iter(self._file.readline, b"\r\n")).decode()
        self.status = int(head.split()[1])
        self.head = head.lower()

    def chunks(self) -> Iterator[bytes]:
        while size := int(self._file.readline() or b"0", 16):
            yield self._file.read(size)
            self._file.readline()

    def parts(self) -> Iterator[tuple[str, int, bytes]]:
        for chunk in self.chunks():
            head, separator, rest = chunk.partition(b"\r\n\r\n")
            if separator:
                length = int(re.search(rb"Content-Length: (\d+)", head)[1])
                camera = re.search(rb"X-Camera: (\S+)", head)[1].decode()
                number = int(re.search(rb"X-Number: (\d+)", head)[1])
                assert rest[length:] == b"\r\n--detect-video-picture\r\n"
                yield camera, number, rest[:length]

    def messages(self) -> Iterator[tuple[str, Any, int | None]]:
        for chunk in self.chunks():
            fields = dict(line.split(": ", 1) for line in chunk.decode().strip().split("\n"))
            if "event" in fields:
                number = int(fields["id"]) if "id" in fields else None
                yield fields["event"], json.loads(fields["data"]), number

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def until_closed(connection: socket.socket) -> bytes:
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data
