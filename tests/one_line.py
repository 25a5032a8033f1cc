"""Assertions about error messages."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def one_line_error(kind: type[Exception], *parts: str) -> Iterator[None]:
    """Assert that the block raises ``kind`` with one line of text that contains all parts."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert message.isprintable(), message
    for part in parts:
        assert part in message, message
