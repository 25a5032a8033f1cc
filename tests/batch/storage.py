"""Local stores (moto's S3 server, an emulator of Google's) and a proxy that cuts connections."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from detector.batch.item import OpenModel, Task, open_model
from detector.batch.listing import look_at
from detector.batch.settings import as_plain, ask
from detector.core.sources import _storage
from tests.cli.small import write_network

MemoryFileSystem = pytest.importorskip(
    "fsspec.implementations.memory", reason="machine: fsspec is not installed (extras s3 and gs)"
).MemoryFileSystem
PATIENCE_S = 60.0
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
UNSET = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3")


class Wire:
    """A proxy that passes bytes between clients and a server, and counts the server's bytes.

    ``cut_at``: cut a connection after this many bytes from the server. ``cuts``: how many more
    connections to cut. ``ended``: how many were cut. ``dead``: close new connections at once.
    ``pause_s``: seconds to wait before each 16 KB.
    """

    def __init__(self, port: int) -> None:
        self.cut_at: int | None = None
        self.cuts = 0
        self.dead = False
        self.pause_s = 0.0
        self.received = self.ended = 0
        self.requests: list[bytes] = []  # first lines of requests
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
            threading.Thread(
                target=self._forward_requests, args=(client, server), daemon=True
            ).start()
            threading.Thread(
                target=self._forward_responses, args=(server, client), daemon=True
            ).start()

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if data[:4] in (b"GET ", b"HEAD", b"PUT ", b"POST", b"DELE"):
                    self.requests.append(data.split(b"\r\n")[0])
                server.sendall(data)
        _shut(server)

    def _forward_responses(self, server: socket.socket, client: socket.socket) -> None:
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
        self.received, self.requests = 0, []

    def close(self) -> None:
        self._listening.close()


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def s3_server() -> Iterator[int]:
    with _reserved_port() as port:
        words = ["moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with _serving(port, words, {"MOTO_S3_CUSTOM_ENDPOINTS": ""}):
            yield port


# By default gcsfs asks by gRPC what kind of bucket it is; the emulator does not support gRPC.
GOOGLE = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


@contextmanager
def google_server(bucket: str) -> Iterator[dict[str, str]]:
    """Start gcp-storage-emulator, and yield the environment variables that select it."""
    with _reserved_port() as port:
        words = ["gcp_storage_emulator", "start", "--host=127.0.0.1", f"--port={port}"]
        with _serving(port, [*words, "--in-memory", f"--default-bucket={bucket}"], {}):
            yield {**GOOGLE, "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Reserve a port, so that no other program gets it while a server starts. The server must set
    SO_REUSEADDR, as the servers of http.server do."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield int(reserved.getsockname()[1])


@contextmanager
def _serving(port: int, words: list[str], environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, f"{words[0]} ended"
                assert time.monotonic() < deadline, f"{words[0]} does not answer"
                time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


class Keys(NamedTuple):
    """Credentials as IAM issues them. ``token``: the session token of an assumed role."""

    id: str
    secret: str
    token: str = ""

    def environment(self) -> dict[str, str]:
        variables = {"AWS_ACCESS_KEY_ID": self.id, "AWS_SECRET_ACCESS_KEY": self.secret}
        return {**variables, "AWS_SESSION_TOKEN": self.token} if self.token else variables


class Guard:
    """Manages users of moto's server. After ``close``, that server checks each request's rights."""

    def __init__(self, port: int) -> None:
        import boto3

        self._url = f"http://127.0.0.1:{port}"
        self._session = boto3.Session(
            ENVIRONMENT["AWS_ACCESS_KEY_ID"], ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
        )

    def _ask(self, service: str) -> Any:
        return self._session.client(service, endpoint_url=self._url, region_name="us-east-1")

    def add_user(self, name: str, *actions: str) -> Keys:
        iam = self._ask("iam")
        iam.create_user(UserName=name)
        if actions:
            iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=_allow(*actions))
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return Keys(key["AccessKeyId"], key["SecretAccessKey"])

    def take_role(self, name: str, *actions: str) -> Keys:
        iam = self._ask("iam")
        role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=_allow("sts:AssumeRole"))
        iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=_allow(*actions))
        assumed = self._ask("sts").assume_role(RoleArn=role["Role"]["Arn"], RoleSessionName="here")
        key = assumed["Credentials"]
        return Keys(key["AccessKeyId"], key["SecretAccessKey"], key["SessionToken"])

    def open(self) -> None:
        self._set_open_requests(b"inf")

    def close(self) -> None:
        self._set_open_requests(b"0")

    def forget_key(self, name: str, keys: Keys) -> None:
        self.open()
        self._ask("iam").delete_access_key(UserName=name, AccessKeyId=keys.id)
        self.close()

    def _set_open_requests(self, requests: bytes) -> None:
        requests = urllib.request.Request(
            f"{self._url}/moto-api/reset-auth", requests, {"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(requests, timeout=PATIENCE_S).close()


def _allow(*actions: str) -> str:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def use_store(monkeypatch: Any, port: int) -> Any:
    import s3fs

    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    _storage._open.cache_clear()
    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)


@contextmanager
def small_model(folder: Path) -> Iterator[OpenModel]:
    write_network(folder)
    flags = {"model": str(folder / "x.cfg"), "engine": "null", "no_video": True}
    config, _ = ask([], flags, None)
    opened, _ = open_model(as_plain(config), [], resolves=True)
    yield opened
    opened.close()


def task_of(address: str, name: str = "a.mp4") -> Task:
    return Task(name=name, path=address, version=look_at(address).version)


def fake_store(monkeypatch: Any, scheme: str = "gs") -> Any:
    class Memory(MemoryFileSystem):
        store: ClassVar[dict[str, Any]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]

        def find(self, path: str, **options: Any) -> Any:
            objects = super().find(path, **{**options, "detail": True})
            return {name.lstrip("/"): info for name, info in objects.items()}

    memory = Memory(skip_instance_cache=True)
    opened = {scheme: memory}
    monkeypatch.setattr("detector.core.sources._storage._open", lambda name: opened[name])
    return memory
