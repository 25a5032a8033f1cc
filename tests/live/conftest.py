"""Fixtures of the tests of cameras."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live import servers


@pytest.fixture
def web() -> Iterator[servers.HttpServer]:
    with servers.http() as server:
        yield server
