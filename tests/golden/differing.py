"""Describe the differences from the recording, one per line: ``key: was X, is Y``."""

import math
from dataclasses import dataclass, field
from typing import Any

from tests.golden.commands import Command
from tests.golden.masks import BORDER, BOX_PX, SCORE, mask_of
from tests.golden.observing import MASKED


@dataclass
class Differences:
    broken: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)  # new keys, which are allowed


def differences(
    recorded: dict[str, Any], observed: dict[str, Any], command: Command
) -> Differences:
    found = Differences()
    for key in ("exit", "stdout", "stderr"):
        _equal(key, recorded[key], observed[key], found)
    for key in ("files", "options"):
        _names(key, recorded.get(key, []), observed.get(key, []), found)
    _document(
        "document", recorded.get("document", {}), observed.get("document", {}), command, found
    )
    contents = recorded.get("content", {})
    for name, content in contents.items():
        if name not in observed.get("content", {}):
            continue  # already reported as a missing file
        _content(name, content, observed["content"][name], command, found)
    return found


def _equal(key: str, recorded: Any, observed: Any, found: Differences) -> None:
    if recorded != observed:
        found.broken.append(f"{key}: was {_short(recorded)}, is {_short(observed)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else text[:197] + "..."


def _names(key: str, recorded: list[str], observed: list[str], found: Differences) -> None:
    found.broken += [f"{key}: {name} is gone" for name in recorded if name not in observed]
    new = [f"{key}: {name} is new" for name in observed if name not in recorded]
    (found.added if key == "options" else found.broken).extend(new)


def _document(
    place: str,
    recorded: dict[str, Any],
    observed: dict[str, Any],
    command: Command,
    found: Differences,
) -> None:
    """Compare flat documents: a key may be added, but not removed or changed."""
    for path, value in recorded.items():
        key = f"{place} {path}"
        if path not in observed:
            below = [name for name in observed if name.startswith(f"{path}.")]
            found.broken.append(
                f"{key}: was {_short(value)}, is " + (f"now {below[0]}..." if below else "gone")
            )
        elif not _alike(path, value, observed[path], command):
            found.broken.append(f"{key}: was {_short(value)}, is {_short(observed[path])}")
    found.added += [
        f"{place} {path}: {_short(observed[path])} is new"
        for path in observed
        if path not in recorded
    ]


def _alike(path: str, recorded: Any, observed: Any, command: Command) -> bool:
    if (
        isinstance(recorded, str)
        and recorded.startswith(MASKED)
        and isinstance(observed, str)
        and observed.startswith(MASKED)
    ):
        kinds, others = (set(one.removeprefix(MASKED).split("|")) for one in (recorded, observed))
        # Two sets of types match if they share a type other than null. If one of them contains
        # only null, the other must contain null, too.
        values, other_values = kinds - {"null"}, others - {"null"}
        return bool(values & other_values if values and other_values else kinds & others)
    mask = mask_of(path, command.name, command.near, False)
    if (
        mask is not None
        and mask.kind == "near"
        and isinstance(recorded, (int, float))
        and isinstance(observed, (int, float))
    ):
        return abs(recorded - observed) <= mask.within
    if isinstance(recorded, float) and isinstance(observed, float):
        return math.isclose(
            recorded, observed, rel_tol=1e-9
        )  # numpy's order of additions depends on the CPU's vector width
    return type(recorded) is type(observed) and recorded == observed


def _content(name: str, recorded: Any, observed: Any, command: Command, found: Differences) -> None:
    if command.near and name.endswith(".jsonl"):
        _near_rows(name, recorded, observed, found)
    elif isinstance(recorded, dict) and isinstance(observed, dict):
        if pixels := [
            key for key in recorded if key.startswith("pixels by OpenCV") and key not in observed
        ]:
            found.added.append(
                f"{name}: {pixels[0]} cannot be compared, another version is installed"
            )
            recorded = {key: value for key, value in recorded.items() if key not in pixels}
        _document(name, recorded, observed, command, found)
    elif isinstance(recorded, list) and isinstance(observed, list):
        _equal(f"{name}, rows", len(recorded), len(observed), found)
        for at, (one, other) in enumerate(zip(recorded, observed, strict=False)):
            _equal(f"{name}, row {at}", one, other, found)
    else:
        _equal(name, recorded, observed, found)


# ---- rows of real networks


def _near_rows(
    name: str, recorded: list[dict[str, Any]], observed: list[dict[str, Any]], found: Differences
) -> None:
    _equal(f"{name}, rows", len(recorded), len(observed), found)
    for at, (one, other) in enumerate(zip(recorded, observed, strict=False)):
        place = f"{name}, row {at}"
        for key in one:
            if key not in other:
                found.broken.append(f"{place} {key}: gone")
            elif key != "detections":
                _equal(f"{place} {key}", one[key], other[key], found)
        if "detections" in one and "detections" in other:
            _near_boxes(place, one["detections"], other["detections"], found)


def _near_boxes(
    place: str, recorded: list[dict[str, Any]], observed: list[dict[str, Any]], found: Differences
) -> None:
    """Match each box with a near box of its class. Other boxes need scores near the threshold."""
    left = list(observed)
    threshold = min((one["score"] for one in [*recorded, *observed]), default=0.0)
    for one in recorded:
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
