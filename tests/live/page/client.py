"""Asks a page over a real socket, as a browser or an attacker would."""

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
    """Requests to one page, each on a connection of its own. ``headers`` go with all of them."""

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
        one = socket.socket()
        if receive_buffer is not None:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        one.settimeout(PATIENCE_S)
        one.connect(("127.0.0.1", self.port))
        return one

    def raw(self, text: bytes) -> bytes:
        with self.connect() as one:
            one.sendall(text)
            return until_closed(one)

    def stream(self, path: str, receive_buffer: int | None = None) -> Stream:
        one = self.connect(receive_buffer)
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        one.sendall("\r\n".join([*lines, "", ""]).encode())
        return Stream(one)


class Stream:
    def __init__(self, one: socket.socket) -> None:
        self.socket, self._file = one, one.makefile("rb")
        head = b"".join(iter(self._file.readline, b"\r\n")).decode()
        self.status = int(head.split()[1])
        self.head = head.lower()

    def chunks(self) -> Iterator[bytes]:
        while size := int(self._file.readline() or b"0", 16):
            yield self._file.read(size)
            self._file.readline()

    def parts(self) -> Iterator[tuple[str, int, bytes]]:
        for chunk in self.chunks():
            head, found, rest = chunk.partition(b"\r\n\r\n")
            if found:
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


def until_closed(one: socket.socket) -> bytes:
    got = b""
    try:
        while piece := one.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got
