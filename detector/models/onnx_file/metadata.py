"""What exporters write beside the graph: names, stride, input size, task. Read as data, never evaluated."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detector.errors import ModelError

MAX_TEXT = 1 << 20
MAX_CLASSES = 100_000
MAX_SIDE = 8192


@dataclass(frozen=True, slots=True)
class Metadata:
    """Keys that are absent are None or empty. ``imgsz``: (height, width)."""

    description: str = ""
    names: tuple[str, ...] | None = None
    stride: int | None = None
    imgsz: tuple[int, int] | None = None
    nms: bool = False
    end2end: bool = False


def read_metadata(path: str, entries: Mapping[str, str]) -> Metadata:
    """Raises ModelError for a task that is not detection; other values that make no sense count as absent."""
    task = str(entries.get("task", "detect")).strip().lower()
    if task not in ("detect", ""):
        raise ModelError(
            f"{path}: is a model for the task {task!r}; only detection is supported: export one whose task is detect"
        )
    arguments = _literal(entries.get("args", ""))
    nms = arguments.get("nms") if isinstance(arguments, dict) else None
    return Metadata(
        description=str(entries.get("description", ""))[:200],
        names=_names(_literal(entries.get("names", ""))),
        stride=_stride(_literal(entries.get("stride", ""))),
        imgsz=_size(_literal(entries.get("imgsz", ""))),
        nms=bool(nms) or _literal(entries.get("nms", "")) is True,
        end2end=_literal(entries.get("end2end", "")) is True,
    )


def _literal(text: str) -> Any:
    """A value written as in Python or JSON; None for anything else. ``literal_eval`` builds data and calls nothing."""
    text = text.strip()
    if not text or len(text) > MAX_TEXT:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _names(value: Any) -> tuple[str, ...] | None:
    """A list, or a mapping of class ids from 0 on."""
    if isinstance(value, dict):
        try:
            numbered = {int(key): str(name) for key, name in value.items()}
        except (TypeError, ValueError):
            return None
        if sorted(numbered) != list(range(len(numbered))):
            return None
        value = [numbered[key] for key in range(len(numbered))]
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_CLASSES:
        return None
    # A name goes into tables, file names and pictures.
    printable = ["".join(c for c in str(name) if c.isprintable()).strip() for name in value]
    return tuple(name or f"class{at}" for at, name in enumerate(printable))


def _stride(value: Any) -> int | None:
    if isinstance(value, list | tuple) and value and all(isinstance(item, int | float) for item in value):
        value = max(value)
    return int(value) if isinstance(value, int | float) and 1 <= value <= 1024 else None


def _size(value: Any) -> tuple[int, int] | None:
    if isinstance(value, int):
        value = [value, value]
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(isinstance(side, int) for side in value):
        return None
    height, width = value
    return (height, width) if 0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE else None
