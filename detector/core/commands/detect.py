"""``detect-video [detect] SOURCE...``: find objects and write outputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from detector.core.cli.command import config_options, errors_as_documents, subcommand
from detector.core.cli.exits import complain
from detector.core.cli.help import Files
from detector.core.cli.printing import (
    check_standard_output,
    echo,
    print_json,
    take_standard_output,
    terminal,
)
from detector.core.errors import EXIT_DAMAGED, UsageError

if TYPE_CHECKING:
    from detector.core.cli.guest import Guest, Surroundings
    from detector.core.config.schema import Config
    from detector.core.engines.base import BuildProgress
    from detector.core.run.detect import RunResult
    from detector.core.terminal.console import SafeConsole

EXAMPLES = (
    "detect-video in.mp4                          # in-detected.mp4 and .jsonl",
    "detect-video in.mp4 -o out.mp4 --conf 0.4    # a higher threshold",
    "detect-video shots/ --classes person -o out/ # a folder of images, one class",
    "detect-video in.mp4 --model x.onnx           # a model of your own",
    "detect-video in.mp4 --save csv --no-video    # a table, no video",
    "detect-video cameras.yaml --serve 8080       # cameras, on a web page",
    "detect-video - -o - < in.mkv                 # read a pipe, print detections",
    "detect-video in.mp4 --only-detections        # clips around detections",
    "detect-video rtsp://10.0.0.5/stream          # a camera: daily files in live/",
    "detect-video in.mp4 --blur person            # pixelate people",
)
FORCED = {"FORCE_COLOR", "TTY_COMPATIBLE"}  # variables that make rich treat a pipe as a terminal
VERBOSE = click.Option(
    ["--verbose", "-v"],
    is_flag=True,
    help="Print tables instead of the short summary: percentiles, threads, phases, notes.",
)
CHECK = click.Option(
    ["--check"],
    is_flag=True,
    help="Report all errors in camera lists, in options and in --zones. Open no camera.",
)


@subcommand(
    options=[*config_options(), VERBOSE, CHECK],
    config_file=True,
    json="the summary",
    quiet="Print only errors, and what is wrong with a damaged source.",
    examples=EXAMPLES,
)
@click.argument("sources", type=Files(), nargs=-1, required=True, metavar="SOURCE...")
def command(
    sources: tuple[str, ...],
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    check: bool,
    **flags: Any,
) -> int:
    """Write an annotated copy of SOURCE and its detections."""
    from detector.core import wings
    from detector.core.config.levels import resolve_config
    from detector.core.run.inputs import gather_sources
    from detector.core.sources import check as check_source

    config = resolve_config(config_file, flags)
    owners = {f"--{name} -": config.value(name, None) == "-" for name in ("output", "events")}
    check_standard_output({**owners, "--json": as_json})
    with errors_as_documents(as_json):
        specs = gather_sources(sources)
        given = {name for name, value in flags.items() if value is not None}
        guest: Guest | None = wings.guest() if _concerns_wings(specs, config, given) else None
        taken = guest is not None and guest.takes(specs, config, given)
        if check:
            if guest is None or not taken:
                check_source(specs[0])
                raise UsageError("--check is for cameras, not for files; remove it")
            guest.check(specs, config)
            echo("no error found; no camera was opened")
            return 0
    rows_to = take_standard_output() if owners["--output -"] and not taken else None
    if owners["--events -"]:
        quiet = True  # standard output gets only events
    # Importing rich takes 1/20 of the start-up time, so do it now only if there may be a live line.
    may_draw = sys.stdout.isatty() or not FORCED.isdisjoint(os.environ)
    console = terminal(piped_width=80) if may_draw and not (as_json or quiet) else None
    drawn_on = console if console is not None and console.is_terminal else None
    building = None
    if drawn_on is not None:
        from detector.core.terminal.models import build_line

        building = build_line(drawn_on)
    surroundings: AbstractContextManager[Surroundings | None]
    surroundings = nullcontext() if guest is None else guest.around(config, _say)
    with errors_as_documents(as_json), surroundings as around:
        if taken:
            assert guest is not None
            assert around is not None
            result = guest.detect(
                specs,
                config,
                around,
                command=sys.argv,
                console=drawn_on,
                say=_say,
                report_changes=not (drawn_on or as_json or quiet),  # a terminal shows a table
                building=building,
            )
        else:
            shown = verbose and not quiet
            result = _detect_files(specs, config, around, drawn_on, building, rows_to, shown)
    quiet = quiet or result.unread  # the program that read the output has ended
    if as_json:
        print_json(result.summary)
    elif not quiet and result.session is not None:
        from detector.core.terminal.run import print_run

        width = 140 if verbose else 80
        closing = wings.closing_lines(result.summary, verbose)
        print_run(console or terminal(piped_width=width), result.summary, verbose, closing)
    elif result.exit_code == EXIT_DAMAGED:  # explain this exit code even with --quiet
        for source in result.summary.each:
            if source.exit.code == EXIT_DAMAGED:
                _say(f"{source.video.path}: exit {EXIT_DAMAGED}: {source.exit.reason}")
    for error in result.errors:
        complain(error)
    return result.exit_code


def _concerns_wings(specs: Sequence[str], config: Config, given: Container[str]) -> bool:
    """Return True for cameras, sources that are no files, and options for cameras or the page."""
    from detector.core import wings
    from detector.core.config.schema import options
    from detector.core.run.inputs import is_camera

    groups = {name: getattr(config, name) for name in wings.guest_groups()}
    return (
        any(group != type(group)() for group in groups.values())
        or any(name in groups and leaf.name in given for name, leaf in options())
        or any(not os.path.isfile(spec) or is_camera(spec) for spec in specs)
    )


def _detect_files(
    specs: Sequence[str],
    config: Config,
    around: Surroundings | None,
    console: SafeConsole | None,
    building: BuildProgress | None,
    rows_to: int | None,
    verbose: bool,
) -> RunResult:
    from detector.core.run.detect import Hooks, detect

    hooks, line = Hooks(timed=True), None
    if verbose:
        from detector.core.terminal.pictures import PictureLines

        hooks = replace(hooks, detected=PictureLines(console, _say), frame_times=True)
    if console is not None:
        from detector.core.terminal.progress import LiveLine

        line = LiveLine(console)
    watcher, live = (None, line) if around is None else around.watch(line)
    return detect(
        specs,
        config,
        command=sys.argv,
        live=live,
        hooks=replace(hooks, watcher=watcher),
        building=building,
        rows_to=rows_to,
    )


def _say(text: str) -> None:
    echo(text, err=True)
