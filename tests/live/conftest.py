"""Fixtures for the tests of live runs."""

from collections.abc import Iterator

import pytest

from tests.live import servers


@pytest.fixture
def web() -> Iterator[servers.HttpServer]:
    with servers.http() as server:
        yield server


@pytest.fixture
def notices() -> list[str]:
    """An empty list for the lines that a part of the program reports."""
    return []
