"""Fixtures of the tests of cameras."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.live import servers


@pytest.fixture
def web() -> Iterator[servers.HttpServer]:
    with servers.http() as server:
        yield server


@pytest.fixture
def local_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the time zone; it is UTC as the test begins."""

    def use(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    use("UTC")
    yield use
    monkeypatch.undo()
    time.tzset()
