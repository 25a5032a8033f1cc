"""What differs from the recording, as lines to read: ``key: was X, is Y``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tests.golden.commands import Command
from tests.golden.masks import BORDER, BOX_PX, SCORE, mask_of
from tests.golden.observing import MASKED


@dataclass
class Differences:
    broken: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)  # allowed: a key that was not there


def differences(was: dict[str, Any], now: dict[str, Any], command: Command) -> Differences:
    found = Differences()
    for key in ("exit", "stdout", "stderr"):
        _equal(key, was[key], now[key], found)
    for key in ("files", "options"):
        _names(key, was.get(key, []), now.get(key, []), found)
    _document("document", was.get("document", {}), now.get("document", {}), command, found)
    contents = was.get("content", {})
    for name, content in contents.items():
        if name not in now.get("content", {}):
            continue  # said among the files
        _content(name, content, now["content"][name], command, found)
    return found


def _equal(key: str, was: Any, now: Any, found: Differences) -> None:
    if was != now:
        found.broken.append(f"{key}: was {_short(was)}, is {_short(now)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else text[:197] + "..."


def _names(key: str, was: list[str], now: list[str], found: Differences) -> None:
    found.broken += [f"{key}: {name} is gone" for name in was if name not in now]
    new = [f"{key}: {name} is new" for name in now if name not in was]
    (found.added if key == "options" else found.broken).extend(new)


def _document(
    place: str, was: dict[str, Any], now: dict[str, Any], command: Command, found: Differences
) -> None:
    """Flat documents: a key may be added; none may go, or change its type or value."""
    for path, value in was.items():
        key = f"{place} {path}"
        if path not in now:
            below = [name for name in now if name.startswith(f"{path}.")]
            found.broken.append(
                f"{key}: was {_short(value)}, is " + (f"now {below[0]}..." if below else "gone")
            )
        elif not _alike(path, value, now[path], command):
            found.broken.append(f"{key}: was {_short(value)}, is {_short(now[path])}")
    found.added += [
        f"{place} {path}: {_short(now[path])} is new" for path in now if path not in was
    ]


def _alike(path: str, was: Any, now: Any, command: Command) -> bool:
    if (
        isinstance(was, str)
        and was.startswith(MASKED)
        and isinstance(now, str)
        and now.startswith(MASKED)
    ):
        kinds, others = (set(one.removeprefix(MASKED).split("|")) for one in (was, now))
        # Null on one side is as good where both may be null; else a type must be common.
        values, other_values = kinds - {"null"}, others - {"null"}
        return bool(values & other_values if values and other_values else kinds & others)
    mask = mask_of(path, command.name, command.near, False)
    if (
        mask is not None
        and mask.kind == "near"
        and isinstance(was, (int, float))
        and isinstance(now, (int, float))
    ):
        return abs(was - now) <= mask.within
    if isinstance(was, float) and isinstance(now, float):
        return math.isclose(
            was, now, rel_tol=1e-9
        )  # numpy adds in the order that the CPU's vectors give
    return type(was) is type(now) and was == now


def _content(name: str, was: Any, now: Any, command: Command, found: Differences) -> None:
    if command.near and name.endswith(".jsonl"):
        _near_rows(name, was, now, found)
    elif isinstance(was, dict) and isinstance(now, dict):
        if pixels := [key for key in was if key.startswith("pixels by OpenCV") and key not in now]:
            found.added.append(
                f"{name}: {pixels[0]} cannot be compared, another version is installed"
            )
            was = {key: value for key, value in was.items() if key not in pixels}
        _document(name, was, now, command, found)
    elif isinstance(was, list) and isinstance(now, list):
        _equal(f"{name}, rows", len(was), len(now), found)
        for at, (one, other) in enumerate(zip(was, now, strict=False)):
            _equal(f"{name}, row {at}", one, other, found)
    else:
        _equal(name, was, now, found)


# ---- rows of real networks


def _near_rows(
    name: str, was: list[dict[str, Any]], now: list[dict[str, Any]], found: Differences
) -> None:
    _equal(f"{name}, rows", len(was), len(now), found)
    for at, (one, other) in enumerate(zip(was, now, strict=False)):
        place = f"{name}, row {at}"
        for key in one:
            if key not in other:
                found.broken.append(f"{place} {key}: gone")
            elif key != "detections":
                _equal(f"{place} {key}", one[key], other[key], found)
        if "detections" in one and "detections" in other:
            _near_boxes(place, one["detections"], other["detections"], found)


def _near_boxes(
    place: str, was: list[dict[str, Any]], now: list[dict[str, Any]], found: Differences
) -> None:
    """Each with the nearest of its class; what is left over may only be borderline."""
    left = list(now)
    threshold = min((one["score"] for one in [*was, *now]), default=0.0)
    for one in was:
        pair = next((other for other in left if _near(one, other)), None)
        if pair is not None:
            left.remove(pair)
            _equal(f"{place}, keys of a detection", sorted(one), sorted(pair), found)
        elif one["score"] > max(threshold, 0.25) + BORDER:
            found.broken.append(f"{place}: was {_short(one)}, is gone")
    found.broken += [
        f"{place}: {_short(one)} is new"
        for one in left
        if one["score"] > max(threshold, 0.25) + BORDER
    ]


def _near(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (
        one["class"] == other["class"]
        and one["class_id"] == other["class_id"]
        and abs(one["score"] - other["score"]) <= SCORE
        and all(abs(a - b) <= BOX_PX for a, b in zip(one["box"], other["box"], strict=True))
    )
