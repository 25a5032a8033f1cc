"""The base class of stages that run between nms and annotate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from detector.core.types import Detections, Frame, SourceInfo


class Schedule(Protocol):
    """Decides which frames the network runs on (--infer-every)."""

    every: int  # frames per inference

    def wants(self, frame: Frame) -> bool:
        """Return whether to infer this frame. The reading thread calls it in order of frames."""


class Stage(ABC):
    """One stage for one source, such as a tracker: called with each frame and its detections.

    ``turned_on_by``: group and name of an option. Only runs with that option import the stage, so
    write them as a literal. None: every run imports the stage and calls ``settings``. ``what``
    begins a sentence of the verdict ("Following the objects"). ``advice``: options that reduce the
    stage's work. Stages are sorted by ``order``, then by name. A stage that can skip inference for
    some frames has a ``schedule``, and gets no detections for skipped frames.

        >>> class BestStage(Stage):
        ...     what = "Keeping the best object"
        ...     @classmethod
        ...     def settings(cls, options):
        ...         return True
        ...     def __init__(self, settings, info, names, conf): ...
        ...     def __call__(self, frame, detections):
        ...         return detections[:1]
    """

    turned_on_by: ClassVar[tuple[str, str] | None] = None
    what: ClassVar[str]
    advice: ClassVar[str] = ""
    order: ClassVar[int] = 0
    brings: ClassVar[tuple[str, ...]] = ()  # names of sinks that every run with the stage opens
    schedule: Schedule | None = None

    @classmethod
    @abstractmethod
    def settings(cls, options: Mapping[str, Any]) -> Any:
        """Return the stage's frozen settings, or None if these options do not use it. Called once,
        before a model is loaded. ``options``: the groups of ``config.schema.Config``, as plain
        values. Raises UsageError."""

    @classmethod
    def lowest_conf(cls, settings: Any) -> float:
        """Return the lowest score that the stage needs. It must itself drop boxes below --conf."""
        return 1.0

    @classmethod
    def schedule_option(cls, settings: Any) -> str | None:
        """Return the option, as typed, that gives the stage a ``schedule``; None if none does."""
        return None

    @classmethod
    def check(cls, settings: Any, names: Sequence[str]) -> None:
        """Raise UsageError for settings that do not fit the ``names`` of a model's classes."""
        return

    @classmethod
    def redraw(cls, options: Mapping[str, Any], camera: str, drawing: str) -> tuple[Any, str, str]:
        """Apply what a user drew for a camera during the run. Return new settings, the new text of
        their file, and a description of the change. Raises UsageError."""
        raise NotImplementedError

    @abstractmethod
    def __init__(self, settings: Any, info: SourceInfo, names: Sequence[str], conf: float) -> None:
        """Create the stage. ``info``: the source (all cameras of a run are one source). ``names``:
        the class names. ``conf``: the threshold."""

    @abstractmethod
    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        """Return the detections to draw and write. Called for each frame in order, with boxes in
        source pixels. It must not draw: annotate comes later."""

    def change(self, camera: str, settings: Any) -> None:
        """Use these settings from the camera's next frame on. Any thread may call it."""
        raise NotImplementedError

    def close(self) -> Sequence[str]:
        """Return lines for the user. Called once, at the end of the source."""
        return ()

    def findings(self) -> Mapping[str, Any]:
        """Return items to add to the lists of ``SourceRun``. Called after ``close``."""
        return {}
