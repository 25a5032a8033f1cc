"""Merge the levels of options into one checked tree. For each option, the last level wins:

    cfg/default.yaml < options of the known model < a command's defaults < --config < flags

Errors name the path of the wrong key, and the nearest known key.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from detector.core.config.schema import (
    Config,
    choices_of,
    flag_of,
    has_option,
    option_groups,
    options,
)
from detector.core.errors import UsageError
from detector.core.errors.guard import keep
from detector.core.errors.parsing import parse_json, quote
from detector.core.errors.reading import read_text
from detector.core.errors.text import split_list
from detector.core.errors.yaml_parsing import parse_yaml

MAX_TEXT = 4096  # characters of a value; also Linux's limit on the length of a path
COMMAND_LINE = "command line"  # origin of flags; messages about them name the flag, not the key
# Other programs' names for our choices: precisions, then outputs.
OTHER_NAMES = {"half": "fp16", "single": "fp32", "txt": "yolo", "json": "coco", "mp4": "video"}

_LEAVES = {leaf.name: (group, leaf) for group, leaf in options()}


def resolve_config(
    config_file: str | None, flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> Config:
    """Return a command's configuration. Raises UsageError with the wrong key's path. ``flags``:
    option -> value, None if not given. ``defaults``: the command's, which --config overrides."""
    return merge_levels(*collect_levels(config_file, flags, defaults))


def collect_levels(
    config_file: str | None, flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the levels of ``resolve_config``, lowest first: (origin, options)."""
    from detector.core.models.catalogue import folder, known

    given = {name: value for name, value in flags.items() if value is not None}
    origin, content = read_level(folder() / "default.yaml")
    # default.yaml also lists options of wings that may not be installed.
    lower = [(origin, {name: content[name] for name in content if name in option_groups()})]
    upper = [*([_read_own_file(config_file)] if config_file else []), (COMMAND_LINE, given)]
    model = merge_levels(*lower, *upper).network.model
    if model in known():
        path, description = read_level(folder() / "models" / f"{model}.yaml")
        lower.append((path, description.get("options") or {}))
    elif config_file is None and (description_file := _find_description_of_plan(model)) is not None:
        upper.insert(0, _read_own_file(description_file))
    if defaults:
        lower.append(("defaults of the command", dict(defaults)))
    return [*lower, *upper]


def list_origins(levels: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    return {name: origin for origin, level in levels for name, _ in _flatten(origin, level)}


def _read_own_file(config_file: str | Path) -> tuple[str, dict[str, Any]]:
    """Read YAML or session.json. Paths may be relative to that file; ``names`` may be a list."""
    from detector.core.config.own_file import adapt

    keep("the configuration", config_file)
    origin, content = read_level(config_file)
    return origin, adapt(origin, content, Path(config_file).parent)


def _find_description_of_plan(model: str) -> Path | None:
    """Return x.yaml next to x.trt, if any. It describes what is not in the plan itself."""
    from detector.core.engines import only_engine

    if only_engine(model) is None:
        return None
    file = Path(model).with_suffix(".yaml")
    return file if os.path.isfile(file) else None


def merge_levels(*levels: tuple[str, Mapping[str, Any]]) -> Config:
    """Merge levels into one checked, frozen tree. The last level wins, option by option. A level is
    (origin, options); its options may be in groups or at the top level. Raises UsageError."""
    values: dict[str, dict[str, Any]] = {group: {} for group in option_groups()}
    for origin, level in levels:
        for name, value in _flatten(origin, level):
            values[_LEAVES[name][0]][name] = _check(origin, name, value)
    groups = {name: kind(**values[name]) for name, kind in option_groups().items()}
    return with_implied(Config(**groups))


def with_implied(config: Config) -> Config:
    """Add the options that outputs need. For example, ``--save tracks`` turns on ``--track``."""
    from detector.core import sinks

    for sink in sinks.in_order({*(config.output.save or ())} & {*sinks.names()}):
        if absent := [name for name in sink.implies if not has_option(name)]:
            raise UsageError(f"--save {sink.name}: needs --{absent[0]}, which is not installed")
        missing = {name: to for name, to in sink.implies.items() if config.value(name) is None}
        config = config.with_options(missing)
    return config


def read_level(path: str | Path) -> tuple[str, dict[str, Any]]:
    cure = "give a YAML file, or the session.json of a run"
    text = read_text(path, "a configuration", cure=cure)
    try:
        content = parse_yaml(text, path)
    except UsageError:
        if Path(path).suffix == ".json":
            parse_json(text, path, cure="is the file incomplete? give a whole one")
        raise
    if content is None and Path(path).suffix != ".json":
        return str(path), {}
    if not isinstance(content, dict):
        name = type(content).__name__
        kind = {"str": "text", "NoneType": "an empty file"}.get(name, f"a {name}")
        raise UsageError(
            f"{path}: a configuration must be a mapping of options (conf: 0.4), not {kind}"
        )
    return str(path), content


def _flatten(origin: str, level: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (option, value) of a level. Its options may be in groups or at the top level."""
    for key, value in level.items():
        if key in option_groups() and isinstance(value, Mapping | None):
            for name, leaf in (value or {}).items():
                if name not in _LEAVES or _LEAVES[name][0] != key:
                    raise UsageError(_explain_unknown_key(origin, f"{key}.{name}"))
                yield name, leaf
        elif key in _LEAVES:
            yield key, value
        else:
            raise UsageError(_explain_unknown_key(origin, str(key)))


def _explain_unknown_key(origin: str, path: str) -> str:
    paths = {name: f"{group}.{name}" for name, (group, _) in _LEAVES.items()}
    name = path[:100].rsplit(".", 1)[-1].replace("-", "_")
    near = [paths[known] for known in difflib.get_close_matches(name, paths, 1, 0.65)]
    hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(paths.values())}"
    return f"{origin}: unknown key {path[:100]}{hint}"


_KINDS = {
    str: f"text of at most {MAX_TEXT} characters",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of words",
}
_WRITTEN = {"size": "640x384 (width, height)", "zones": '{"lines": {"a": [[0, 9], [9, 9]]}}'}
_UNITS = {"GB": "GB", "DAYS": "days", "MIN": "minutes", "S": "seconds"}  # metavar -> unit


def _check(origin: str, name: str, value: Any) -> Any:
    group, leaf = _LEAVES[name]
    if isinstance(value, str) and "://" in value:
        from detector.core.errors.addresses import Address

        Address(value, "secret_path" in leaf.metadata)  # from now on, messages hide its secrets
    where = flag_of(leaf) if origin == COMMAND_LINE else f"{origin}: {group}.{name}"
    if name == "zones" and isinstance(value, Mapping):
        value = json.dumps(value)
    value = read_value(where, leaf, value)
    if name == "device":  # GPU.1 is OpenVINO's spelling, intel:gpu is Ultralytics'
        value = value.lower().removeprefix("intel:").replace(".", ":")
        value = f"cuda:{value}" if value.isdecimal() else value
    return value


def read_value(where: str, leaf: dataclasses.Field[Any], value: Any) -> Any:
    """Convert a value to an option's type, and check it. Raises UsageError."""
    kind, optional = _parse_type(leaf)
    if value is None and optional:
        return None
    if value is None:
        raise UsageError(f"{where} needs a value")
    try:
        value = _convert(kind, value)
    except (TypeError, ValueError, OverflowError):
        unit = _UNITS.get(leaf.metadata["metavar"])
        hint = f"; write it in {unit}, without the unit" if unit and kind is float else ""
        hint = f"; write it as {_WRITTEN[leaf.name]}" if leaf.name in _WRITTEN else hint
        raise UsageError(f"{where}: {quote(value)} is not {_KINDS[kind]}{hint}") from None
    if value == leaf.default:
        return value
    low, high = leaf.metadata.get("at_least"), leaf.metadata.get("at_most")
    if low is not None and value < low:
        raise UsageError(f"{where}: {quote(value)} is too small; must be at least {low}")
    if high is not None and value > high:
        percent = f"; did you mean {value / 100:g}?" if high == 1.0 and 5 <= value <= 100 else ""
        raise UsageError(f"{where}: {quote(value)} is too large; must be at most {high}{percent}")
    # The engine's name is checked later, so that --json prints its error as JSON.
    choices = choices_of(leaf) if leaf.name != "engine" else ()
    for item in (value if isinstance(value, tuple) else (value,)) if choices else ():
        if item not in choices:
            near = difflib.get_close_matches(OTHER_NAMES.get(item, str(item)), choices, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{where}: {item!r} is not one of {', '.join(choices)}{hint}")
    return value


def _parse_type(leaf: dataclasses.Field[Any]) -> tuple[type, bool]:
    """Parse ``int | None`` to (int, True). Annotations are text because of ``from __future__``."""
    kind, _, rest = str(leaf.type).partition(" | ")
    return {known.__name__: known for known in _KINDS}[kind.partition("[")[0]], rest == "None"


def _convert(kind: type, value: Any) -> Any:
    """Convert text, or a value from YAML, to ``kind``. Raises ValueError and TypeError."""
    if kind is tuple:
        items = split_list(value) if isinstance(value, str) else value
        if items == [] and isinstance(value, str):
            raise ValueError
        items = items if isinstance(items, (list, tuple)) else [items]
        if not all(isinstance(item, (str, int, float)) for item in items):
            raise TypeError
        return tuple(_to_text(item).strip() for item in items if str(item).strip())
    if isinstance(value, bool) is not (kind is bool):
        raise TypeError
    if kind is bool:
        return value
    if kind is str:
        if not isinstance(value, (str, int, float)):
            raise TypeError
        return _to_text(value)
    number = kind(value)  # too many digits raise ValueError
    if number != number or (kind is int and number != float(value)):  # NaN, or 1.5 frames
        raise ValueError
    return number


def _to_text(value: object) -> str:
    text = str(value)
    if len(text) > MAX_TEXT:
        raise ValueError
    return text
