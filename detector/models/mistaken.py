"""Files that are often taken for a model: what their first bytes say they are."""

from __future__ import annotations

START_BYTES = 512  # enough for every one of them


def mistaken(start: bytes) -> str | None:
    """What a file with this beginning is, as words after its name; None where it may be a model."""
    if not start:
        return "is empty"
    if start.startswith(b"version https://git-lfs"):
        return "is a pointer of git LFS, not the file itself"
    if start.lstrip()[:1] == b"<":
        return "is a web page, not a model"
    return None
