"""The layers of a configuration, in order: cfg/default.yaml < the known model's options < --config < flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detector.config.schema import COMMAND_LINE, Config, merge_levels, read_level
from detector.errors import UsageError

FILES = ("model", "cfg", "weights", "names", "calibrate")  # options that name files


def resolve_config(
    config_file: str | None, flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> Config:
    """``flags``: option name -> value, None = not given. ``defaults``: a command's own, above those of the model.

    Raises UsageError, naming the path of what is wrong.
    """
    from detector.models.catalogue import folder, known

    given = {name: value for name, value in flags.items() if value is not None}
    base = [read_level(folder() / "default.yaml")]
    upper = [*([_read_own_level(config_file)] if config_file else []), (COMMAND_LINE, given)]
    model = merge_levels(*base, *upper).network.model
    if model in known():
        path, description = read_level(folder() / "models" / f"{model}.yaml")
        base.append((path, description.get("options") or {}))
    elif config_file is None and (beside := _beside_a_plan(model)) is not None:
        upper.insert(0, _read_own_level(beside))
    return merge_levels(
        *base, *([("defaults of the command", defaults)] if defaults else []), *upper
    )


def _read_own_level(config_file: str | Path) -> tuple[str, dict[str, Any]]:
    """A user's file. Files that it names may lie beside it; ``names`` may be the names themselves."""
    origin, content = read_level(config_file)
    place = Path(config_file).parent
    for group in (content, content.get("network"), content.get("calibration")):
        if not isinstance(group, dict):
            continue
        names = group.get("names")
        if isinstance(names, (list, dict)):
            group["class_names"] = _in_order(origin, group.pop("names"))
        for key in FILES:
            value = group.get(key)
            if isinstance(value, str) and not Path(value).exists() and (place / value).is_file():
                group[key] = str(place / value)
    return origin, content


def _in_order(origin: str, names: list[Any] | dict[Any, Any]) -> list[str]:
    """[person, vehicle] or {0: person, 1: vehicle}."""
    if isinstance(names, dict):
        by_id = {str(key): name for key, name in names.items()}
        if by_id.keys() != {str(at) for at in range(len(names))}:
            raise UsageError(
                f"{origin}: names: class ids must be 0, 1, ... {len(names) - 1}, each once"
            )
        names = [by_id[str(at)] for at in range(len(names))]
    return [str(name) for name in names]


def _beside_a_plan(model: str) -> Path | None:
    """x.yaml beside x.trt: the description that such a file lacks."""
    from detector.engines import only_engine

    found = Path(model).with_suffix(".yaml")
    return found if only_engine(model) is not None and found.is_file() else None
