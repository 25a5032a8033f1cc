"""Why no source reads a spec: names that lead nowhere."""

from __future__ import annotations

import difflib
import os

from detector.core.errors import SourceError
from detector.core.sources._forms import is_live

LONGEST_NAME = 255  # bytes, on every file system of Linux


def refusal(spec: str) -> SourceError:
    """The error for a spec that no source claims: what is wrong with it, and the cure."""
    if is_live(spec):  # what reads cameras was left out of this installation
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
