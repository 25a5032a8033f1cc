"""Push and pop an NVTX range for each call of a span, in the domain ``detect-video``.

A range is named after its stage. Its payload is the number of the frame or batch, and its category
is the kind of span. If no tool is attached, nvtx returns a domain that does nothing. Then no range
object is created, and a span only pays for one ``is not None``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

DOMAIN = "detect-video"

TOOL = "NVTX_INJECTION64_PATH"
"""nsys and ncu put the path of their library into this variable."""

_COLORS = {"work": "green", "wait_input": "yellow", "wait_output": "orange"}


class ThreadRange:
    """Pushes the ranges of one span. Its ``attributes`` are built once, so that a range takes 70 ns
    instead of 900. Each thread needs its own object: a span sets the payload before a push."""

    __slots__ = ("attributes", "pop", "push")

    def __init__(self, domain: Any, stage: str, kind: str) -> None:
        self.attributes = domain.get_event_attributes(
            message=stage, color=_COLORS.get(kind, "gray"), category=kind, payload=0
        )
        self.push, self.pop = domain.push_range, domain.pop_range


class Attached(NamedTuple):
    """``domain``: None unless a tool records it. ``lost``: why an attached tool records nothing."""

    domain: Any | None
    lost: str | None = None


def attach() -> Attached:
    """Return the domain if a tool is attached. Slow: call it once per run, not per range."""
    tool = os.environ.get(TOOL)
    try:
        import nvtx
    except ImportError as error:
        return Attached(None, tool and f"nvtx cannot be imported ({error}); run: pip install nvtx")
    if not nvtx.enabled():
        return Attached(None, tool and "NVTX_DISABLE is set: unset NVTX_DISABLE")
    domain = nvtx.get_domain(DOMAIN)
    if domain.get_event_attributes(message="probe") is not None:
        return Attached(domain)
    if tool is None:  # the domain is nvtx's stand-in, which does nothing
        return Attached(None)
    if not Path(tool).is_file():
        return Attached(None, f"{tool} does not exist: unset {TOOL}, or attach nsys again")
    return _attach_unchecked(nvtx)


def _attach_unchecked(nvtx: Any) -> Attached:
    """Return the domain without checking whether the tool records it. nvtx checks with
    nvtxDomainIsEnabled, which is newer than the tools of 2022 to 2024: Nsight Systems 2022.4.2,
    2023.4.4 and 2024.2.3 record a domain but report it as disabled (measured by
    ``scripts/nsys_check``; github.com/NVIDIA/NVTX issue 126). So we build the domain as
    ``nvtx.Domain`` does, without the check. If the tool has switched NVTX off, a range costs a call
    that returns at once."""
    try:
        from nvtx._lib import lib

        domain: Any = object.__new__(lib.Domain)
        domain.handle = lib.DomainHandle(DOMAIN)
        domain.__init__(DOMAIN)
        ThreadRange(domain, "probe", "work")  # fails if a later nvtx has renamed an attribute
    except (ImportError, AttributeError, TypeError) as error:
        version = getattr(nvtx, "__version__", "of this version")
        return Attached(
            None,
            f"nvtx {version} does not reach the profiler ({error}); use a newer nsys, or run: "
            "pip install 'nvtx>=0.2.13,<0.2.18'",
        )
    return Attached(domain)


def warning_of(attached: Attached) -> str | None:
    """Return the warning for a user whose tool would record nothing."""
    if attached.lost is None:
        return None
    return f"a profiler is attached ({TOOL}) but would record no ranges: {attached.lost}"
