"""The contract of a stage between nms and annotate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from detector.core.types import Detections, Frame, SourceInfo


class Schedule(Protocol):
    """Decides which frames the network runs on (--infer-every)."""

    spared: int  # about how many frames share one inference
    # number of inferred frames that may still be in flight when the next decision is made
    ahead: int

    def wants(
        self,
        frame: Frame,
        waits: Callable[[], AbstractContextManager[Any]],
        check: Callable[[], None],
    ) -> bool:
        """Return whether to infer this frame. The reading thread calls it for each frame in order.
        It may wait for ``observe`` inside ``waits()``; ``check`` raises after the run's end."""

    def observe(self, frame: Frame, detections: Detections) -> None:
        """Receive an inferred frame after all stages; called in order by the writer's thread."""


class Spared(NamedTuple):
    """``option``: why the network does not see some frames, as it is typed. ``every``: it sees one
    of so many; None: that varies."""

    option: str
    every: int | None


class Stage(ABC):
    """One stage for one source, such as a tracker: called with each frame and its detections.

    ``turned_on_by``: group and name of the option without which no run imports it, as a literal in
    its file; None: every run asks it. ``what`` begins a sentence of the verdict ("Following the
    objects"); ``advice`` says which options reduce its work. Stages are sorted by ``order``, then
    by name. A stage that can skip inference for some frames has a ``schedule``: for skipped frames
    it gets no detections.

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
    brings: ClassVar[tuple[str, ...]] = ()  # names of sinks that every run with it opens
    schedule: Schedule | None = None

    @classmethod
    @abstractmethod
    def settings(cls, options: Mapping[str, Any]) -> Any:
        """Return its own frozen settings, or None if these options do not use it. Called once,
        before a model is loaded. ``options``: the groups of ``config.schema.Config``, as plain
        values. Raises UsageError."""

    @classmethod
    def lowest_conf(cls, settings: Any) -> float:
        """Return the lowest score it needs, below --conf; it must then drop those itself."""
        return 1.0

    @classmethod
    def spares(cls, settings: Any) -> Spared | None:
        """Which frames its ``schedule`` keeps from the network; None without one."""
        return None

    @classmethod
    def check(cls, settings: Any, names: Sequence[str]) -> None:
        """Raise UsageError for settings that do not fit the ``names`` of a model's classes."""
        return  # most have nothing to refuse

    @classmethod
    def redraw(cls, options: Mapping[str, Any], camera: str, drawing: str) -> tuple[Any, str, str]:
        """Return settings with what a user drew for a camera during the run, the text of the file
        with it, and a description of the change. Raises UsageError."""
        raise NotImplementedError

    @abstractmethod
    def __init__(self, settings: Any, info: SourceInfo, names: Sequence[str], conf: float) -> None:
        """Create the stage. ``info``: the source, which for cameras means all of them; ``names``:
        of the classes; ``conf``: the threshold."""

    @abstractmethod
    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        """Return what is drawn and written. Called for each frame in order, with boxes in source
        pixels. It must not draw: annotate comes later."""

    def change(self, camera: str, settings: Any) -> None:
        """Use these settings from the camera's next frame on. Any thread may call it."""
        raise NotImplementedError

    def close(self) -> Sequence[str]:
        """Return lines for the user. Called once, at the end of the source."""
        return ()

    def findings(self) -> Mapping[str, Any]:
        """Return additions to lists of ``SourceRun``, for documents. Called after ``close``."""
        return {}
