"""One live run: cameras through one engine, for as long as it lasts.

    the main thread    the loop of a day: its writer, and at its end the day's session
    its threads        reader and workers, as for files
    feeds              each camera's own
    the clerk          twice a second: figures, cameras that come and go, a new day

At midnight (UTC) the loop ends and begins again with a new timeline, so that every day has a
session of its own; feeds and outputs go on.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from detector.core.config.schema import Config
from detector.core.errors import DetectVideoError, SourceError, UsageError
from detector.core.errors.guard import guarded, keep
from detector.core.errors.machine import usable_cores
from detector.core.errors.writing import is_null_device
from detector.core.run.detect import Result, Watcher, closing_session
from detector.core.run.environment import process_age_s
from detector.core.run.inputs import keep_inputs
from detector.core.run.limits import (
    blas_threads,
    check_files,
    check_memory,
    check_threads,
    opencv_threads,
)
from detector.core.run.looping import loop_bounds, loop_label, new_timeline, run_loop
from detector.core.run.records import Written, run_facts, write_records
from detector.core.run.signals import Stop, reload_on_signal, stop_on_signals
from detector.core.run.wire import (
    LoadedModel,
    PhaseTimer,
    class_ids,
    drawing_style,
    load_model,
    stage_functions,
    time_window,
)
from detector.core.sources._answers import remark_of
from detector.core.stages.annotate import annotate, pixelate
from detector.core.timeline import READ, WORK, Timeline
from detector.core.types import Detections, SourceInfo
from detector.live.camera_lines import CameraLines
from detector.live.camera_outputs import CameraEvents, CameraOutputs, MadeFolder, check_recording
from detector.live.canvas import picture_of_cameras
from detector.live.capacity import busiest_stage, capacity, sentence
from detector.live.figures import LiveStatus
from detector.live.memory import MemoryWatch
from detector.live.routing import Router
from detector.live.sources import LiveSource, terms_of
from detector.live.sources.base import Camera, Feed, FeedFacts
from detector.live.sources.cameras import compare_cameras, is_camera_list, make_cameras
from detector.live.sources.collect import Collector
from detector.live.sources.readers import make_feed

if TYPE_CHECKING:
    from detector.core.engines.base import BuildProgress
    from detector.core.loop.parts import Parts
    from detector.core.session.document import DecodingFigures, Summary
    from detector.core.session.outcome import SourceRun
    from detector.core.session.store import Session
    from detector.core.types import Candidates
    from detector.live.base import EventTarget, LiveFigures

FOLDER = "live"  # of outputs, and below runs/ of sessions
# Rows of each stage and thread that a session holds: six minutes of 25 pictures a second.
ROWS = 10_000
FEED_ROWS = 100  # of the decoders' spans, of which only sums are read
SHAPE = (1920, 1080)  # of a camera, where --size 640 asks before one has told its own
CLERK_S = 0.25
SLOW_TURN = 4  # every so many turns of the clerk: memory, files that changed
PATIENCE_S = 1.0  # for feeds to end
# File descriptors: of a feed its connection, of its outputs rows and a recording with its boxes.
FILES_OF_A_CAMERA = 5


class Table(Protocol):
    """Shows a live run while it lasts: asks for its figures at will."""

    def start(self, figures: Callable[[], LiveFigures]) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Around:
    """Who looks at a live run from outside, and may change it. None: nobody.

    ``figures_to`` and ``controls_to`` are called once, before the first picture: with what gives
    the figures at any moment, and with what starts and stops cameras of cameras.yaml (None: there
    is none) and the folder of outputs (None: there is none). ``say``: one line for the user about
    what is wrong or was changed; ``state``: one about a camera that comes or goes.
    """

    table: Table | None = None
    watcher: Watcher | None = None
    figures_to: Callable[[Callable[[], LiveFigures]], None] | None = None
    controls_to: Callable[[LiveControls | None, Path | None], None] | None = None
    events_to: Sequence[EventTarget] = ()
    say: Callable[[str], None] = lambda line: None
    state: Callable[[str], None] = lambda line: None


def detect_live(
    specs: Sequence[str],
    config: Config,
    *,
    command: Sequence[str] = (),
    around: Around = Around(),
    building: BuildProgress | None = None,
) -> Result:
    """Runs all cameras until a signal, --duration or --frames ends it, or all of them have ended.

    The result's summary is of the last day; its ``streams`` too. Raises DetectVideoError for what
    ends everything before the first picture. ``Result.errors`` has the rest: no camera was ever
    live, the engine or an output failed.
    """
    timer = PhaseTimer()
    timer.seconds["import"] = process_age_s() or 0.0
    duration_s = _refuse_options(config)
    check_memory(config.runtime.engine)
    with guarded(), reload_on_signal() as reload:
        keep_inputs(config)
        keep("the source", *(spec for spec in specs if os.path.isfile(spec)))
        cameras = make_cameras(specs, config.live.repeat)
        # OpenCV's BLAS; reader, worker, clerk; two threads of each feed.
        check_threads(blas_threads() + 3 + 2 * len(cameras))
        check_files(FILES_OF_A_CAMERA * len(cameras))
        made = _output_folder(config)
        names = {camera.name for camera in cameras}
        try:
            picture, line = picture_of_cameras(cameras, config)
            if config.runtime.size is not None:
                picture = SHAPE
            loaded = load_model(config, timer, picture=picture, progress=building, timed=True)
            loaded.notes += [] if line is None else [line]
            for remark in filter(None, map(remark_of, specs)):
                loaded.notes.append(remark)
                around.state(remark)
            loaded.read_layers()  # now: at the end SIGTERM leaves no time for it
            folder = None if made is None else made.path
            with loaded.engine as engine, stop_on_signals() as stop:
                run = _LiveRun(specs, config, command, loaded, folder, timer, stop, reload, around)
                try:
                    run.open(cameras, duration_s)
                    return run.run(engine.close)
                finally:
                    run.close()
                    names.update(camera.name for camera in run.listed)
        finally:
            if made is not None:
                made.take_back(names)


def _refuse_options(config: Config) -> float | None:
    """--duration in seconds. Raises UsageError for options that mean nothing for cameras."""
    given, output = config.input, config.output
    start_s, duration_s = time_window(config)
    wrong = {
        "--save": (output.save, "rows are written always; --record writes video"),
        "--no-video": (output.no_video, "no video is written without --record"),
        "--only-detections": (output.only_detections, "rows of cameras hold every frame"),
        "--lead": (output.lead, "it is for --only-detections"),
        "--start": (start_s, "cameras have no beginning"),
        "--skip-still": (given.skip_still, "their figures count what is inferred"),
        "--stride": (given.stride != 1, "give the camera a rate: in cameras.yaml"),
        "--video-track": (given.video_track, "the first video of a stream is read"),
        "--rate": (given.rate, "their pictures have times"),
        "--decoder": (given.decoder != "auto", "PyAV reads streams, OpenCV webcams"),
    }
    for flag, (is_given, why) in wrong.items():
        if is_given not in (None, False):
            raise UsageError(f"{flag} is for files, not for cameras: {why}; leave it out")
    target = output.output
    if target == "-" or (
        target is not None
        and not target.endswith(os.sep)
        and not os.path.isdir(target)
        and not is_null_device(target)
        and Path(target).suffix
    ):
        raise UsageError(
            f"--output {target}: cameras write to a folder, DIR/CAMERA/...; give -o {FOLDER}/"
        )
    check_recording(config)
    return None if duration_s is None else float(duration_s)


def _output_folder(config: Config) -> MadeFolder | None:
    """The folder of outputs, which is there. None: nothing is to be written. Raises OutputError."""
    target = config.output.output
    if target is not None and is_null_device(target):
        return None
    return MadeFolder(Path(target or FOLDER))


class LiveControls:
    """Starts and stops cameras of cameras.yaml, by name. Safe to call from any thread."""

    def __init__(self, run: _LiveRun) -> None:
        self._run = run

    def cameras(self) -> list[str]:
        """The names that ``start`` and ``stop`` know."""
        return [camera.name for camera in self._run.listed]

    def start(self, camera: str) -> None:
        """Does nothing where it runs. Raises UsageError for a name that is not in the list."""
        self._run.switch(camera, on=True)

    def stop(self, camera: str) -> None:
        self._run.switch(camera, on=False)


class _EndOfDay(threading.Event):
    """Set by itself or by the run's stop: what ends the loop of a day."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def is_set(self) -> bool:
        return super().is_set() or self._stop.is_set()


@dataclass(frozen=True, slots=True)
class _Decoded:
    """``calls``: name of a thread -> packets that it decoded."""

    calls: Mapping[str, int] = field(default_factory=dict)
    busy_ns: int = 0
    cpu_ns: int = 0

    def since(self, before: _Decoded) -> DecodingFigures:
        from detector.core.session.document import DecodingFigures

        calls = [count - before.calls.get(name, 0) for name, count in self.calls.items()]
        return DecodingFigures(
            threads=sum(count > 0 for count in calls),
            calls=sum(calls),
            busy_s=(self.busy_ns - before.busy_ns) / 1e9,
            cpu_s=(self.cpu_ns - before.cpu_ns) / 1e9,
        )


@dataclass(slots=True)
class _Day:
    """The loop of one day and what it leaves."""

    session: Session
    run: SourceRun
    over: _EndOfDay
    name: str
    started: float = field(default_factory=time.perf_counter)
    cpu: float = field(default_factory=time.process_time)
    main_cpu: float = field(default_factory=time.thread_time)


class _LiveRun:
    def __init__(
        self,
        specs: Sequence[str],
        config: Config,
        command: Sequence[str],
        loaded: LoadedModel,
        folder: Path | None,
        timer: PhaseTimer,
        stop: Stop,
        reload: threading.Event,
        around: Around,
    ) -> None:
        self._specs, self._config, self._command = specs, config, command
        self._loaded, self._folder, self._timer = loaded, folder, timer
        self._stop, self._reload, self._around = stop, reload, around
        live = config.live
        self._terms = terms_of(config)
        self.listed: list[Camera] = []  # of the command line and cameras.yaml
        self._off: set[str] = set()  # stopped by hand
        self._changing = threading.Lock()  # of the list: the clerk and the page
        self._classes: frozenset[int] | None = None
        self._nms: Callable[[Candidates], Detections] = stage_functions(config, loaded)[2]
        self._decoded = _Decoded()  # when the last day was told
        self._decoders = Timeline(nvtx=config.loop.nvtx, max_rows=FEED_ROWS, ring=True)
        self._batch = len(loaded.engine.requests[0].slot)
        self.collector = Collector(
            [],
            self._make_feed,
            batch=self._batch,
            gather=live.gather,
            frames=config.input.frames,
            give_up_s=self._terms.give_up_s,
        )
        self._source = LiveSource(self.collector, _path_of(specs))
        self.status = LiveStatus(
            self.collector, usable_cores(), decoding=lambda: _work_of(self._decoders).cpu_ns
        )
        self._memory = MemoryWatch()
        style = drawing_style(config, loaded)
        self._outputs = CameraOutputs(folder, config, around.say, style)
        self._events = CameraEvents(folder, config, around.say, around.events_to)
        self._draw = partial(annotate, style=style)
        self._router = Router(
            self._outputs.make,
            self.status,
            watcher=around.watcher,
            rules=self._events.rules,
            tell=self._events.tell,
            snapshot=None if folder is None else self._events.add_snapshot,
            draw=self._draw,
            hide=partial(pixelate, class_ids=loaded.blurred) if loaded.blurred else None,
        )
        self._lists = {spec: _stamp(spec) for spec in specs if is_camera_list(spec)}
        self._day: _Day | None = None
        self._over = threading.Event()
        self._clerk = threading.Thread(target=self._work, name="detect-video clerk", daemon=True)
        self._notes: list[str] = []
        max_age_s = self._terms.max_age_s if self._terms.every else None
        self._lines = CameraLines(around.state, around.say, max_age_s)
        self._faults: set[str] = set()
        self._closed = self._told = False

    # ------------------------------------------------------------------
    # Cameras.

    def open(self, cameras: Sequence[Camera], duration_s: float | None) -> None:
        """Checks all cameras, then starts them."""
        for camera in cameras:
            self._class_ids(camera)
        for camera in cameras:
            self.listed.append(camera)
            self._bind_nms()
            self.collector.add(camera)
        if duration_s is not None:
            self.collector.end_after(duration_s)
        around = self._around
        if around.figures_to is not None:
            around.figures_to(self.status.figures)
        if around.controls_to is not None:
            around.controls_to(LiveControls(self) if self._lists else None, self._folder)

    def _make_feed(self, camera: Camera, wake: Callable[[], None]) -> Feed:
        feed = make_feed(camera, self._terms, self._decoders, wake)
        self._router.open(camera, feed, self._class_ids(camera))
        return feed

    def _class_ids(self, camera: Camera) -> frozenset[int] | None:
        """Of the camera's own classes, else of the run's. Raises UsageError for an unknown one."""
        names = self._loaded.network.names
        own = class_ids(f"camera {camera.name}: classes", camera.classes, names)
        ids = self._loaded.classes if own is None else own
        return None if ids is None else frozenset(ids)

    def _bind_nms(self) -> None:
        """NMS keeps what any camera wants, and what is to be pixelated; ``Router.keep`` then
        decides for each camera."""
        wanted = [self._class_ids(camera) for camera in self.listed]
        wanted.append(self._loaded.blurred)
        every = None if None in wanted else tuple(sorted(frozenset().union(*wanted)))  # type: ignore[arg-type]
        loaded = replace(self._loaded, classes=every)
        self._nms = stage_functions(self._config, loaded)[2]

    def switch(self, name: str, *, on: bool) -> None:
        """Starts or stops a camera of the list. Raises UsageError for a name that is not there."""
        with self._changing:
            if self._over.is_set():
                return
            camera = next((one for one in self.listed if one.name == name), None)
            if camera is None:
                raise UsageError(f"{name}: no such camera in {', '.join(self._lists)}")
            running = any(one.camera.name == name for one in self.collector.members())
            if on and not running:
                self._off.discard(name)
                self.collector.add(camera)
            elif not on and running:
                self._off.add(name)
                self._take_out(camera)

    def _take_out(self, camera: Camera) -> None:
        self.collector.remove(camera.name, PATIENCE_S)
        self._router.close_camera(camera.name)

    def _read_lists_again(self) -> None:
        """Adds, removes and changes cameras as cameras.yaml says now. Touches no other."""
        self._lists = {spec: _stamp(spec) for spec in self._lists}
        try:
            cameras = make_cameras(self._specs, self._config.live.repeat)
            for camera in cameras:
                self._class_ids(camera)
        except DetectVideoError as error:
            self._around.say(f"{error}; the cameras stay as they were")
            return
        with self._changing:
            changes = compare_cameras(self.listed, cameras)
            for camera in changes.removed:
                if camera.name not in self._off:
                    self._take_out(camera)
                self._off.discard(camera.name)
            self.listed = list(cameras)
            self._bind_nms()
            for before, after in changes.changed:
                if before.name not in self._off:
                    self._take_out(before)
                    self.collector.add(after)
            for camera in changes.added:
                self.collector.add(camera)
        if changes:
            self._around.say(
                f"cameras: {len(changes.added)} added, {len(changes.removed)} taken out, "
                f"{len(changes.changed)} changed"
            )

    # ------------------------------------------------------------------
    # Days.

    def run(self, close_engine: Callable[[], None]) -> Result:
        self._clerk.start()
        table = self._around.table
        if table is not None:
            table.start(self.status.figures)
        try:
            while True:
                day = self._begin_day()
                with closing_session(day.session):
                    self._run_day(day)
                    if not self._goes_on(day):
                        if table is not None:
                            table.stop()
                        return self._end(day, close_engine)
                    self._write_day(day, None)
        finally:
            if table is not None:
                table.stop()

    def _begin_day(self) -> _Day:
        from detector.core.session.outcome import SourceRun
        from detector.core.session.store import Session

        name = _today()
        parent = self._config.output.run_dir
        folder = Path(parent or Path("runs", FOLDER))
        session = Session.create_in(folder, name, or_temporary=parent is None)
        timeline = new_timeline(self._config, self._loaded.natives, max_rows=ROWS, ring=True)
        run = SourceRun(self._source.info.path, timeline)
        self.status.begin_day(timeline)
        self._memory.begin_day()
        self._memory.sample()
        self._day = _Day(session, run, _EndOfDay(self._stop), name)
        return self._day

    def _goes_on(self, day: _Day) -> bool:
        """Whether only midnight ended the loop."""
        ended = self._stop.is_set() or day.run.error is not None
        return threading.Event.is_set(day.over) and not ended

    def _run_day(self, day: _Day) -> None:
        from detector.core.loop.parts import Progress

        run, progress = day.run, Progress(stop=day.over)
        parts = self._parts()
        run.loop = loop_bounds(parts, self._config)
        try:
            with opencv_threads(overlapped=True), run.timeline.run(loop_label(run.loop)):
                for _, detections in run_loop(parts, self._config, run.timeline, progress):
                    run.by_class.update(detections.class_ids.tolist())
                    run.cut += detections.cut
                    if progress.written == 1:
                        run.timeline.mark()
                run.timeline.mark()
        except DetectVideoError as error:
            run.error = error
        finally:
            run.read, run.written = progress.read, progress.written
            run.device_ms, run.reused = progress.device_ms, progress.reused

    def _parts(self) -> Parts:
        from detector.core.loop.parts import Parts

        engine, router = self._loaded.engine, self._router
        fresh = not self._terms.every
        # A picture that waits in a queue grows old. One request more than workers, so that the
        # engine need not wait for the writer.
        requests = engine.requests[: engine.concurrency + 1] if fresh else engine.requests
        preprocess, head, _ = stage_functions(self._config, self._loaded)
        return Parts(
            source=self._source,
            requests=requests,
            concurrency=engine.concurrency,
            preprocess=preprocess,
            head=head,
            nms=lambda candidates: self._nms(candidates),
            annotate=lambda frame, detections: self._draw(frame.image, detections),
            sinks=[router],
            queue_batches=self._config.loop.queue_batches,
            arrive=self._source.arrive,
            fresh=fresh,
            keep=router.keep,
            wanted=router.wanted,
            clock=time.perf_counter_ns,
        )

    def _end(self, day: _Day, close_engine: Callable[[], None]) -> Result:
        """Closes everything, then writes the last day."""
        if day.run.error is None and not self._stop.is_set() and not self.collector.was_live():
            day.run.error = SourceError(self.collector.failures())
        self._end_clerk()
        self._tell_events(self._states())  # of a camera that failed since the clerk looked last
        last = {one.camera.name: one.facts().error for one in self.collector.members()}
        told = (
            isinstance(day.run.error, SourceError)
            and not self.collector.was_live()
            and bool(last)
            and all(error and self._lines.was_told(name, error) for name, error in last.items())
        )
        with self._timer.phase("close"):
            late = self.collector.stop(PATIENCE_S)
            self._notes += [f"{name}: its connection did not end in time" for name in late]
            self.status.sample()
            self._close_outputs()
            if isinstance(day.run.error, SourceError) and not self.collector.was_live():
                self._events.take_back()  # a wrong address leaves no folder
            close_engine()
        written = self._write_day(day, self._stop.exit_code)
        errors = [] if day.run.error is None else [day.run.error]
        return Result(written.summary, written.folder, [*errors, *written.errors], told=told)

    def _write_day(self, day: _Day, stop_code: int | None) -> Written:
        run = day.run
        run.run_s = time.perf_counter() - day.started
        run.process_cpu_s = time.process_time() - day.cpu
        run.main_thread_cpu_s = time.thread_time() - day.main_cpu
        run.live_s = self.status.live_ns / 1e9
        run.notes += self._notes
        if self.collector.was_live():
            run.info = self._info()
        self._timer.seconds["run"] = run.run_s
        return write_records(
            day.session,
            [run],
            run_facts(self._config, self._loaded),
            self._config,
            self._command,
            seconds=self._timer.seconds,
            stop_code=stop_code,
            model_sha256=self._loaded.network.sha256,
            finish=self._with_streams,
        )

    def _with_streams(self, summary: Summary) -> Summary:
        from detector.core.session.document import Verdict

        streams = self.status.summaries(
            self._loaded.network.names, self._router.paths, self._router.counts()
        )
        dropped, written = sum(sum(one.dropped.values()) for one in streams), summary.frames.written
        counts = replace(summary.frames, read=written + dropped, dropped=dropped)
        summary = replace(summary, frames=counts)
        # The next day begins where this one ended, so that nothing falls between them.
        before, self._decoded = self._decoded, _work_of(self._decoders)
        summary = replace(summary, decoding=self._decoded.since(before))
        summary = replace(summary, memory=self._memory.figures())
        load = self.status.load_of_day()
        if load is None:
            return replace(summary, streams=streams, capacity=None)
        verdict = Verdict(
            bottleneck=busiest_stage(load), sentence=sentence(load), cpu_share=round(load.cpu, 4)
        )
        return replace(summary, streams=streams, capacity=capacity(load), verdict=verdict)

    def _info(self) -> SourceInfo:
        """Of the run as one source: size and rate of the first camera that told its own."""
        info = self._source.info
        for member in self.collector.members():
            facts = member.facts()
            if facts.width and facts.height:
                rate = Fraction(facts.fps or 0).limit_denominator(1000)
                return replace(
                    info, width=facts.width, height=facts.height, fps=rate, codec=facts.codec
                )
        return info

    # ------------------------------------------------------------------
    # The clerk.

    def _work(self) -> None:
        turn = 0
        while not self._over.wait(CLERK_S):
            turn += 1
            try:
                if turn % 2 == 0:
                    self.status.sample()
                if turn % SLOW_TURN == 0:
                    self._memory.sample()
                self._tell_events(states := self._states())
                self._lines.look(states, time.perf_counter_ns())
                if self._reload.is_set() or (turn % SLOW_TURN == 0 and self._lists_changed()):
                    self._reload.clear()
                    self._read_lists_again()
            except DetectVideoError as error:
                self._around.say(str(error))
            except Exception as error:  # a fault of ours must not end figures and events
                self._log(error)
            day = self._day
            if day is not None and day.name != _today():
                day.over.set()

    def _states(self) -> dict[str, FeedFacts]:
        return {one.camera.name: one.facts() for one in self.collector.members()}

    def _tell_events(self, states: Mapping[str, FeedFacts]) -> None:
        self._router.tick(states, time.perf_counter_ns(), time.time())

    def _log(self, error: Exception) -> None:
        """Into the session, and to the user the first time."""
        if self._day is not None:
            self._day.session.log_error(traceback.format_exc())
        if (text := f"{type(error).__name__}: {error}") not in self._faults:
            self._faults.add(text)
            self._around.say(f"internal error, please report it: {text}; the run goes on")

    def _lists_changed(self) -> bool:
        return any(_stamp(spec) != stamp for spec, stamp in self._lists.items())

    def close(self) -> None:
        """Ends what still runs, after whatever happened. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._end_clerk()
        self.collector.stop(PATIENCE_S)
        self._close_outputs()

    def _end_clerk(self) -> None:
        """From here on no camera comes or goes."""
        self._over.set()
        if self._clerk.ident is not None:
            self._clerk.join(2 * PATIENCE_S)

    def _close_outputs(self) -> None:
        """May be called twice."""
        self._router.close()
        if not self._told:
            self._told = True
            self._notes += self._events.close()


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _path_of(specs: Sequence[str]) -> str:
    from detector.core.errors.secrets import Address

    return Address(specs[0]).shown if len(specs) == 1 else f"{len(specs)} cameras"


def _stamp(path: str) -> tuple[int, int, int] | None:
    """What changes with a file's content; None where it is not there now."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _work_of(decoders: Timeline) -> _Decoded:
    """What the feeds' decoders did so far."""
    calls, busy, cpu = {}, 0, 0
    for name, track in list(decoders.tracks.items()):
        if (span := track.spans.get((READ, WORK))) is not None:
            calls[name] = span.calls
            busy += span.self_ns
            cpu += span.cpu_ns
    return _Decoded(calls, busy, cpu)
