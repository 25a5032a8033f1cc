"""``detect-video [detect] SOURCE...``: the main job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detector.cli.command import errors_as_documents, subcommand
from detector.cli.exits import complain
from detector.cli.help import Files
from detector.cli.options import config_options
from detector.cli.printing import echo, print_json, terminal
from detector.cli.streams import refuse_two_owners, take_standard_output
from detector.errors import EXIT_DAMAGED, SourceError

if TYPE_CHECKING:
    from detector.config.schema import Config, PageConfig
    from detector.engines.base import BuildProgress
    from detector.live.hub import Controls, Hub
    from detector.page.server import Server
    from detector.report.terminal.cameras import CameraTable
    from detector.report.terminal.live import LiveLine
    from detector.run.detect import Result

EXAMPLES = (
    "detect-video in.mp4                               # in-ENGINE-detected.mp4 and .jsonl",
    "detect-video in.mp4 -o out.mp4 --conf 0.4         # out.mp4 and out.jsonl; fewer detections",
    "detect-video 'shots/*.jpg' --classes person       # pictures; one class",
    "detect-video in.mp4 --model yolov5n.pt --size 640 # a model of your own",
    "detect-video in.mp4 --save csv --no-video         # rows only",
    "detect-video - -o - < in.mkv                      # a pipe in, rows out",
    "detect-video in.mp4 --only-detections -o out.webm # clips around what was found",
    "detect-video rtsp://10.0.0.5/stream               # a camera: rows by day in live/",
    "detect-video cameras.yaml --serve 8080            # many, and a page to watch them",
    "detect-video in.mp4 --blur person                 # pixelated where they are found",
)
FORCED = {"FORCE_COLOR", "TTY_COMPATIBLE"}  # make rich take a pipe for a terminal
VERBOSE = click.Option(
    ["--verbose", "-v"],
    is_flag=True,
    help="Say more: why this engine, percentiles of the stages, threads, phases.",
)


@subcommand(
    options=[*config_options(), VERBOSE],
    config_file=True,
    json="the summary",
    quiet="Print nothing but errors, and what is wrong with a damaged source.",
    examples=EXAMPLES,
)
@click.argument("sources", type=Files(), nargs=-1, required=True, metavar="SOURCE...")
def command(
    sources: tuple[str, ...],
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **flags: Any,
) -> int:
    """Detect objects in SOURCE; write an annotated copy and the detections."""
    from detector.config.levels import resolve_config
    from detector.run.inputs import gather_sources, reads_cameras, refuse_camera_options

    config = resolve_config(config_file, flags)
    owners = {"--output -": config.output.output == "-", "--events -": config.events.events == "-"}
    refuse_two_owners({**owners, "--json": as_json})
    with errors_as_documents(as_json):
        specs = gather_sources(sources)
        on_line = {name for name, value in flags.items() if value is not None}
        of_cameras = reads_cameras(specs, config, on_line)
        if not of_cameras:
            refuse_camera_options(specs, config, on_line)
    rows_to = take_standard_output() if owners["--output -"] and not of_cameras else None
    if owners["--events -"]:
        quiet = True  # a reader of events gets nothing else
    # rich takes a twentieth of a start, so where nothing moves it is imported when the run is over.
    moves = sys.stdout.isatty() or not FORCED.isdisjoint(os.environ)
    console = terminal(piped_width=140) if moves and not (as_json or quiet) else None
    shown = console is not None and console.is_terminal
    told = not (shown or as_json or quiet)  # in lines; the table says it too
    line = table = building = None
    if console is not None and shown:
        from detector.report.terminal.cameras import CameraTable
        from detector.report.terminal.live import LiveLine
        from detector.report.terminal.models import build_line

        line, table, building = LiveLine(console), CameraTable(console), build_line(console)
    with errors_as_documents(as_json), _served(config.page) as page:
        if of_cameras:
            result = _detect_cameras(specs, config, page, table, told, building)
        else:
            result = _detect_files(specs, config, page, line, building, rows_to)
    quiet = quiet or result.unread  # who left does not want to read more
    if as_json:
        print_json(result.summary)
    elif not quiet and result.session is not None:
        from detector.report.terminal.run import print_run

        print_run(console or terminal(piped_width=140), result.summary, verbose)
    elif result.exit_code == EXIT_DAMAGED:  # an exit code alone says too little
        for source in result.summary.each:
            if source.exit.code == EXIT_DAMAGED:
                echo(f"{source.video.path}: exit {EXIT_DAMAGED}: {source.exit.reason}", err=True)
    for error in result.errors:
        said = told and result.told and isinstance(error, SourceError)
        complain(SourceError(_no_picture(error)) if said else error)
    return result.exit_code


def _no_picture(error: Exception) -> str:
    """Where a line has said already what is wrong with each camera."""
    from detector.sources.live.collect import GAVE_UP

    return "no camera sent a picture" + (GAVE_UP if str(error).endswith(GAVE_UP) else "")


def _detect_files(
    specs: Sequence[str],
    config: Config,
    page: _Page | None,
    line: LiveLine | None,
    building: BuildProgress | None,
    rows_to: int | None,
) -> Result:
    from detector.run.detect import Hooks, detect

    watched = None
    if page is not None:
        from detector.errors.machine import usable_cores
        from detector.live.watched_files import WatchedFiles

        watched = WatchedFiles(page.hub, line, usable_cores())
    hooks = Hooks(watcher=watched, timed=True)
    return detect(
        specs,
        config,
        command=sys.argv,
        live=watched or line,
        hooks=hooks,
        building=building,
        rows_to=rows_to,
    )


def _detect_cameras(
    specs: Sequence[str],
    config: Config,
    page: _Page | None,
    table: CameraTable | None,
    told: bool,
    building: BuildProgress | None,
) -> Result:
    """``told``: whether a line is printed for each camera that comes or goes: without the table."""
    from detector.run.live import Around, detect_live

    around = Around(table, say=_say, state=_say if told else _keep_quiet)
    if page is not None:
        around = replace(
            around,
            watcher=page.hub,
            figures_to=page.hub.figures_from,
            controls_to=page.control,
            events_to=(page.hub,),
        )
    return detect_live(specs, config, command=sys.argv, around=around, building=building)


def _say(text: str) -> None:
    echo(f"detect-video: {text}", err=True)


def _keep_quiet(text: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True)
class _Page:
    """The page of a run, and what it shows."""

    hub: Hub
    server: Server

    def control(self, controls: Controls | None, recordings: Path | None) -> None:
        """From now on the page starts and stops cameras, and hands out recordings."""
        self.server.controls, self.server.recordings = controls, recordings


@contextmanager
def _served(config: PageConfig) -> Iterator[_Page | None]:
    """With --serve, a page that shows the run while the block lasts."""
    if config.serve is None:
        yield None
        return
    from detector.live.hub import Hub
    from detector.page import serve

    hub = Hub()
    # Before a model is loaded: a port that is taken is said at once.
    server = serve(hub, config, say=_say)
    echo(f"page: {server.address}", err=True)
    try:
        yield _Page(hub, server)
    finally:
        server.close()
