"""What a run says of itself, as types: the summary and the session's document.

``Summary`` is what ``--json`` prints and what summary.json holds. ``SessionDocument`` is
session.json: the summary with all that is needed to repeat the run and to read its spans. The
fields stand in the order in which they are written. docs/schema holds both types as JSON Schema.

A field of type ``UnsetType`` is absent from the JSON where it is UNSET. A field with another
default was added after the first version: older sessions lack it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

from msgspec import UNSET, UnsetType

from detector.session.codec import SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """One source. What only an open source can tell is null, or absent, where it could not be
    opened."""

    path: str
    width: int | None  # displayed pixels, after rotation
    height: int | None
    fps: float | None  # nominal frame rate, 1/s
    frames_declared: int | None
    duration_s: float | None
    kind: str | UnsetType = UNSET  # "video" or "pictures"
    codec: str | UnsetType = UNSET
    rotation: int | UnsetType = UNSET  # degrees
    decoder: str | UnsetType = UNSET

    @property
    def size(self) -> str | None:
        """``1920x1080``, width first; None where the source could not be opened."""
        return f"{self.width}x{self.height}" if self.width else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCounts:
    """``dropped``: read and not written, because the run was cut short or failed."""

    read: int
    written: int
    bad: int
    corrupt: int
    skipped: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Frames a second; None where no frame was written. ``device``: of the device's own time; None
    where it reports none."""

    end_to_end: float | None
    inference: float | None
    device: float | None = None

    @property
    def frame_s(self) -> float:
        """Seconds a frame, end to end; infinite where no frame was written."""
        return 1 / self.end_to_end if self.end_to_end else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """All calls of one stage. ``thread``: the names of its threads, with commas."""

    thread: str
    calls: int
    busy_s: float
    cpu_s: float
    p50_ms: float | None = None  # None: too few calls
    p90_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None

    @property
    def threads(self) -> list[str]:
        return self.thread.split(",")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadFigures:
    """One thread's time in the loop: busy + waits + other = wall."""

    busy_s: float
    wait_input_s: float
    wait_output_s: float
    other_s: float
    wall_s: float
    cpu_s: float
    ready_s: float | None = None  # runnable, but waiting for a core; None where unknown
    waits: dict[str, float] = field(default_factory=dict)  # what it waited for -> seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryStage:
    """The threads that libraries run for one stage. ``busiest_s``: CPU of the one that used most;
    ``ready_s``: how long that one waited for a core."""

    threads: int
    calls: int
    cpu_s: float
    busiest_s: float
    ready_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryThreads:
    """CPU seconds of libraries' own threads in the steady state: from the first frame written to
    the end of the loop. ``others_s``: of other processes; None where the system does not tell."""

    wall_s: float
    process_s: float
    unknown_s: float
    others_s: float | None
    stages: dict[str, LibraryStage]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """CPU seconds of this process over the run. ``cores``: those that it may use."""

    cores: int
    process_s: float
    our_threads_s: float
    library_threads_s: float
    # In the plain loop a stage's CPU time is the process's, library threads included.
    stages_include_libraries: bool
    libraries: LibraryThreads | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``bottleneck``: the stage to change first; None where there is nothing to judge.
    ``gain_if_free``: stage -> growth of end-to-end FPS if it took no time (0.08 = 8%); None where
    nothing else takes time. ``cpu_share``: of all cores' time, what this process used."""

    bottleneck: str | None
    sentence: str
    gain_if_free: dict[str, float | None] | UnsetType = UNSET
    cpu_share: float | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionCounts:
    total: int
    by_class: dict[str, int]  # the most frequent first
    cut_by_max_det: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    code: int
    reason: str


class PrecisionShare(TypedDict):
    """What one numeric type took of the network as it was executed. 0 to 1."""

    layers: float
    macs: float
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSummary:
    """One source of several."""

    video: Video
    frames: FrameCounts
    fps: Rates
    verdict: Verdict
    outputs: dict[str, str]  # kind -> path
    partial_outputs: list[str]
    detections: DetectionCounts
    exit: Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run. With one source, ``video``, ``outputs`` and ``partial_outputs`` are its own; with
    several, these are absent, the figures are totals, and ``sources`` holds each source."""

    schema: int = SCHEMA
    model: str
    family: str
    engine: str
    engine_reason: str | None
    precision: str
    precision_executed: dict[str, PrecisionShare] | None = None
    precision_text: str = ""
    precision_effect: str | None = None
    batch: int
    model_input: tuple[int, int]  # height, width
    engine_threads: int
    concurrency: int
    sync: bool
    random_weights: int | None = None  # the seed
    video: Video | UnsetType = UNSET
    frames: FrameCounts
    fps: Rates
    seconds: dict[str, float]  # import, load, warmup, run, close
    stages: dict[str, StageFigures]
    threads: dict[str, ThreadFigures]
    cpu: CpuTime
    verdict: Verdict
    detections: DetectionCounts
    exit: Exit
    notes: list[str]
    outputs: dict[str, str] | UnsetType = UNSET
    partial_outputs: list[str] | UnsetType = UNSET
    sources: list[SourceSummary] | UnsetType = UNSET
    session: str | UnsetType = UNSET  # its folder; absent where no source could be opened

    @property
    def each(self) -> list[SourceSummary]:
        """Every source, also where there is only one."""
        if self.sources is not UNSET:
            return self.sources
        assert self.video is not UNSET
        assert self.outputs is not UNSET
        assert self.partial_outputs is not UNSET
        return [
            SourceSummary(
                video=self.video,
                frames=self.frames,
                fps=self.fps,
                verdict=self.verdict,
                outputs=self.outputs,
                partial_outputs=self.partial_outputs,
                detections=self.detections,
                exit=self.exit,
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """``cores``: those that this process may use."""

    model: str | None = None
    flags: list[str] = field(default_factory=list)
    cores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The computer and the versions of a run. What a system does not tell is None."""

    detect_video: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: Processor = field(default_factory=Processor)
    libraries: dict[str, str] = field(default_factory=dict)  # name -> version
    gpu_driver: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanCounts:
    """Spans of spans.npz; of a very long run not all are kept. Absent where the file could not be
    written."""

    seen: int | UnsetType = UNSET
    kept: int | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Two clocks at one moment, in nanoseconds: spans are of the first, other programs' traces of
    the second."""

    perf_counter_ns: int
    unix_ns: int


class LoopSizes(TypedDict, total=False):
    """The sizes that bound the loop of one source. Empty where the source could not be opened."""

    batch: int
    concurrency: int
    requests: int
    images: int
    queue_batches: int
    results: int
    sync: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDocument(Summary):
    """session.json. ``config``: the resolved configuration, group -> option -> value."""

    pid: int = 1
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: Environment = field(default_factory=Environment)
    command: list[str] = field(default_factory=list)
    spans: SpanCounts = field(default_factory=SpanCounts)
    clocks: Clocks
    loop: list[LoopSizes]  # of each source
    clip_sha256: dict[str, str | None] = field(default_factory=dict)  # source -> hex digest
    model_sha256: str | None = None
