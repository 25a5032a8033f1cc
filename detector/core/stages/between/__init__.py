"""Stages between nms and annotate, such as a tracker: one file is one stage.

A file ``NAME.py`` here, or in the folder ``stages`` of a wing, declares one in a class
``NameStage``. The loop calls it in a span of its own, in the thread that writes. So the ledger,
NVTX ranges, the critical path, what-if, the verdict and the reports have it by its name.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from detector.core import wings

if TYPE_CHECKING:
    from detector.core.types import Detections, Frame, SourceInfo


class Schedule(Protocol):
    """Says which frames the network sees (--infer-every)."""

    spared: int  # frames for each one that it sees, about
    ahead: int  # frames that it sees may be on their way, when the next one is decided on

    def wants(
        self,
        frame: Frame,
        waits: Callable[[], AbstractContextManager[Any]],
        check: Callable[[], None],
    ) -> bool:
        """Whether it sees this frame. Called for each one in order, by the thread that reads. It
        may wait for ``told``, inside ``waits()``; ``check`` raises where the run is over."""

    def told(self, frame: Frame, detections: Detections) -> None:
        """A frame that it saw, behind all stages; called in order, by the thread that writes."""


class Stage(ABC):
    """One stage for one source.

    Its file imports nothing large: every run asks it whether it is wanted. ``what`` begins a
    sentence of the verdict ("Following the objects"); ``advice`` says which options take work out
    of it. Stages come by ``order``, then by name. One that can do without the network in some
    frames has a ``schedule``: for the others it gets no detections.
    """

    what: ClassVar[str]
    advice: ClassVar[str] = ""
    order: ClassVar[int] = 0
    brings: ClassVar[tuple[str, ...]] = ()  # sinks that every run with it opens, by name
    schedule: Schedule | None = None

    @classmethod
    @abstractmethod
    def wanted(cls, options: Mapping[str, Any]) -> bool:
        """Whether a run of these options has it; the groups of ``config.schema.Config``, as
        plain values. Raises UsageError for options that contradict each other."""

    @classmethod
    def lowest_conf(cls, options: Mapping[str, Any]) -> float:
        """The lowest score that it wants, if below --conf; it then drops those below --conf."""
        return 1.0

    @classmethod
    def check(cls, options: Mapping[str, Any], names: Sequence[str] | None = None) -> None:
        """Raises UsageError for what is wrong with its options. Asked before a model is loaded, and
        once more with the ``names`` of its classes."""
        return  # most have nothing to refuse

    @abstractmethod
    def __init__(self, options: Mapping[str, Any], info: SourceInfo, names: Sequence[str]) -> None:
        """``info``: the source, which for cameras is all of them; ``names``: of the classes."""

    @abstractmethod
    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        """What goes on to the drawing and to the outputs. Called for each frame in its order, with
        boxes in pixels of the source. It may draw into neither: annotate comes later."""

    def close(self) -> Sequence[str]:
        """Called once, at the end of the source. Lines for the user."""
        return ()

    def findings(self) -> Mapping[str, Any]:
        """For the run's documents, behind ``close``: added to lists of ``SourceRun``."""
        return {}


@cache
def places() -> Mapping[str, str]:
    """Name of a stage -> its module. Imports none."""
    folders = [(__name__, list(__path__))]
    folders += [
        (f"detector.{wing}.stages", [str(wings.ROOT / wing / "stages")]) for wing in wings.names()
    ]
    return {
        one.name: f"{package}.{one.name}"
        for package, paths in folders
        for one in pkgutil.iter_modules(paths)
        if not one.name.startswith("_")
    }


def find(name: str) -> type[Stage]:
    made: type[Stage] = getattr(
        importlib.import_module(places()[name]), f"{name.capitalize()}Stage"
    )
    return made


def wanted(options: Mapping[str, Any]) -> list[tuple[str, type[Stage]]]:
    """The stages of a run, with their names, in the order in which they are called."""
    found = [(name, find(name)) for name in sorted(places())]
    asked = [(name, stage) for name, stage in found if stage.wanted(options)]
    return sorted(asked, key=lambda one: (one[1].order, one[0]))


def brought(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The sinks that stages of a run bring, by name."""
    return tuple(name for _, stage in wanted(options) for name in stage.brings)


def lowest_conf(options: Mapping[str, Any]) -> float:
    """The lowest that one of the stages of a run wants; 1 where none says so."""
    return min((stage.lowest_conf(options) for _, stage in wanted(options)), default=1.0)
