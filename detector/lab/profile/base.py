"""The description of a pass, the input of passes, and repeated runs whose outputs are deleted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from detector.core.config.schema import Config, OutputConfig
from detector.core.errors.machine import NotHereError
from detector.core.errors.writing import is_null_device, temporary_folder
from detector.core.run.canvas import follows_source
from detector.core.run.detect import Hooks, detect
from detector.core.run.signals import raise_if_stopped
from detector.core.session.document import SessionDocument
from detector.core.session.store import Session
from detector.lab.analysis.layers import SHEET
from detector.lab.session.columns import find_frame_times
from detector.lab.session.network import Peaks
from detector.lab.session.passes import PINNED, Execution, Facts, PassRecord, Ran
from detector.lab.session.read import SavedSession, read_session

if TYPE_CHECKING:
    from detector.core.run.loading import LoadedModel
    from detector.lab.profile.recorder import Recorder

Sample = TypeVar("Sample")

WHAT_IF_S = 60.0  # default time budget of what-if


class Varies(NamedTuple):
    """Fields of ``Execution`` that a pass changes on purpose; ``words`` describe the change."""

    fields: tuple[str, ...]
    words: str


NOTHING = Varies((), "")


@dataclass(frozen=True, slots=True)
class Pass(Generic[Facts]):
    """One measurement of a run.

    ``order``: lower numbers run first. ``what``: words to print while the pass runs. ``run``:
    returns facts of the type ``facts``, or raises NotHereError. ``undisturbed``: why it slows
    nothing down; if None, the facts have a ``slowdown``. ``on_request``: the option that turns on a
    pass that is off by default. ``varies``: how its execution differs from the run's.
    """

    order: int
    what: str
    facts: type[Facts]
    run: Callable[[Occasion], Facts]
    undisturbed: str | None = None
    on_request: str | None = None
    varies: Varies = NOTHING


@dataclass(slots=True)
class Occasion:
    """The input of the passes. ``plain``: the run without a profiler, to which passes are compared.
    ``config``: the config of that run with its ``auto`` choices fixed (``pin_choices``).
    ``records``: those of previous passes. ``executions``: those of this pass. ``seconds``: time
    budget of what-if. ``sheet``: GFLOP/s and GB/s of a data sheet. ``recorder``: the one that
    recorded ``plain``."""

    source: str
    config: Config
    session: Session
    plain: SavedSession
    seconds: float = WHAT_IF_S
    records: dict[str, PassRecord] = field(default_factory=dict)
    executions: list[Execution] = field(default_factory=list)
    sheet: tuple[float, float] | None = None
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        if self.plain:
            self.config = pin_choices(self.config, self.plain.document)

    @property
    def frames(self) -> int:
        return self.plain.document.frames.written

    @property
    def period_ms(self) -> float:
        return 1e3 * self.plain.document.fps.frame_s

    def sheet_peaks(self, precision: str) -> Peaks | None:
        if self.sheet is None:
            return None
        peak, bandwidth = self.sheet
        return Peaks(
            gflops_s={precision: peak}, by={precision: SHEET}, bandwidth_gbytes_s=bandwidth
        )

    def rerun(self, **loop: Any) -> SavedSession:
        """Repeat the run with other settings of the ``loop``, and delete the new outputs."""
        config = replace(self.config, loop=replace(self.config.loop, **loop))
        session = run_again(self.source, config)
        self.executions.append(Execution.of(session.document))
        return session

    def describe_ran(self, varies: Varies) -> Ran:
        """Describe the ``executions``. Raises NotHereError for differences beyond ``varies``."""
        run = Execution.of(self.plain.document)
        what = f"{run.engine} {run.precision}".removesuffix(" none")  # the precision of engine null
        differing = dict.fromkeys(name for one in self.executions for name in run.differs_in(one))
        for name in set(PINNED) & {*differing} - {*varies.fields}:
            other = next(
                getattr(one, name) for one in self.executions if name in run.differs_in(one)
            )
            raise NotHereError(
                f"the pass ran with {name} {other}, but the run used {getattr(run, name)}, so the "
                "figures of the pass do not apply"
            )
        words = [f"{what}, like the run" if self.executions else f"{what}, in the run itself"]
        words += [varies.words] if varies.words and self.executions else []
        words += [
            f"but with {name} {getattr(one, name)}"
            for name in differing
            if name not in varies.fields
            for one in self.executions[-1:]
        ]
        return Ran(
            execution=run,
            measured=tuple(dict.fromkeys(self.executions)),
            on_purpose=varies.fields,
            differs_in=tuple(differing),
            text=", ".join(words),
        )

    def slowdown(self, session: SavedSession) -> float:
        return session.document.fps.frame_s / self.plain.document.fps.frame_s


def pin_choices(config: Config, document: SessionDocument, device: str | None = None) -> Config:
    """Return ``config`` with all choices of the run fixed, so that a pass changes only one thing.
    ``config`` should be ``LoadedModel.config``: ``document`` lacks the calibration of int8."""
    runtime = config.runtime
    if runtime.engine == "auto":
        runtime = replace(runtime, engine=document.engine, precision=document.precision)
    # Otherwise a pass with one request would give that request all cores, not the run's threads.
    runtime = replace(runtime, threads=document.engine_threads, concurrency=document.concurrency)
    if runtime.device == "auto" and device is not None:
        runtime = replace(runtime, device=device)
    if follows_source(config) or (runtime.size or "").isdecimal():
        height, width = document.model_input
        runtime = replace(runtime, size=f"{width}x{height}")
    return replace(config, runtime=runtime)


def execution_of(machine: LoadedModel) -> Execution:
    network, engine = machine.network, machine.engine
    return Execution(
        engine=engine.name,
        precision=engine.precision,
        threads=engine.threads,
        concurrency=engine.concurrency,
        batch=network.batch,
        model_input=(network.input.height, network.input.width),
    )


def output_within(folder: Path, output: OutputConfig) -> OutputConfig:
    """Return the run's outputs, moved to ``folder``. They keep their file names, since the suffix
    (.webm) decides the encoder. Discarded output (``-o /dev/null``) stays discarded."""
    given, place = output.output, folder / "outputs"
    target = f"{place}{os.sep}"
    if given is not None and is_null_device(given):
        target = given
    elif given is not None and not given.endswith(os.sep) and not Path(given).is_dir():
        place.mkdir(parents=True, exist_ok=True)
        target = str(place / Path(given).name)
    return replace(output, output=target, run_dir=str(folder / "run"))


def run_again(source: str, config: Config, hooks: Hooks | None = None) -> SavedSession:
    with temporary_folder("detect-video-pass-") as place:
        output = output_within(place, config.output)
        result = detect([source], replace(config, output=output), hooks=hooks or Hooks())
        for error in result.errors:
            raise error
        raise_if_stopped(result.exit_code)
        return read_session(place / "run")


class PassSampler(Generic[Sample]):
    """Takes samples in a thread every ``every_s`` seconds, and when a ``with`` begins and ends."""

    def __init__(self, take: Callable[[], Sample], every_s: float, what: str) -> None:
        self._take, self._every_s = take, every_s
        self._samples: list[tuple[int, Sample]] = []
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"detect-video {what}")
        self._thread.daemon = True

    def _watch(self) -> None:
        while self._failure is None and not self._stop.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        try:
            when = time.perf_counter_ns()
            self._samples.append((when, self._take()))
        except Exception as error:  # permission was withdrawn, the driver was unloaded, ...
            self._failure = error

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def samples(self) -> list[tuple[int, Sample]]:
        """Return (ns on the spans' clock, sample) pairs. Raises NotHereError if a sample failed."""
        if self._failure is not None:
            raise NotHereError(f"a counter stopped answering: {self._failure}")
        return self._samples


def find_frame_ends(spans: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return the sorted times [F] at which the frames' last stages ended."""
    ends: NDArray[np.int64] = np.sort(find_frame_times(spans)[:, 3])
    return ends
