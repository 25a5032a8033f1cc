"""Check that a file with its final name is complete: it can be read to its end."""

import csv
import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path


def why_incomplete(root: Path, name: str) -> str | None:
    """Return why ROOT/NAME is incomplete. None: it is complete, a temporary file or not checked.

    The suffix selects the check. A file that fails this check may pass the one for its content,
    since ``-o`` can give a file a wrong suffix (``report RUN -o x.csv`` writes a page).
    """
    path = root / name
    check = _CHECKS.get(path.suffix.lower())
    is_temporary = any(".partial" in part or part.startswith(".") for part in Path(name).parts)
    if check is None or is_temporary or not path.is_file() or path.is_symlink():
        return None
    wrong = _run_check(check, path)
    other = _check_by_content(path)
    if wrong is not None and other is not None and _run_check(other, path) is None:
        return None
    return wrong


def _run_check(check: Callable[[Path], str | None], path: Path) -> str | None:
    try:
        return check(path)
    except Exception as error:  # a damaged file can cause many types of errors
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _check_by_content(path: Path) -> Callable[[Path], str | None] | None:
    with path.open("rb") as file:
        start = file.read(16)
    return next((check for begins, check in _BEGINNINGS.items() if start.startswith(begins)), None)


def _document(path: Path) -> str | None:
    """Require a final line end, too: JSONL that is cut off after its first object is valid JSON."""
    return _lines(path) or _json(path)


def _json(path: Path) -> str | None:
    json.loads(path.read_bytes())
    return None


def _rows(path: Path) -> str | None:
    for line in path.read_bytes().splitlines():
        json.loads(line)
    return _lines(path)


def _csv(path: Path) -> str | None:
    data = path.read_text(encoding="utf-8")
    widths = {len(row) for row in csv.reader(data.splitlines())}
    if len(widths) > 1:
        return f"rows of {sorted(widths)} fields"
    return _lines(path)


def _lines(path: Path) -> str | None:
    data = path.read_bytes()
    return None if not data or data.endswith(b"\n") else "its last line has no end"


def _zip(path: Path) -> str | None:
    with zipfile.ZipFile(path) as file:
        wrong = file.testzip()
    return None if wrong is None else f"{wrong} is damaged"


def _gzip(path: Path) -> str | None:
    with gzip.open(path) as file:
        file.read()
    return None


def _video(path: Path) -> str | None:
    import av

    with av.open(str(path)) as container:
        frames = sum(1 for _ in container.decode(video=0))
    return None if frames else "a video without a frame"


def _picture(path: Path) -> str | None:
    import cv2

    return None if cv2.imread(str(path)) is not None else "no picture"


def _onnx(path: Path) -> str | None:
    import onnx

    onnx.checker.check_model(onnx.load(str(path)))
    return None


def _page(path: Path) -> str | None:
    is_complete = path.read_bytes().endswith((b"</html>\n", b"</svg>", b"</svg>\n"))
    return None if is_complete else "it has no end"


_CHECKS = {
    ".json": _json,
    ".jsonl": _rows,
    ".csv": _csv,
    ".txt": _lines,
    ".npz": _zip,
    ".gz": _gzip,
    ".mp4": _video,
    ".png": _picture,
    ".jpg": _picture,
    ".onnx": _onnx,
    ".html": _page,
    ".svg": _page,
}
_BEGINNINGS = {
    b"<!doctype html>": _page,
    b"{": _document,
    b"\x1f\x8b": _gzip,
    b"PK": _zip,
    b"\x08": _onnx,  # the tag of ``ir_version``, the first field of an ONNX model
}
