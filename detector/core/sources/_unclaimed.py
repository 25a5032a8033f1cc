"""Explain why no source reads a spec."""

from __future__ import annotations

import difflib
import os
import re

from detector.core.errors import SourceError

LONGEST_NAME = 255  # bytes, on every file system of Linux
_LIVE = re.compile(r"\d{1,3}|/dev/video\d+|[a-z][a-z0-9+.-]*://.*", re.IGNORECASE | re.DOTALL)


def is_live(spec: str) -> bool:
    """Return whether it is a webcam (number or device) or a network address. ``./0`` is a file."""
    return _LIVE.fullmatch(spec) is not None


def refusal(spec: str) -> SourceError:
    """Return the error for a spec that no source claims: what is wrong with it, and the remedy."""
    if is_live(spec):  # the part that reads cameras is not installed
        why = "is a camera, but this installation cannot read cameras; reinstall detect-video"
    elif os.path.islink(spec):
        why = f"a dead link (to {os.readlink(spec)}); name the file itself"
    else:
        why = _missing(spec)
    return SourceError(f"{spec}: {why}")


def _missing(spec: str) -> str:
    folder, name = os.path.split(spec)
    if len(os.fsencode(name)) > LONGEST_NAME:
        return f"the name is too long: it has more than {LONGEST_NAME} bytes"
    if not name:
        return (
            "no such folder"
            if spec
            else "an empty name; give a video file, a picture or a folder of pictures"
        )
    if not os.path.isdir(folder or "."):
        return f"no such file: the folder {folder} does not exist either; check the path"
    close = difflib.get_close_matches(name, os.listdir(folder or "."), n=1)
    hint = (
        f"did you mean {os.path.join(folder, close[0])}?"
        if close
        else f"check the path ({os.path.abspath(spec)})"
    )
    return f"no such file; {hint}"
