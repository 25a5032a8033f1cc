"""Several errors at once: the first is raised, and the others are its notes, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from detector.core.errors import DetectVideoError


@contextmanager
def collect(errors: list[DetectVideoError]) -> Iterator[None]:
    try:
        yield
    except DetectVideoError as error:
        errors.append(error)


def raise_all(errors: Sequence[DetectVideoError]) -> None:
    for text in [*dict.fromkeys(map(str, errors))][1:]:
        errors[0].add_note(text)
    if errors:
        raise errors[0]
