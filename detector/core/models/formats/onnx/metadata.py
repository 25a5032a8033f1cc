"""The metadata that exporters add to a graph: task, class names, stride, input size and NMS. The
values are texts that look like Python or JSON. They are parsed, never evaluated."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from detector.core.errors import ModelError, UsageError
from detector.core.errors.parsing import parse_json, quote

MAX_TEXT = 1 << 20  # characters in a value
MAX_CLASSES = 100_000
MAX_NAME = 200  # characters in a class name
MAX_SIDE = 16384
MAX_STRIDE = 2048


@dataclass(frozen=True, slots=True)
class Metadata:
    """A value that the file lacks is None, "" or False. ``imgsz``: (height, width)."""

    description: str = ""
    names: tuple[str, ...] | None = None
    stride: int | None = None
    imgsz: tuple[int, int] | None = None
    nms: bool = False
    end2end: bool = False

    @property
    def finished(self) -> bool:
        """Whether the metadata states that outputs are final detections."""
        return self.nms or self.end2end


def read_metadata(path: str, entries: Mapping[str, str]) -> Metadata:
    """Parse metadata. Raises ModelError for another task than detection; ignores invalid values."""
    task = str(entries.get("task", "detect")).strip().lower()
    if task not in ("detect", ""):
        raise ModelError(
            f"{path}: is a model for the task {quote(task)}; only detection is supported: export "
            "one whose task is detect"
        )
    arguments = _parse_literal(entries.get("args", ""))
    nms = arguments.get("nms") if isinstance(arguments, dict) else None
    return Metadata(
        description=str(entries.get("description", ""))[:200],
        names=_parse_names(_parse_literal(entries.get("names", "")))
        or _parse_names(entries.get("character", "")[:MAX_TEXT].splitlines()),  # RapidAI's key
        stride=_parse_stride(_parse_literal(entries.get("stride", ""))),
        imgsz=_parse_size(_parse_literal(entries.get("imgsz", ""))),
        nms=bool(nms) or _parse_literal(entries.get("nms", "")) is True,
        end2end=_parse_literal(entries.get("end2end", "")) is True,
    )


def _parse_literal(text: str) -> object:
    text = text.strip()
    if not text or len(text) > MAX_TEXT:
        return None
    try:
        with warnings.catch_warnings():  # Python's compiler warns of backslashes
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        pass
    try:
        value: object = parse_json(text, "metadata")
    except UsageError:
        return None
    return value


def _parse_names(value: object) -> tuple[str, ...] | None:
    if isinstance(value, dict):
        try:
            numbered = {int(key): name for key, name in value.items()}
        except (TypeError, ValueError, OverflowError):
            return None
        if numbered.keys() != set(range(len(numbered))):
            return None
        value = [numbered[key] for key in range(len(numbered))]
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_CLASSES:
        return None
    if any(isinstance(name, list | tuple | dict | set) for name in value):
        return None
    # Unprintable characters are removed, since names go into tables, file names and pictures.
    printable = [
        "".join(c for c in str(name)[:MAX_NAME] if c.isprintable()).strip() for name in value
    ]
    return tuple(name or f"class{at}" for at, name in enumerate(printable))


def _parse_stride(value: object) -> int | None:
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(item, int | float) for item in value)
    ):
        value = max(value)
    return int(value) if isinstance(value, int | float) and 1 <= value <= MAX_STRIDE else None


def _parse_size(value: object) -> tuple[int, int] | None:
    if isinstance(value, int):
        value = [value, value]
    if (
        not isinstance(value, list | tuple)
        or len(value) != 2
        or not all(isinstance(side, int) for side in value)
    ):
        return None
    height, width = value
    return (height, width) if 0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE else None
