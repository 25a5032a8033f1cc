"""One live run: all cameras through one engine.

    the main thread    the loop of a day: its writer, and then the day's session
    its threads        reader and workers, as for files
    feeds              the threads of each camera
    the monitor        several times a second: figures, changes of cameras, a new day

At midnight (local) the loop restarts with a new timeline, so that every day has its own session;
feeds and outputs continue.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from detector.core.config.schema import Config
from detector.core.errors import DetectVideoError, OutputError, SourceError, UsageError
from detector.core.errors.guard import guarded, keep
from detector.core.errors.machine import usable_cores
from detector.core.errors.writing import write_whole
from detector.core.run.canvas import open_network
from detector.core.run.detect import RunResult, Watcher, closing_session
from detector.core.run.environment import process_age_s
from detector.core.run.inputs import keep_inputs
from detector.core.run.limits import (
    blas_threads,
    check_files,
    check_memory,
    check_threads,
    opencv_threads,
)
from detector.core.run.loading import PhaseTimer
from detector.core.run.plan import PlanDraft, RunPlan
from detector.core.run.records import WrittenRecords, write_records
from detector.core.run.selection import class_ids
from detector.core.run.signals import Stop, reload_on_signal, stop_on_signals
from detector.core.sources._forms import is_web
from detector.core.stages.annotate import annotate, pixelate
from detector.core.timeline import Timeline
from detector.core.types import SourceInfo
from detector.live import day as days
from detector.live.asked import LiveAsked
from detector.live.base import RUN_ENDED
from detector.live.camera_lines import CameraLines
from detector.live.camera_outputs import CameraEvents, CameraOutputs, MadeFolder
from detector.live.camera_tiles import CameraTiles, tiling_of_cameras
from detector.live.canvas import picture_of_cameras
from detector.live.day import FEED_ROWS, Day, DayBooks, DecodingSums, begin_day
from detector.live.events.filters import EventFilters
from detector.live.figures import LiveStatus
from detector.live.hub import Controls
from detector.live.roster import PATIENCE_S, Roster
from detector.live.routing import Router
from detector.live.sources import INFO, LiveSource
from detector.live.sources.base import Camera, Feed, FeedFacts
from detector.live.sources.cameras import collect, make_cameras, raise_all
from detector.live.sources.readers import make_feed
from detector.live.zone_counts import ZoneCounts

if TYPE_CHECKING:
    from detector.core.engines.base import BuildProgress
    from detector.core.loop.parts import Parts
    from detector.live.base import Event, EventTarget, LiveFigures

SHAPE = (1920, 1080)  # assumed for --size 640 before a camera has reported its size
MONITOR_S = 0.25
SLOW_TURN = 4  # turns of the monitor between checks of memory and cameras.yaml
# File descriptors: a feed's connection, rows, and a recording with its side-car.
FILES_OF_A_CAMERA = 5
RUN_FAILED = "the run failed"


class LiveTable(Protocol):
    def start(self, figures: Callable[[], LiveFigures]) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Onlookers:
    """The parts around a live run. ``figures_to`` and ``controls_to`` are called once, before the
    first picture: with a function that returns the figures; with the controls and the folder of
    outputs, if any. ``say`` prints a problem or change, ``state`` that a camera came or went."""

    table: LiveTable | None = None
    watcher: Watcher | None = None
    figures_to: Callable[[Callable[[], LiveFigures]], None] | None = None
    controls_to: Callable[[Controls, Path | None], None] | None = None
    events_to: Sequence[EventTarget] = ()
    say: Callable[[str], None] = lambda line: None
    state: Callable[[str], None] = lambda line: None


def detect_live(
    specs: Sequence[str],
    config: Config,
    *,
    command: Sequence[str] = (),
    around: Onlookers = Onlookers(),
    building: BuildProgress | None = None,
) -> RunResult:
    """Run all cameras until a signal, --duration, --frames or their end.

    Summary and ``streams`` of the result cover the last day. Raises DetectVideoError for errors
    before the first picture; ``RunResult.errors`` has later ones.
    """
    timer = PhaseTimer()
    timer.seconds["import"] = process_age_s() or 0.0
    with guarded(), reload_on_signal() as reload:
        asked = PlanDraft.of(config)
        live = LiveAsked.of(specs, asked)
        check_memory(config.runtime.engine)
        keep_inputs(config)
        keep("the source", *(spec for spec in specs if os.path.isfile(spec)))
        cameras = make_cameras(specs, live.repeat)
        # OpenCV's BLAS; reader, worker, monitor; two threads per feed.
        check_threads(blas_threads() + 3 + 2 * len(cameras))
        check_files(FILES_OF_A_CAMERA * len(cameras))
        made = None if live.folder is None else MadeFolder(live.folder)
        cameras_made: set[str] = set()
        try:
            picture, line = picture_of_cameras(cameras, config)
            tiling = tiling_of_cameras(asked.tiling, cameras)
            plan = replace(asked, tiling=tiling).load(
                timer, picture=SHAPE if live.sized else picture, progress=building, timed=True
            )
            plan.loaded.notes += [] if line is None else [line]
            if addresses := list(filter(is_web, specs)):
                from detector.core.sources._answers import remark_of

                for remark in filter(None, map(remark_of, addresses)):
                    plan.loaded.notes.append(remark)
                    around.state(remark)
            plan.loaded.read_layers()  # now, because SIGTERM leaves no time for it at the end
            with plan.loaded, stop_on_signals() as stop:
                run = _LiveRun(live, plan, timer, stop, reload, around)
                try:
                    run.open(cameras)
                    return run.run(command)
                finally:
                    run.close()
                    cameras_made = run.outputs.made
        finally:
            if made is not None:
                made.take_back(cameras_made)


def check_live(specs: Sequence[str], config: Config) -> None:
    """Raise all that a run refuses in cameras, options, lines and zones, and open no camera."""
    errors: list[DetectVideoError] = []
    with collect(errors):
        cameras = make_cameras(specs, config.live.repeat)
        asked, network = PlanDraft.of(config), open_network(config)
        for stage in asked.extra_stages:
            with collect(errors):
                stage.kind(stage.settings, INFO, network.names, config.selection.conf)
        counting = [one.settings for one in asked.extra_stages if "counts" in one.kind.brings]
        zones = [name for one in counting for each in cameras for name in one.zones_of(each.name)]
        for camera in cameras:
            with collect(errors):
                class_ids(f"camera {camera.name}: classes", camera.classes, network.names)
            with collect(errors):
                EventFilters(network.names, lambda name: zones).take([camera])
        asked.with_network(network)
    with collect(errors):
        LiveAsked.of(specs, PlanDraft.of(config))
    raise_all(errors)


class _LiveRun:
    def __init__(
        self,
        asked: LiveAsked,
        plan: RunPlan,
        timer: PhaseTimer,
        stop: Stop,
        reload: threading.Event,
        around: Onlookers,
    ) -> None:
        self._asked, self._plan, self._timer, self._around = asked, plan, timer, around
        self._stop, self._reload = stop, reload
        decoders = Timeline(nvtx=plan.loop.nvtx, max_rows=FEED_ROWS, ring=True)

        def open_feed(camera: Camera, wake: Callable[[], None]) -> Feed:
            return make_feed(camera, asked.terms, decoders, wake)

        self._tiles = CameraTiles(plan)
        self._filters = EventFilters(plan.network.names, self._zones_of)
        self.roster = Roster(asked, plan, open_feed, around.say, self._tiles, self._filters)
        self._collector = self.roster.collector
        self._source = LiveSource(self._collector, _path_of(asked.specs))
        self._status = LiveStatus(
            self._collector,
            usable_cores(),
            decoding=lambda: DecodingSums.so_far(decoders).cpu_ns,
            tiles=self._tiles.text,
            zones=ZoneCounts(asked.folder),
        )
        self._books = DayBooks(self._status, decoders, plan.network.names)
        style = plan.drawing.style
        self.outputs = CameraOutputs(
            *(asked.folder, asked.record, asked.encoding, around.say, style),
            filters=self._filters,
            zones="counts" in plan.writing["added_sinks"] or around.controls_to is not None,
            tracks=asked.tracks,
            hides=bool(plan.drawing.blurred),
        )
        self._events = CameraEvents(
            *(asked.folder, asked.events, around.say, self._filters, around.events_to)
        )
        hidden = plan.drawing.blurred
        self._router = Router(
            self.outputs.make,
            self._status,
            watcher=around.watcher,
            rules=self._events.rules,
            tell=self._tell,
            snapshot=self._events.add_snapshot,
            draw=partial(annotate, style=style),
            hide=partial(pixelate, class_ids=hidden) if hidden else None,
        )
        self._day: Day | None = None
        self._parts: Parts  # of the current loop
        self._drawing = threading.Lock()
        self._over = threading.Event()
        self._monitor = threading.Thread(target=self._work, name="live monitor", daemon=True)
        self._notes: list[str] = []
        max_age_s = asked.terms.max_age_s if asked.terms.every else None
        self._lines = CameraLines(around.state, around.say, max_age_s)
        self._faults: set[str] = set()
        self._outputs_closed = False

    def open(self, cameras: Sequence[Camera]) -> None:
        self._parts = self._make_parts()  # raises for unsupported options, before a session exists
        self.roster.open(cameras, self._router)
        around = self._around
        if around.figures_to is not None:
            around.figures_to(self._figures)
        if around.controls_to is not None:
            start, stop = (partial(self.roster.switch, on=on) for on in (True, False))
            controls = Controls(self._listed, start, stop, self._draw)
            around.controls_to(controls, self._asked.folder)

    def _listed(self) -> list[str]:
        return [one.name for one in self.roster.listed] if self.roster.lists else []

    def _figures(self) -> LiveFigures:
        return replace(self._status.figures(), events=self._filters.counts.copy())

    def _tell(self, event: Event) -> None:
        self.outputs.tell(event)
        self._events.tell(event)

    def run(self, command: Sequence[str]) -> RunResult:
        table = self._around.table
        if table is not None:
            table.start(self._status.figures)
        try:
            while True:
                day = begin_day(self._asked, self._plan, self._source.info.path, self._stop)
                self._books.begin_day(day.run.timeline)
                self._day = day
                if self._monitor.ident is None:
                    self._monitor.start()
                with closing_session(day.session):
                    self._run_day(day)
                    if not self._goes_on(day):
                        if table is not None:
                            table.stop()
                        return self._end(day, command)
                    self._write_day(day, command, None)
        finally:
            if table is not None:
                table.stop()

    def _goes_on(self, day: Day) -> bool:
        """Return whether only midnight ended the loop."""
        ended = self._stop.is_set() or day.run.error is not None
        return day.over.has_come and not ended

    def _run_day(self, day: Day) -> None:
        from detector.core.loop.parts import Progress

        try:
            with opencv_threads(overlapped=True):
                with self._drawing:
                    self._parts = self._make_parts()
                self._plan.loop.drive(self._parts, day.run, Progress(stop=day.over))
        except DetectVideoError as error:
            day.run.error = error

    def _make_parts(self) -> Parts:
        plan, fresh = self._plan, not self._asked.terms.every
        parts = plan.parts(self._source)
        return replace(
            parts,
            # Queued pictures go stale; one request more than workers keeps the engine busy.
            requests=parts.requests[: parts.concurrency + 1] if fresh else parts.requests,
            nms=self.roster.nms,
            annotate=self._router.annotate,
            sinks=[self._router],
            arrive=self._source.arrive,
            fresh=fresh,
            keep=self._router.keep,
            wanted=self._router.wanted,
            clock=time.perf_counter_ns,
            inputs=self._tiles if self._tiles.differ else None,
        )

    def _zones_of(self, camera: str) -> list[str]:
        counting = (one.settings for one in self._plan.extra_stages if "counts" in one.kind.brings)
        return [name for one in counting for name in one.zones_of(camera)]

    def _draw(self, camera: str, drawing: str) -> tuple[str, str]:
        """Store what a viewer drew (``hub.Controls``), and count with it from the next frame on."""
        from detector.core.stages import between

        folder, zones = self._asked.folder, self._plan.as_asked.tracking.zones
        if (zones is None and folder is None) or (zones or "").startswith("{"):
            raise OutputError("this run has no file for lines; start it with --zones FILE")
        path = zones or f"{folder}/zones.yaml"
        if zones is None and os.path.islink(path):
            raise OutputError(f"{path}: is a link, and lines belong in a file; remove it")
        config, kind = self._plan.as_asked.with_options({"zones": path}), between.find("zones")
        with self._drawing:
            settings, text, changes = kind.redraw(config.as_dict(), camera, drawing)
            kind.check(settings, self._plan.network.names)
            write_whole(Path(path), text.encode(), "draw again when it can be", ours=True)
            wanted, parts = between.wanted(config.as_dict()), self._parts
            self._plan = replace(self._plan, extra_stages=wanted, as_asked=config)
            with suppress(UsageError):  # a filter for a removed line stays
                self._filters.take([one for one in self.roster.listed if one.name == camera])
            if isinstance(running := parts.between.get("zones"), kind):
                running.change(camera, settings)
            else:
                made = self._plan.parts(self._source)
                # Stages first: the new head also returns boxes below --conf, only for tracks.
                parts.between, parts.head = {**made.between, **parts.between}, made.head
        self._around.say(f"{camera}: {changes}; lines and zones are in {path}")
        return changes, path

    def _end(self, day: Day, command: Sequence[str]) -> RunResult:
        was_live = self._collector.was_live
        if day.run.error is None and not self._stop.is_set() and not was_live():
            day.run.error = SourceError(self._collector.failures())
        self._stop_monitor()
        self._tell_events(self.roster.states())  # since the monitor's last turn
        last = {name: facts.error for name, facts in self.roster.states().items()}
        reported = (
            isinstance(day.run.error, SourceError)
            and not was_live()
            and bool(last)
            and all(error and self._lines.has_reported(name, error) for name, error in last.items())
        )
        with self._timer.phase("close"):
            late = self._collector.stop(PATIENCE_S)
            self._notes += [f"{name}: the connection did not close in time" for name in late]
            self._status.sample()
            self._close_outputs(RUN_ENDED if day.run.error is None else RUN_FAILED)
            if isinstance(day.run.error, SourceError) and not was_live():
                self._events.take_back()  # a wrong address must leave no folder
            self._plan.loaded.close([day.run])
        written = self._write_day(day, command, self._stop.exit_code)
        errors = [] if day.run.error is None else [day.run.error]
        return RunResult(
            written.summary, written.folder, [*errors, *written.errors], errors_shown=reported
        )

    def _write_day(self, day: Day, command: Sequence[str], stop_code: int | None) -> WrittenRecords:
        run = day.run
        day.clock.note(run)
        run.live_s = self._status.live_ns / 1e9
        odd = {one.camera.name: one.facts().note for one in self._collector.members()}
        run.notes += [f"{name}: {note}" for name, note in odd.items() if note]
        run.notes += [*self._tiles.lines(), *self._notes]
        if self._collector.was_live():
            run.info = self._info()
        self._timer.seconds["run"] = run.run_s
        return write_records(
            day.session,
            [run],
            self._plan,
            command,
            seconds=self._timer.seconds,
            stop_code=stop_code,
            finish=lambda summary: self._books.finish(summary, self._router),
        )

    def _info(self) -> SourceInfo:
        """Describe the run as one source: size and rate of the first camera that has them."""
        info = self._source.info
        for facts in self.roster.states().values():
            if facts.width and facts.height:
                rate = Fraction(facts.fps or 0).limit_denominator(1000)
                return replace(
                    info, width=facts.width, height=facts.height, fps=rate, codec=facts.codec
                )
        return info

    def _work(self) -> None:
        turn = 0
        while not self._over.wait(MONITOR_S):
            turn += 1
            try:
                if turn % 2 == 0:
                    self._status.sample()
                if turn % SLOW_TURN == 0:
                    self._books.memory.sample()
                    if (home := self._events.home) is not None:
                        home.look(self.roster.classes(), self._status.figures)
                self._tell_events(states := self.roster.states())
                self._lines.look(states, time.perf_counter_ns())
                for line in self._tiles.decide(states):
                    self._around.state(line)
                changed = turn % SLOW_TURN == 0 and self.roster.lists_changed()
                if self._reload.is_set() or changed:
                    self._reload.clear()
                    self.roster.read_lists_again()
            except DetectVideoError as error:
                self._around.say(str(error))
            except Exception as error:  # a bug must not stop figures and events
                self._log(error)
            day = self._day
            if day is not None and day.name != days.today():
                day.over.set()

    def _tell_events(self, states: Mapping[str, FeedFacts]) -> None:
        self._router.tick(states, time.perf_counter_ns(), time.time())

    def _log(self, error: Exception) -> None:
        """Log an error into the session and print it, but only once: it may recur each turn."""
        if (text := f"{type(error).__name__}: {error}") not in self._faults:
            self._faults.add(text)
            if self._day is not None:
                self._day.session.log_error(traceback.format_exc())
            self._around.say(f"internal error, please report it: {text}; the run continues")

    def close(self) -> None:
        """Stop everything that still runs, whatever happened. May be called twice."""
        self._stop_monitor()
        self._collector.stop(PATIENCE_S)
        self._close_outputs(RUN_FAILED)

    def _stop_monitor(self) -> None:
        self.roster.end()
        self._over.set()
        if self._monitor.ident is not None:
            self._monitor.join(2 * PATIENCE_S)

    def _close_outputs(self, why: str) -> None:
        self._router.close(why)
        if not self._outputs_closed:
            self._outputs_closed = True
            self._notes += filter(None, [*self._events.close(), self._filters.line()])


def _path_of(specs: Sequence[str]) -> str:
    from detector.core.errors.secrets import Address

    return Address(specs[0]).shown if len(specs) == 1 else f"{len(specs)} cameras"
