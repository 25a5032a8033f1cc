"""A store on this machine (moto's S3 server, a process), and a wire to it that can be cut."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from fsspec.implementations.memory import MemoryFileSystem

from detector.sources._storage import forget_stores

PATIENCE_S = 60.0
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
GONE = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3")


class Wire:
    """Passes bytes between whoever connects and a server, and counts what came from there.

    ``cut_at``: every connection is reset once so many bytes came from the server, ``cuts`` times in
    all (``ended`` counts them). ``dead``: what is connected is closed at once. ``pause_s``: before
    each 16 KB.
    """

    def __init__(self, port: int) -> None:
        self.cut_at: int | None = None
        self.cuts = 0
        self.dead = False
        self.pause_s = 0.0
        self.received = self.ended = 0
        self.asked: list[bytes] = []  # first lines of requests
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self.dead:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()
            threading.Thread(target=self._pass_back, args=(server, client), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if data[:4] in (b"GET ", b"HEAD", b"PUT ", b"POST", b"DELE"):
                    self.asked.append(data.split(b"\r\n")[0])
                server.sendall(data)
        _shut(server)

    def _pass_back(self, server: socket.socket, client: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while not self.dead and (data := server.recv(1 << 14)):
                time.sleep(self.pause_s)
                passed += len(data)
                self.received += len(data)
                if self.cut_at is not None and passed > self.cut_at and self.cuts > 0:
                    self.cuts -= 1
                    self.ended += 1
                    break
                client.sendall(data)
        _shut(client)
        _shut(server)

    def reset(self) -> None:
        self.cut_at, self.cuts, self.dead, self.pause_s = None, 0, False, 0.0
        self.received, self.asked = 0, []

    def close(self) -> None:
        self._listening.close()


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def s3_server() -> Iterator[int]:
    """Its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MOTO_S3_CUSTOM_ENDPOINTS": ""},
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, "moto's server ended"
                assert time.monotonic() < deadline, "moto's server does not answer"
                time.sleep(0.05)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def use_store(monkeypatch: Any, port: int) -> Any:
    """s3:// means this server from now on. Returns s3fs on it."""
    import s3fs

    for name in GONE:
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    forget_stores()
    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)


def fake_store(monkeypatch: Any, scheme: str = "gs") -> Any:
    """A store in memory, in place of the library that a scheme has."""

    class Memory(MemoryFileSystem):
        store: ClassVar[dict[str, Any]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]

        def find(self, path: str, **options: Any) -> Any:
            found = super().find(path, **{**options, "detail": True})
            return {name.lstrip("/"): info for name, info in found.items()}

    memory = Memory(skip_instance_cache=True)
    opened = {scheme: memory}
    monkeypatch.setattr("detector.sources._storage._open", lambda name: opened[name])
    return memory
