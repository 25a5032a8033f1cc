"""The kinds of attacks: each module of this folder defines one as ``KIND``."""

import importlib
import pkgutil
from functools import cache

from tests.attacks.case import Kind


@cache
def find_all() -> dict[str, Kind]:
    kinds = {}
    for info in pkgutil.iter_modules(__path__, f"{__name__}."):
        kind: Kind = importlib.import_module(info.name).KIND
        kinds[kind.name] = kind
    return kinds
