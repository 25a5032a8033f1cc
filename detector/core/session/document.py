"""The types of a run's documents: the summary and the session.

``Summary`` is printed by ``--json`` and stored in summary.json. ``SessionDocument`` is
session.json: the summary, and all data to repeat the run and to read its spans. Fields are written
in the order given here. docs/schema contains both types as JSON Schema.

A field of type ``UnsetType`` is absent from the JSON if it is UNSET. A field with any other default
was added after the first version, so older sessions lack it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, TypedDict

from msgspec import UNSET, Meta, UnsetType

from detector.core.session.codec import SCHEMA

# Numbers with the limits that are checked when a document is read.
Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=1)]
Duration = Annotated[float, Meta(ge=0)]  # seconds or milliseconds, as the field's name says
Amount = Annotated[float, Meta(ge=0)]  # a rate, a share, megabytes


def statistic(title: str, unit: str) -> Meta:
    """Declare a field as a statistic. ``title``: its name in the schema, the report and run
    trackers (``analysis/statistics.py`` finds it). ``unit``: "1" for a count or a share."""
    return Meta(title=title, extra_json_schema={"unit": unit})


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """One source. Values that only an open source provides are null or absent if opening failed."""

    path: str
    width: Size | None  # displayed pixels, after rotation
    height: Size | None
    fps: float | None  # nominal frame rate, 1/s
    frames_declared: int | None
    duration_s: float | None
    kind: str | UnsetType = UNSET  # "video", "pictures" or "live"
    codec: str | UnsetType = UNSET
    rotation: int | UnsetType = UNSET  # degrees
    decoder: str | UnsetType = UNSET
    # Pixel format of the frames in the run: "yuv420p", or "bgr" if an output needs BGR, or "bgr: "
    # and the reason why the source cannot give YUV planes.
    pixels: str | UnsetType = UNSET

    @property
    def size(self) -> str | None:
        """``1920x1080``, width first; None if the source could not be opened."""
        return f"{self.width}x{self.height}" if self.width else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCounts:
    """Counts of frames. ``dropped``: frames read but not written because the run was cut short or
    failed; for cameras, frames received but not inferred (``streams`` has the reasons). ``reused``:
    frames written with the detections of the last inferred frame (--skip-still). ``coasted``:
    frames written without inference; their boxes are not detections, but were moved by tracks."""

    read: Annotated[Count, statistic("frames read", "1")]
    written: Annotated[Count, statistic("frames written", "1")]
    bad: Annotated[Count, statistic("frames that could not be read", "1")]
    corrupt: Annotated[Count, statistic("frames read with damage", "1")]
    skipped: Annotated[Count, statistic("frames skipped", "1")]
    dropped: Annotated[Count, statistic("frames dropped", "1")]
    reused: Annotated[Count, statistic("frames reusing earlier detections", "1")] = 0
    coasted: Annotated[Count, statistic("frames with tracked, not detected, boxes", "1")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Frames per second, None if no frame was written. ``device``: computed from the time that the
    device reports; None if it reports no time."""

    end_to_end: Annotated[Amount | None, statistic("end-to-end FPS", "1/s")]
    inference: Annotated[Amount | None, statistic("inference FPS", "1/s")]
    device: Annotated[Amount | None, statistic("device FPS", "1/s")] = None

    @property
    def frame_s(self) -> float:
        """Seconds per frame, end to end; infinite if no frame was written."""
        return 1 / self.end_to_end if self.end_to_end else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTime:
    """How a thread spent some time: on a core; ready to run, but waiting for a core; blocked in a
    call (by a file, a lock, or threads that work for it). The three add up to the whole time."""

    on_cpu_s: Duration
    ready_s: Duration
    blocked_s: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """All calls of one stage. ``thread``: names of its threads, comma-separated. ``split``: parts
    of ``busy_s``. ``library_cpu_s``: CPU time, in the whole run, of the threads that libraries run
    for the stage. ``library_ready_s``: how long the busiest of these threads waited for a core.
    ``split`` and the ``library`` times are None if the system does not report them."""

    thread: str
    calls: Count
    busy_s: Duration
    cpu_s: Duration
    p50_ms: Duration | None = None  # None if there are too few calls
    p90_ms: Duration | None = None
    p99_ms: Duration | None = None
    max_ms: Duration | None = None
    split: ThreadTime | None = None
    library_cpu_s: Duration | None = None
    library_ready_s: Duration | None = None

    @property
    def threads(self) -> list[str]:
        return self.thread.split(",")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingFigures:
    """Decoding by the cameras' own threads: ``threads`` threads decoded ``calls`` packets. This is
    outside the loop, which receives decoded pictures, so no stage includes it."""

    threads: Annotated[Count, statistic("threads that decode cameras", "1")]
    calls: Annotated[Count, statistic("packets decoded", "1")]
    busy_s: Annotated[Duration, statistic("decoding", "s")]
    cpu_s: Annotated[Duration, statistic("CPU time of decoding", "s")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadFigures:
    """One thread's time in the loop: busy + waits + other = wall. The splits are None if the system
    does not report them. ``unplaced_s``: difference between the kernel's counts for the thread's
    whole life and the sums of the splits. ``foreign_share``: share of the waits for a core, 0 to 1,
    that other programs caused. Our other threads caused the rest."""

    busy_s: Duration
    wait_input_s: Duration
    wait_output_s: Duration
    other_s: Duration
    wall_s: Duration
    cpu_s: Duration
    ready_s: Duration | None = None  # runnable, but waiting for a core; None if unknown
    waits: dict[str, Duration] = field(default_factory=dict)  # what the thread waited for -> s
    busy_split: ThreadTime | None = None
    wait_split: ThreadTime | None = None
    other_split: ThreadTime | None = None
    unplaced_s: Duration | None = None
    foreign_share: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryStage:
    """The threads that libraries run for one stage. ``busiest_s``: CPU time of the busiest thread;
    ``ready_s``: how long the busiest thread waited for a core."""

    threads: Count
    calls: Count
    cpu_s: Duration
    busiest_s: Duration
    ready_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryThreads:
    """CPU seconds of libraries' own threads in the steady state, which lasts from the first written
    frame to the end of the loop. ``others_s``: CPU seconds of other processes, None if unknown."""

    wall_s: Duration
    process_s: Duration
    unknown_s: Duration
    others_s: Duration | None
    stages: dict[str, LibraryStage]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """CPU seconds of this process over the run. ``cores``: usable cores."""

    cores: Annotated[Size, statistic("cores that may be used", "1")]
    process_s: Annotated[Duration, statistic("CPU time", "s")]
    our_threads_s: Annotated[Duration, statistic("CPU time of detect-video's threads", "s")]
    library_threads_s: Annotated[Duration, statistic("CPU time of library threads", "s")]
    # With --sync, a stage's CPU time is the whole process's, including library threads.
    stages_include_libraries: bool
    libraries: LibraryThreads | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits the run. ``bottleneck``: the stage to change first, None if there is nothing to
    judge. ``gain_if_free``: stage with a known gain -> how much end-to-end FPS would grow if it
    took no time (0.08 is 8%; None is infinite: no other stage takes time). ``cpu_share``: share
    of all cores' time that this process used. ``smaller_input``: height and width of a smaller
    network input for which the model was trained; absent unless inference limits the run.
    ``advice``: options that reduce the bottleneck's work, or "". ``others_cores``: cores that other
    programs used, None if unknown."""

    bottleneck: str | None
    sentence: str
    gain_if_free: dict[str, Amount | None] | UnsetType = UNSET
    cpu_share: Annotated[Amount | UnsetType, statistic("share of the cores used", "1")] = UNSET
    smaller_input: tuple[Size, Size] | UnsetType = UNSET
    advice: str = ""
    others_cores: Annotated[Amount | None, statistic("cores used by other programs", "1")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionCounts:
    total: Annotated[Count, statistic("detections", "1")]
    by_class: dict[str, Count]  # the most frequent first
    cut_by_max_det: Annotated[Count, statistic("detections cut by --max-det", "1")]
    empty: Annotated[Count | UnsetType, statistic("pictures without detections", "1")] = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    code: Count
    reason: str


class PrecisionShare(TypedDict):
    """The shares, 0 to 1, of the executed network that run in one numeric type."""

    layers: Amount
    macs: Amount
    bytes: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class DwellFigures:
    """How many seconds objects stayed in a zone. A visit lasts from first to last sighting."""

    visits: Count
    mean: Duration
    median: Duration
    longest: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneTotals:
    """The counts of a line or zone (--zones). ``counts``: class -> "in" and "out" for a line, or
    "entered", "left", "appeared" and "ended" for a zone (entered + appeared = left + ended).
    ``most``: class -> most objects in a zone at once. ``camera``: "" for a file. ``sides``: the
    line's names for "in" and "out"."""

    name: str
    kind: str  # "line" or "zone"
    camera: str
    sides: list[str] = field(default_factory=lambda: ["in", "out"])
    counts: dict[str, dict[str, Count]]
    most: dict[str, Count]
    dwell_s: DwellFigures | None  # None for a line or an empty zone


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneSeries:
    """One class at one line or zone, with a value for each interval. ``counts``: the keys are as in
    ZoneTotals. ``mean``: the mean number of objects in a zone, [] for a line."""

    zone: str
    kind: str
    class_name: str
    counts: dict[str, list[Count]]
    mean: list[Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneHistory:
    """Lines and zones of a source or camera over time. ``began_s``: start of the first interval, by
    the source's clock. ``heat_s``: seconds that objects spent in each cell of the picture, row by
    row. ``clock``: pairs (seconds since ``began_s``, local time as seconds since 1970), one for the
    start and one for each change of daylight saving time; [] if unknown."""

    camera: str
    began_s: float
    every_s: Duration
    series: list[ZoneSeries]
    heat_columns: Size
    heat_rows: Size
    heat_s: list[Amount]
    clock: list[tuple[Duration, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSummary:
    """One source of a run that has several sources."""

    video: Video
    frames: FrameCounts
    fps: Rates
    verdict: Verdict
    outputs: dict[str, str]  # kind -> path
    partial_outputs: list[str]
    detections: DetectionCounts
    exit: Exit
    zones: list[ZoneTotals] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeFigures:
    """Percentiles of the ages of pictures, in ms since their arrival; None for too few pictures."""

    p50: Duration | None
    p90: Duration | None
    p99: Duration | None
    max: Duration | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """One camera of a live run. ``received`` = ``processed`` + the sum of ``dropped``.
    ``dropped_share``: share of dropped frames among the frames that pass the camera's ``rate``.

    ``url`` contains no secrets. ``state`` and ``tiles`` (2x2, none) are those at the end of the
    run. ``live_s``: how long the camera was live; its rates refer to this time. ``age_ms``: a
    picture's age when its result is ready. ``parts_ms``: the times of decoding, waiting and
    inference, which add up to that age, and of writing afterwards. ``output_age_ms``: a picture's
    age when an output receives it. ``camera_age_ms``: like ``age_ms``, by the camera's own clock;
    None if it sends no times. ``output_counts``: kind of output -> the numbers of pictures or rows
    written, of pictures or rows lost to a full disk, and of bytes. A recording also counts what it
    dropped because encoding or the disk was too slow, samples that MP4 refused, failed items, and
    finished files. A recording's ``bytes`` are the size of these files.
    """

    name: str
    url: str
    state: str
    received: Count
    processed: Count
    dropped: dict[str, Count]  # reason -> pictures
    dropped_share: Amount
    reconnects: Count
    stalls: Count
    live_s: Duration
    camera_fps: Amount | None
    processed_fps: Amount | None
    size: str | None
    tiles: str
    codec: str
    frozen: bool
    error: str | None
    age_ms: AgeFigures
    parts_ms: dict[str, AgeFigures]
    output_age_ms: dict[str, AgeFigures]
    camera_age_ms: AgeFigures | None
    detections: dict[str, Count]
    outputs: dict[str, str]  # kind -> path
    output_counts: dict[str, dict[str, Count]] = field(default_factory=dict)


class MemoryMinute(NamedTuple):
    """Memory in one minute of the run. ``rss_mb``: the mean of that minute's samples."""

    minute: Count
    rss_mb: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMemory:
    """Resident memory of one day of a live run, in 10^6 bytes."""

    start_mb: Annotated[Amount, statistic("memory at the start", "MB")]
    end_mb: Annotated[Amount, statistic("memory at the end", "MB")]
    peak_mb: Annotated[Amount, statistic("memory at the peak", "MB")]
    minutes: list[MemoryMinute]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbances:
    """External disturbances. ``swapped_mb``: memory of this process in swap at the end, 10^6 bytes.
    ``throttled_s``: seconds in which a CPU quota was exhausted. ``hot``: how often cores were
    throttled for heat. ``governor``: the CPU frequency governor, if it saves power."""

    swapped_mb: Annotated[Amount, statistic("memory in swap", "MB")] = 0.0
    throttled_s: Annotated[Duration, statistic("time throttled by the CPU quota", "s")] = 0.0
    hot: Annotated[Count, statistic("times that cores were slowed down by heat", "1")] = 0
    governor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShapes:
    """The network inputs of a run with --rect. ``made``: how many were prepared after the first, in
    ``made_s`` seconds. An input that was closed may be prepared and counted again. ``mean_pixels``:
    mean over all pictures. ``square_pixels``: pixels of the input if it were square."""

    shapes: Annotated[Count, statistic("shapes of the input", "1")]
    made: Annotated[Count, statistic("inputs prepared during the run", "1")]
    made_s: Annotated[Duration, statistic("preparing inputs", "s")]
    mean_pixels: Annotated[Amount, statistic("pixels of the input", "1")]
    square_pixels: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run. ``batch``: number of frames or tiles per inference. With one source, ``video``,
    ``outputs`` and ``partial_outputs`` are that source's. With several sources, these are absent,
    the figures are totals, and ``sources`` lists the sources."""

    schema: int = SCHEMA
    model: str
    family: str
    engine: str
    engine_reason: str | None
    device: str | UnsetType = UNSET  # absent if the network ran on the CPU
    device_name: str | UnsetType = UNSET  # full name; absent if the library gives none
    precision: str
    precision_executed: dict[str, PrecisionShare] | None = None
    precision_text: str = ""
    precision_effect: str | None = None
    batch: Size
    model_input: tuple[Size, Size]  # height, width
    tiles: Annotated[Size, statistic("network inputs per frame", "1")] = 1
    engine_threads: Count
    concurrency: Size
    sync: bool
    random_weights: int | None = None  # the seed
    video: Video | UnsetType = UNSET
    frames: FrameCounts
    fps: Rates
    seconds: dict[str, Duration]  # import, load, warmup, run, close
    stages: dict[str, StageFigures]
    threads: dict[str, ThreadFigures]
    cpu: CpuTime
    verdict: Verdict
    detections: DetectionCounts
    exit: Exit
    notes: list[str]
    background: list[Count] = field(default_factory=list)  # indexes of notes on the run's set-up
    outputs: dict[str, str] | UnsetType = UNSET
    partial_outputs: list[str] | UnsetType = UNSET
    sources: list[SourceSummary] | UnsetType = UNSET
    session: str | UnsetType = UNSET  # its folder; absent if no source could be opened
    # These are in live runs only. ``capacity``: how many such cameras this machine could handle.
    streams: list[StreamSummary] | UnsetType = UNSET
    capacity: Annotated[
        Amount | UnsetType | None, statistic("cameras that this machine could take", "1")
    ] = UNSET
    decoding: DecodingFigures | UnsetType = UNSET
    memory: LiveMemory | UnsetType | None = UNSET  # None if unknown
    disturbed: Disturbances | UnsetType = UNSET  # absent if there were none
    input_shapes: InputShapes | UnsetType = UNSET  # with --rect
    zones: list[ZoneTotals] | UnsetType = UNSET  # with --zones

    @property
    def each(self) -> list[SourceSummary]:
        """Every source, even if there is only one."""
        if self.sources is not UNSET:
            return self.sources
        own = {each.name: getattr(self, each.name) for each in fields(SourceSummary)}
        return [SourceSummary(**own)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The CPU. ``cores``: number of cores that this process may use."""

    model: str | None = None
    flags: list[str] = field(default_factory=list)
    cores: Size | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The computer and the versions of a run. Facts that the system does not report are None.
    ``commit``: that of the checkout, with ``-dirty`` if its files had changes."""

    detect_video: str | None = None
    commit: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: Processor = field(default_factory=Processor)
    libraries: dict[str, str] = field(default_factory=dict)  # name -> version
    gpu_driver: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanCounts:
    """``seen``: the number of spans in the run. ``kept``: how many of these are in spans.npz (not
    all after a very long run). Without spans.npz, both are absent."""

    seen: Count | UnsetType = UNSET
    kept: Count | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The clock of spans, and the clock of other programs' traces. Both were read at one moment."""

    perf_counter_ns: Count
    unix_ns: Count


class LoopSizes(TypedDict, total=False):
    """The sizes that limit the loop of one source. Empty if the source could not be opened."""

    batch: Size
    concurrency: Size
    requests: Size
    images: Size
    queue_batches: Count
    results: Size
    sync: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDocument(Summary):
    """session.json. ``config``: the configuration as requested, group -> option -> value."""

    pid: Count = 1
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: Environment = field(default_factory=Environment)
    command: list[str] = field(default_factory=list)
    spans: SpanCounts = field(default_factory=SpanCounts)
    clocks: Clocks
    loop: list[LoopSizes]  # one for each source
    clip_sha256: dict[str, str | None] = field(default_factory=dict)  # source -> hex digest
    model_sha256: str | None = None
    scenes: list[SceneHistory] | UnsetType = UNSET  # with --zones, for all sources
