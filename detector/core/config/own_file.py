"""Adapt a user's YAML (relative paths, lists of class names), or the session.json of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from detector.core.errors import UsageError
from detector.core.errors.parsing import quote

FILES = ("model", "cfg", "describe", "weights", "names", "calibrate", "zones")  # values are paths


def adapt(origin: str, content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of a file in ``folder``: the session.json of a run to repeat, or a user's
    YAML. Its paths may be relative to ``folder``, and its ``names`` may be a list."""
    if "schema" in content:
        parts, own = folder.resolve().parts, Path(str(content.get("session"))).parts
        if parts[-len(own) :] == own:  # ``own`` is relative to the folder in which the run began
            folder = Path(*parts[: -len(own)])
        content = _repeat(origin, content)
    for group in (content, *map(content.get, ("network", "calibration", "tracking"))):
        if not isinstance(group, dict):
            continue
        if isinstance(group.get("names"), (list, dict)):
            group["class_names"] = _sort_names(origin, group.pop("names"))
        for key in FILES:
            value = group.get(key)
            if (
                isinstance(value, str)
                and not os.path.exists(value)
                and os.path.isfile(folder / value)
            ):
                group[key] = str(folder / value)
    return content


def _repeat(origin: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run as given, but with the engine, precision and input size that the
    run chose, and without its session's folder. Raises UsageError."""
    try:
        options = {**document["config"]}
        runtime = {**options["runtime"]}
        runtime |= {"engine": document["engine"], "precision": document["precision"]}
        if not runtime["rect"]:
            height, width = document["model_input"]
            runtime["size"] = f"{width}x{height}"
        return {**options, "runtime": runtime, "output": {**options["output"], "run_dir": None}}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{origin}: not a whole session.json of a run; give runs/NAME/session.json"
        ) from error


def _sort_names(origin: str, names: list[Any] | dict[Any, Any]) -> list[str]:
    """Return class names by id, from a list or from a mapping such as {0: person, 1: vehicle}."""
    if isinstance(names, dict):
        by_id = {str(key): name for key, name in names.items()}  # a quoted key works too
        if by_id.keys() != {str(at) for at in range(len(names))}:
            raise UsageError(
                f"{origin}: names: class ids must run from 0 to {len(names) - 1}, each exactly once"
            )
        names = [by_id[str(at)] for at in range(len(names))]
    for name in names:
        if isinstance(name, (list, dict)):
            raise UsageError(
                f"{origin}: names: {quote(name)} is not a name; write one text per class"
            )
    return [str(name) for name in names]
