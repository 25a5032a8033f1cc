"""Networks for the tests: the model and what is said about it, as a user types it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detector.core import engines, models
from detector.core.models.base import ModelRequest, Network


def open_network(model: str, **said: Any) -> Network:
    """``models.open_network`` of a request with these values; plans of the engines open as well."""
    for name in ("weights", "names", "cfg"):
        if said.get(name) is not None:
            said[name] = Path(said[name])
    said["class_names"] = tuple(said.get("class_names", ()))
    request = ModelRequest(model, **said)
    return models.open_network(request, engines.front_ends())
