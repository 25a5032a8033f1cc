"""Stages between nms and annotate, such as a tracker. Each file is one stage.

A file ``NAME.py`` here, or in the folder ``stages`` of a wing, declares one in a class
``NameStage``. The loop calls it in a span of its own, in the writer's thread. So the ledger, NVTX
ranges, the critical path, what-if, the verdict and the reports show it by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from detector.core import wings

if TYPE_CHECKING:
    from detector.core.stages.between.base import Stage


@cache
def places() -> Mapping[str, str]:
    """Return the module of each stage by name. Imports none."""
    ours = {name: f"{__name__}.{name}" for name in wings.list_files(*__path__)}
    return {**ours, **wings.find_files("stages")}


def find(name: str) -> type[Stage]:
    made: type[Stage] = wings.load(f"{places()[name]}:{name.capitalize()}Stage")
    return made


class ChosenStage(NamedTuple):
    """A stage of a run."""

    name: str
    kind: type[Stage]
    settings: Any


def wanted(options: Mapping[str, Any]) -> tuple[ChosenStage, ...]:
    """Return the stages of a run in calling order. Raises UsageError."""
    asked = [name for name, place in places().items() if _is_turned_on(place, options)]
    kinds = sorted(((name, find(name)) for name in asked), key=lambda one: (one[1].order, one[0]))
    found = (ChosenStage(name, kind, kind.settings(options)) for name, kind in kinds)
    return tuple(one for one in found if one.settings is not None)


def _is_turned_on(place: str, options: Mapping[str, Any]) -> bool:
    option = wings.read_literal(place, "turned_on_by")
    return option is None or options[option[0]][option[1]] is not None
