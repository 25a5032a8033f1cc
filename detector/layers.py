"""The layers of a configuration, in order: cfg/default.yaml < the known model's options < --config < flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detector.config import COMMAND_LINE, Config, read_layer, resolve


def resolved(config_file: str | None, flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Config:
    """``flags``: option name -> value, None = not given. ``defaults``: a command's own, above those of the model.

    Raises UsageError, naming the path of what is wrong.
    """
    from detector.models.packaged import folder, known

    given = {name: value for name, value in flags.items() if value is not None}
    base = [read_layer(folder() / "default.yaml")]
    upper = [*([read_layer(config_file)] if config_file else []), (COMMAND_LINE, given)]
    model = resolve(*base, *upper).network.model
    if model in known():
        path, description = read_layer(folder() / "models" / f"{model}.yaml")
        base.append((path, description.get("options") or {}))
    return resolve(*base, *([("defaults of the command", defaults)] if defaults else []), *upper)
