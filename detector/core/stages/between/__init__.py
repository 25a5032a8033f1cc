"""Stages between nms and annotate, such as a tracker. Each file is one stage.

A file ``NAME.py`` here, or in the folder ``stages`` of a wing, declares a stage in a class
``NameStage``. The loop calls it in the writer's thread, in a span of its own, so all analyses and
reports show it under its name.
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
    """Map each stage's name to its module, without importing it."""
    ours = {name: f"{__name__}.{name}" for name in wings.list_files(*__path__)}
    return {**ours, **wings.find_files("stages")}


def find(name: str) -> type[Stage]:
    kind: type[Stage] = wings.load(f"{places()[name]}:{name.capitalize()}Stage")
    return kind


class ChosenStage(NamedTuple):
    name: str
    kind: type[Stage]
    settings: Any


def choose(options: Mapping[str, Any]) -> tuple[ChosenStage, ...]:
    """Return the stages of a run in calling order. Raises UsageError."""
    kinds = {name: find(name) for name, place in places().items() if _is_turned_on(place, options)}
    order = sorted(kinds, key=lambda name: (kinds[name].order, name))
    stages = (ChosenStage(name, kinds[name], kinds[name].settings(options)) for name in order)
    return tuple(stage for stage in stages if stage.settings is not None)


def _is_turned_on(place: str, options: Mapping[str, Any]) -> bool:
    option = wings.read_literal(place, "turned_on_by")
    return option is None or options[option[0]][option[1]] is not None
