"""What a pass is handed, and how it runs the pipeline once more without leaving anything behind."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.config.schema import Config
from detector.run.detect import detect
from detector.session.document import SessionDocument
from detector.session.read import SavedSession, read_session
from detector.session.store import Session
from detector.timeline import KINDS, WORK


class NotHereError(Exception):
    """A pass cannot run on this machine, with this engine, or without that permission. Its text is the reason."""


@dataclass(slots=True)
class Occasion:
    """One ``profile`` of one source. ``plain``: the run without any profiler, which all others are compared with.
    ``found``: what the passes before this one found. ``prove``: whether what-if is to be put to the test."""

    source: str
    config: Config
    session: Session
    plain: SavedSession
    prove: bool = False
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def frames(self) -> int:
        return int(self.plain.document["frames"]["written"])

    @property
    def period_ms(self) -> float:
        """Milliseconds a frame of the plain run, end to end."""
        return 1e3 / float(self.plain.document["fps"]["end_to_end"])

    def again(self, **loop: Any) -> SavedSession:
        """The same run once more, with other settings of the loop; what it writes is thrown away.

        Raises what the run raises.
        """
        return run_again(self.source, replace(self.config, loop=replace(self.config.loop, **loop)))

    def slowdown(self, session: SavedSession) -> float:
        """Time a frame of another run over the plain run's: 1.1 = 10% slower."""
        return (1e3 / float(session.document["fps"]["end_to_end"])) / self.period_ms


def as_it_ran(config: Config, document: SessionDocument) -> Config:
    """With the engine, threads and requests that the run had, where it chose them itself: another loop, or a request
    alone, must not choose others, or two things would change at once."""
    runtime = config.runtime
    chosen = (
        {"engine": document["engine"], "precision": document["precision"]}
        if runtime.engine == "auto"
        else {}
    )
    # A request alone gets all cores; here each keeps the threads that it had.
    shape = {"threads": document["engine_threads"], "concurrency": document["concurrency"]}
    return replace(config, runtime=replace(runtime, **chosen, **shape))


def run_again(source: str, config: Config) -> SavedSession:
    with tempfile.TemporaryDirectory(prefix="detect-video-pass-") as folder:
        place = Path(folder)
        output = replace(config.output, output=f"{place / 'outputs'}/", run_dir=str(place / "run"))
        result = detect([source], replace(config, output=output))
        for error in result.errors:
            raise error
        return read_session(place / "run")


def written_ns(spans: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """[F] when each frame was done, in order: written, or where nothing is written, after NMS."""
    names = spans["stage_names"].tolist()
    last = "write" if "write" in names else "nms"
    picked = (spans["kind"] == KINDS.index(WORK)) & (
        spans["stage"] == (names.index(last) if last in names else -2)
    )
    ends: NDArray[np.int64] = np.sort(spans["end_ns"][picked])
    return ends
