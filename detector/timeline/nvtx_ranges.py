"""NVTX: one push/pop range per span on its own thread, in the domain ``detect-video``.

A range's name is the stage, its payload the frame or batch number, its category the kind of span.
When no tool is attached, nvtx hands out a domain that does nothing. Then no range object is made at
all, and a span pays for one ``is not None``.
"""

from __future__ import annotations

from typing import Any

DOMAIN = "detect-video"

_COLORS = {"work": "green", "wait_input": "yellow", "wait_output": "orange"}


class ThreadRange:
    """The ranges of one span on one thread. Attributes are prebuilt (70 ns a range instead of 900)
    and, since their payload changes with each push, never shared between threads.
    """

    __slots__ = ("_attributes", "_push", "pop")

    def __init__(self, domain: Any, stage: str, kind: str) -> None:
        self._attributes = domain.get_event_attributes(
            message=stage, color=_COLORS.get(kind, "gray"), category=kind, payload=0
        )
        self._push = domain.push_range
        self.pop = domain.pop_range

    def push(self, index: int) -> None:
        self._attributes.payload = index
        self._push(self._attributes)


def open_domain() -> Any | None:
    """The NVTX domain, or None where no tool is attached (or nvtx is not installed)."""
    try:
        import nvtx
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN)
    if (
        domain.get_event_attributes(message="probe") is None
    ):  # what the stand-in without a tool answers
        return None
    return domain
