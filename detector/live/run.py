"""Runs all cameras through one engine.

    main thread        writes the results of the loop, and the session at the end of each day
    reader, workers    as in a run on a file
    feeds              one or two threads per camera
    monitor            several times a second: figures, changes of cameras, a new day

At midnight (local), the loop restarts with a new timeline, so that every day has its own session.
Feeds and outputs continue.
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
from typing import TYPE_CHECKING

from detector.core import sinks
from detector.core.config.schema import Config
from detector.core.errors import DetectVideoError, OutputError, SourceError, UsageError
from detector.core.errors.addresses import Address
from detector.core.errors.guard import guarded, keep
from detector.core.errors.machine import usable_cores
from detector.core.errors.writing import write_whole
from detector.core.loop.parts import LoopHooks, Parts
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
from detector.core.timeline.timeline import Timeline
from detector.core.types import SourceInfo
from detector.live import day as days
from detector.live.base import RUN_ENDED
from detector.live.camera_lines import CameraLines
from detector.live.camera_outputs import CameraEvents, CameraOutputs, CreatedFolder
from detector.live.camera_tiles import CameraTiles, choose_tiling
from detector.live.canvas import choose_size
from detector.live.config import EventsConfig, LiveConfig, PageConfig, RecordConfig
from detector.live.day import FEED_ROWS, Day, DayFigures, DecodingSums, begin_day
from detector.live.events.filters import EventFilters
from detector.live.figures import LiveStatus
from detector.live.hub import Controls
from detector.live.options import DRAWN, LiveOptions, with_drawn_zones
from detector.live.roster import STOP_TIMEOUT_S, Roster
from detector.live.routing import Router
from detector.live.sources import INFO, LiveSource
from detector.live.sources.base import Camera, Feed, FeedFacts
from detector.live.sources.cameras import collect, make_cameras, raise_all
from detector.live.sources.readers import make_feed
from detector.live.zone_counts import ZoneCounts

if TYPE_CHECKING:
    from detector.core.engines.base import BuildProgress
    from detector.live.base import Event, EventTarget, LiveFigures
    from detector.live.terminal.cameras import CameraTable

SHAPE = (1920, 1080)  # width, height of pictures, assumed if --size gives only one side
MONITOR_S = 0.25
SLOW_TURN = 4  # the monitor checks memory and cameras.yaml at every 4th turn
# File descriptors of a feed's connection, its rows, and its recording with a side-car.
FILES_OF_A_CAMERA = 5
RUN_FAILED = "the run failed"


@dataclass(frozen=True, slots=True)
class Observers:
    """Receivers of a run's pictures, figures, events and messages. ``figures_to`` gets a function
    that returns the figures; ``controls_to`` gets the controls and the folder of outputs. ``say``
    prints a problem or change, and ``state`` a camera's new state."""

    table: CameraTable | None = None
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
    around: Observers = Observers(),
    building: BuildProgress | None = None,
) -> RunResult:
    """Run all cameras until a signal, --duration, --frames or their end.

    The result's summary covers the last day. Raises DetectVideoError for errors before the loop
    starts; ``RunResult.errors`` contains later errors."""
    timer = PhaseTimer()
    timer.seconds["import"] = process_age_s() or 0.0
    with guarded(), reload_on_signal() as reload:
        before, config = config, with_drawn_zones(config)
        if config is not before:
            around.say(f"counting at lines and zones drawn earlier, from {config.value('zones')}")
        asked = PlanDraft.of(config)
        options = LiveOptions.of(specs, asked)
        check_memory(config.runtime.engine)
        keep_inputs(config)
        keep("the source", *(spec for spec in specs if os.path.isfile(spec)))
        cameras = make_cameras(specs, options.config.of(LiveConfig).repeat)
        # Threads: OpenCV's BLAS; reader, worker and monitor; two per feed.
        check_threads(blas_threads() + 3 + 2 * len(cameras))
        check_files(FILES_OF_A_CAMERA * len(cameras))
        created = None if options.folder is None else CreatedFolder(options.folder)
        created_cameras: set[str] = set()
        try:
            picture, line = choose_size(cameras, config)
            tiling = choose_tiling(asked.tiling, cameras)
            plan = replace(asked, tiling=tiling).load(
                timer,
                picture=picture if config.runtime.size is None else SHAPE,
                progress=building,
                timed=True,
            )
            plan.loaded.notes += [] if line is None else [line]
            if addresses := list(filter(is_web, specs)):
                from detector.core.sources._answers import remark_of

                for remark in filter(None, map(remark_of, addresses)):
                    plan.loaded.notes.append(remark)
                    around.state(remark)
            plan.loaded.read_layers()  # read them now: after SIGTERM there is no time
            with plan.loaded, stop_on_signals() as stop:
                run = _LiveRun(options, plan, timer, stop, reload, around)
                try:
                    run.open(cameras)
                    return run.run(command)
                finally:
                    run.close()
                    created_cameras = run.outputs.created
        finally:
            if created is not None:
                created.remove_empty(created_cameras)


def check_live(specs: Sequence[str], config: Config) -> None:
    """Raise the errors of cameras, options, lines and zones, as a run would, but open no camera."""
    from detector.live.events.mqtt import parse_broker
    from detector.live.events.webhook import Webhook, find_address
    from detector.live.page.binding import check_page

    config, errors = with_drawn_zones(config), list[DetectVideoError]()
    with collect(errors):
        cameras = make_cameras(specs, config.of(LiveConfig).repeat, errors)
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
        LiveOptions.of(specs, PlanDraft.of(config))
    with collect(errors):
        if (webhook := config.of(EventsConfig).webhook) is not None:
            Webhook(find_address(webhook))
    with collect(errors):
        if (broker := config.of(EventsConfig).mqtt) is not None:
            parse_broker(broker)
    with collect(errors):
        check_page(config.of(PageConfig))
    raise_all(errors)


class _LiveRun:
    def __init__(
        self,
        options: LiveOptions,
        plan: RunPlan,
        timer: PhaseTimer,
        stop: Stop,
        reload: threading.Event,
        around: Observers,
    ) -> None:
        self._options, self._plan, self._timer, self._around = options, plan, timer, around
        self._stop, self._reload = stop, reload
        decoders = Timeline(nvtx=plan.loop.nvtx, max_rows=FEED_ROWS, ring=True)

        def open_feed(camera: Camera, wake: Callable[[], None]) -> Feed:
            return make_feed(camera, options.terms, decoders, wake)

        self._tiles = CameraTiles(plan)
        self._filters = EventFilters(plan.network.names, self._list_zones)
        self.roster = Roster(options, plan, open_feed, around.say, self._tiles, self._filters)
        self._collector = self.roster.collector
        specs = options.specs
        path = Address(specs[0]).shown if len(specs) == 1 else f"{len(specs)} cameras"
        self._source = LiveSource(self._collector, path)
        self._status = LiveStatus(
            self._collector,
            usable_cores(),
            decoding=lambda: DecodingSums.so_far(decoders).cpu_ns,
            tiles=plan.tiling.text,
            zones=ZoneCounts(options.folder),
        )
        self._day_figures = DayFigures(self._status, decoders, plan.network.names)
        style = plan.drawing.style
        self.outputs = CameraOutputs(
            *(options.folder, options.config.of(RecordConfig), options.encoding, around.say, style),
            filters=self._filters,
            zones="counts" in plan.writing["added_sinks"]
            or (around.controls_to is not None and "counts" in sinks.names()),
            tracks=options.tracks,
            hides=bool(plan.drawing.blurred),
        )
        self._events = CameraEvents(
            options.folder,
            options.config.of(EventsConfig),
            around.say,
            self._filters,
            around.events_to,
        )
        hidden = plan.drawing.blurred
        self._router = Router(
            self.outputs.make,
            self._status,
            watcher=around.watcher,
            rules=self._events.rules,
            send=self._send,
            snapshot=self._events.add_snapshot,
            draw=partial(annotate, style=style),
            hide=partial(pixelate, class_ids=hidden) if hidden else None,
        )
        self._day: Day | None = None
        self._parts: Parts  # parts of the current loop
        self._draw_lock = threading.Lock()
        self._stopping = threading.Event()
        self._monitor = threading.Thread(target=self._run_monitor, name="live monitor", daemon=True)
        self._notes: list[str] = []
        max_age_s = options.terms.max_age_s if options.terms.every else None
        self._lines = CameraLines(around.state, around.say, max_age_s)
        self._logged_errors: set[str] = set()
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
            around.controls_to(controls, self._options.folder)

    def _listed(self) -> list[str]:
        return [one.name for one in self.roster.listed] if self.roster.lists else []

    def _figures(self) -> LiveFigures:
        outputs = self._router.states() | self._events.states()
        return replace(self._status.figures(), events=self._filters.counts.copy(), outputs=outputs)

    def _send(self, event: Event) -> None:
        self.outputs.handle(event)
        self._events.send(event)

    def run(self, command: Sequence[str]) -> RunResult:
        table = self._around.table
        if table is not None:
            table.start(self._status.figures)
        try:
            while True:
                day = begin_day(self._options, self._plan, self._source.info.path, self._stop)
                self._day_figures.begin_day(day.run.timeline)
                self._day = day
                if self._monitor.ident is None:
                    self._monitor.start()
                with closing_session(day.session):
                    self._run_day(day)
                    ended = self._stop.is_set() or day.run.error is not None
                    if ended or not day.end.day_ended:
                        if table is not None:
                            table.stop()
                        return self._end(day, command)
                    self._write_day(day, command, None)
        finally:
            if table is not None:
                table.stop()

    def _run_day(self, day: Day) -> None:
        from detector.core.loop.parts import Progress

        try:
            with opencv_threads(overlapped=True):
                with self._draw_lock:
                    self._parts = self._make_parts()
                self._plan.loop.drive(self._parts, day.run, Progress(stop=day.end))
        except DetectVideoError as error:
            day.run.error = error

    def _make_parts(self) -> Parts:
        plan, fresh = self._plan, not self._options.terms.every
        parts = plan.parts(self._source)
        return replace(
            parts,
            # One request per worker, and one more, are enough to keep the engine busy. With more,
            # pictures would go stale.
            requests=parts.requests[: parts.concurrency + 1] if fresh else parts.requests,
            nms=self.roster.nms,
            annotate=self._router.annotate,
            sinks=[self._router],
            hooks=LoopHooks(
                *(self._source.arrive, fresh, self._router.keep, self._router.needs_boxes),
                inputs=self._tiles if self._tiles.differ else None,
            ),
        )

    def _list_zones(self, camera: str) -> list[str]:
        counting = (one.settings for one in self._plan.extra_stages if "counts" in one.kind.brings)
        return [name for one in counting for name in one.zones_of(camera)]

    def _draw(self, camera: str, drawing: str) -> tuple[str, str]:
        """Store lines and zones that a viewer drew, and use them for counting from now on. Return
        a description of the changes, and the file."""
        from detector.core.stages import between

        folder, zones = self._options.folder, self._plan.as_asked.value("zones", None)
        if (zones is None and folder is None) or (zones or "").startswith("{"):
            raise OutputError("this run has no file for lines; start it with --zones FILE")
        path = zones or f"{folder}/{DRAWN}"
        if zones is None and os.path.islink(path):
            raise OutputError(f"{path}: is a link, but lines need a file; remove it")
        config, kind = self._plan.as_asked.with_options({"zones": path}), between.find("zones")
        with self._draw_lock:
            settings, text, changes = kind.redraw(config.as_dict(), camera, drawing)
            kind.check(settings, self._plan.network.names)
            write_whole(Path(path), text.encode(), "make it writable and draw again", ours=True)
            extra_stages, parts = between.choose(config.as_dict()), self._parts
            self._plan = replace(self._plan, extra_stages=extra_stages, as_asked=config)
            with suppress(UsageError):  # a filter may name a removed line
                self._filters.take([one for one in self.roster.listed if one.name == camera])
            if isinstance(running := parts.between.get("zones"), kind):
                running.change(camera, settings)
            else:
                new_parts = self._plan.parts(self._source)
                # Set the new head last: only the new stages handle its boxes below --conf.
                parts.between, parts.head = {**new_parts.between, **parts.between}, new_parts.head
        self._around.say(f"{camera}: {changes}; lines and zones are in {path}")
        return changes, path

    def _end(self, day: Day, command: Sequence[str]) -> RunResult:
        was_live = self._collector.was_live
        if day.run.error is None and not self._stop.is_set() and not was_live():
            day.run.error = SourceError(self._collector.failures())
        self._stop_monitor()
        self._send_events(self.roster.states())  # for changes since the monitor's last turn
        last = {name: facts.error for name, facts in self.roster.states().items()}
        reported = (
            isinstance(day.run.error, SourceError)
            and not was_live()
            and bool(last)
            and all(error and self._lines.has_reported(name, error) for name, error in last.items())
        )
        with self._timer.phase("close"):
            late = self._collector.stop(STOP_TIMEOUT_S)
            self._notes += [f"{name}: the connection did not close in time" for name in late]
            self._status.sample()
            self._close_outputs(RUN_ENDED if day.run.error is None else RUN_FAILED)
            if isinstance(day.run.error, SourceError) and not was_live():
                self._events.remove_created_files()  # so that a wrong address leaves no folder
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
        notes = {one.camera.name: one.facts().note for one in self._collector.members()}
        run.notes += [f"{name}: {note}" for name, note in notes.items() if note]
        run.notes += self._notes
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
            finish=lambda summary: self._day_figures.finish(summary, self._router),
        )

    def _info(self) -> SourceInfo:
        """Return a source with size, rate and codec of the first camera whose size is known."""
        info = self._source.info
        for facts in self.roster.states().values():
            if facts.width and facts.height:
                rate = Fraction(facts.fps or 0).limit_denominator(1000)
                return replace(
                    info, width=facts.width, height=facts.height, fps=rate, codec=facts.codec
                )
        return info

    def _run_monitor(self) -> None:
        turn = 0
        while not self._stopping.wait(MONITOR_S):
            turn += 1
            try:
                if turn % 2 == 0:
                    self._status.sample()
                if turn % SLOW_TURN == 0:
                    self._day_figures.memory.sample()
                    if (home := self._events.home) is not None:
                        home.publish_changes(self.roster.classes(), self._status.figures)
                self._send_events(states := self.roster.states())
                self._lines.report(states, time.perf_counter_ns())
                changed = turn % SLOW_TURN == 0 and self.roster.lists_changed()
                if self._reload.is_set() or changed:
                    self._reload.clear()
                    self.roster.read_lists_again()
            except DetectVideoError as error:
                self._around.say(str(error))
            except Exception as error:  # figures and events must continue after a bug
                self._log(error)
            day = self._day
            if day is not None and day.name != days.today():
                day.end.set()

    def _send_events(self, states: Mapping[str, FeedFacts]) -> None:
        self._router.tick(states, time.perf_counter_ns(), time.time())

    def _log(self, error: Exception) -> None:
        """Log an error in the session and print it, but only once, because it may recur."""
        if (text := f"{type(error).__name__}: {error}") not in self._logged_errors:
            self._logged_errors.add(text)
            if self._day is not None:
                self._day.session.log_error(traceback.format_exc())
            self._around.say(f"internal error, please report it: {text}; the run continues")

    def close(self) -> None:
        """Stop everything that is still running. May be called twice."""
        self._stop_monitor()
        self._collector.stop(STOP_TIMEOUT_S)
        self._close_outputs(RUN_FAILED)

    def _stop_monitor(self) -> None:
        self.roster.end()
        self._stopping.set()
        if self._monitor.ident is not None:
            self._monitor.join(2 * STOP_TIMEOUT_S)

    def _close_outputs(self, why: str) -> None:
        outputs = self._router.states()
        self._router.close(why)
        if not self._outputs_closed:
            self._outputs_closed = True
            self._events.close()
            outputs |= self._events.states()
            lost = {" ".join(key).strip(): count for key, (_, count) in outputs.items() if count}
            self._notes += [f"{name}: {count} lost" for name, count in lost.items()]
            self._notes += filter(None, [self._filters.line()])
