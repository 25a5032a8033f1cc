"""The contract of a stage between nms and annotate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

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
        """Return whether it sees this frame. The reading thread calls it for each frame in order.
        It may wait for ``told`` inside ``waits()``; ``check`` raises after the run's end."""

    def told(self, frame: Frame, detections: Detections) -> None:
        """A frame that it saw, behind all stages; called in order, by the thread that writes."""


class Spared(NamedTuple):
    """``option``: why the network does not see some frames, as it is typed. ``every``: it sees one
    of so many; None: that varies."""

    option: str
    every: int | None


class Stage(ABC):
    """One stage for one source.

    ``turned_on_by``: group and name of the option without which no run imports it, as a literal in
    its file; None: every run asks it. ``what`` begins a sentence of the verdict ("Following the
    objects"); ``advice`` says which options take work out of it. Stages come by ``order``, then by
    name. One that can do without the network in some frames has a ``schedule``: for the others it
    gets no detections.
    """

    turned_on_by: ClassVar[tuple[str, str] | None] = None
    what: ClassVar[str]
    advice: ClassVar[str] = ""
    order: ClassVar[int] = 0
    brings: ClassVar[tuple[str, ...]] = ()  # sinks that every run with it opens, by name
    schedule: Schedule | None = None

    @classmethod
    @abstractmethod
    def settings(cls, options: Mapping[str, Any]) -> Any:
        """Its own frozen settings, or None if a run of these options does not have it. Read once,
        before a model is loaded. ``options``: the groups of ``config.schema.Config``, as plain
        values. Raises UsageError."""

    @classmethod
    def lowest_conf(cls, settings: Any) -> float:
        """The lowest score that it wants, if below --conf; it then drops those below --conf."""
        return 1.0

    @classmethod
    def spares(cls, settings: Any) -> Spared | None:
        """Which frames its ``schedule`` keeps from the network; None without one."""
        return None

    @classmethod
    def check(cls, settings: Any, names: Sequence[str]) -> None:
        """Raise UsageError for settings that do not go with the ``names`` of a model's classes."""
        return  # most have nothing to refuse

    @classmethod
    def redraw(cls, options: Mapping[str, Any], camera: str, drawing: str) -> tuple[Any, str, str]:
        """Settings with what somebody drew of a camera while the run lasts, the text of the file
        that has it, and what changed, in words. Raises UsageError."""
        raise NotImplementedError

    @abstractmethod
    def __init__(self, settings: Any, info: SourceInfo, names: Sequence[str], conf: float) -> None:
        """``info``: the source, which for cameras is all of them; ``names``: of the classes;
        ``conf``: the threshold."""

    @abstractmethod
    def __call__(self, frame: Frame, detections: Detections) -> Detections:
        """Return what is drawn and written. Called for each frame in its order, with boxes in
        pixels of the source. It must not draw: annotate comes later."""

    def change(self, camera: str, settings: Any) -> None:
        """Use these settings from the camera's next frame on. Any thread may call it."""
        raise NotImplementedError

    def close(self) -> Sequence[str]:
        """Called once, at the end of the source. Lines for the user."""
        return ()

    def findings(self) -> Mapping[str, Any]:
        """For the run's documents, behind ``close``: added to lists of ``SourceRun``."""
        return {}
