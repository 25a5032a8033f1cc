"""What a pass is, what it is handed, and how it runs the pipeline once more without a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from detector.config.schema import Config
from detector.errors.writing import temporary_folder
from detector.run.detect import detect
from detector.run.signals import raise_if_stopped
from detector.session.document import SessionDocument
from detector.session.passes import Facts, PassRecord
from detector.session.read import SavedSession, read_session
from detector.session.store import Session
from detector.timeline import KINDS, WORK


class NotHereError(Exception):
    """A pass cannot run on this computer, with this engine or without some permission. Its text is
    the reason."""


@dataclass(frozen=True, slots=True)
class Pass(Generic[Facts]):
    """One way to look at a run.

    ``order``: when its turn is, lowest first; ``loop`` is 0, since others compare themselves with
    it. ``what``: a few words for the user who waits for it. ``run``: measures and returns facts of
    the type ``facts``, or raises NotHereError. ``undisturbed``: why it slows nothing down; without
    it the facts have a ``slowdown``. ``on_request``: the option that asks for a pass which takes
    too long for users who did not ask.
    """

    order: int
    what: str
    facts: type[Facts]
    run: Callable[[Occasion], Facts]
    undisturbed: str | None = None
    on_request: str | None = None


@dataclass(slots=True)
class Occasion:
    """One ``profile`` of one source. ``plain``: the run without any profiler, which all others are
    compared with. ``records``: of the passes before this one. ``prove``: whether to test the
    predictions of what-if."""

    source: str
    config: Config
    session: Session
    plain: SavedSession
    prove: bool = False
    records: dict[str, PassRecord] = field(default_factory=dict)

    @property
    def frames(self) -> int:
        return self.plain.document.frames.written

    @property
    def period_ms(self) -> float:
        """Milliseconds a frame of the plain run, end to end."""
        return 1e3 * self.plain.document.fps.frame_s

    def again(self, **loop: Any) -> SavedSession:
        """The same run once more, with other settings of the loop. Its outputs are thrown away.

        Raises what the run raises.
        """
        return run_again(self.source, replace(self.config, loop=replace(self.config.loop, **loop)))

    def slowdown(self, session: SavedSession) -> float:
        """Time a frame of another run over the plain run's: 1.1 = 10% slower."""
        return session.document.fps.frame_s / self.plain.document.fps.frame_s


def pin_choices(config: Config, document: SessionDocument) -> Config:
    """``config`` with the engine, threads and requests that the run chose. Another loop, or one
    request alone, would choose others, and then two things would change at once."""
    runtime = config.runtime
    if runtime.engine == "auto":
        runtime = replace(runtime, engine=document.engine, precision=document.precision)
    # One request alone would get all cores; here it keeps the threads that it had.
    runtime = replace(runtime, threads=document.engine_threads, concurrency=document.concurrency)
    return replace(config, runtime=runtime)


def run_again(source: str, config: Config) -> SavedSession:
    """The session of another run; its folder is gone when this returns."""
    with temporary_folder("detect-video-pass-") as place:
        output = replace(config.output, output=f"{place / 'outputs'}/", run_dir=str(place / "run"))
        result = detect([source], replace(config, output=output))
        for error in result.errors:
            raise error
        raise_if_stopped(result.exit_code)
        return read_session(place / "run")


def done_ns(spans: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """[F] int64: when each frame was done, in order. Without a write stage that is after NMS."""
    names = spans["stage_names"].tolist()
    last = "write" if "write" in names else "nms"
    picked = (spans["kind"] == KINDS.index(WORK)) & (
        spans["stage"] == (names.index(last) if last in names else -2)
    )
    ends: NDArray[np.int64] = np.sort(spans["end_ns"][picked])
    return ends
