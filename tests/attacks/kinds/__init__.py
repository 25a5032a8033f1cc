"""The kinds of attacks: every module of this folder, by its ``KIND``. A new kind is a new file."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from tests.attacks.case import Kind


@cache
def find_all() -> dict[str, Kind]:
    found = {}
    for info in pkgutil.iter_modules(__path__, f"{__name__}."):
        kind: Kind = importlib.import_module(info.name).KIND
        found[kind.name] = kind
    return found
