"""``detect-video [detect] SOURCE...``: the main job."""

from __future__ import annotations

import sys
from typing import Any

import click

from detector.cli.command import errors_as_documents, print_json, subcommand, terminal
from detector.cli.exits import complain
from detector.cli.options import config_options

VERBOSE = click.Option(
    ["--verbose", "-v"], is_flag=True, help="Say more: why this engine, how many threads."
)


@subcommand(
    options=[*config_options(), VERBOSE],
    config_file=True,
    json="the summary",
    quiet="Print nothing but errors.",
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
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
    from detector.run.detect import detect

    config = resolve_config(config_file, flags)
    console = terminal(piped_width=140)
    live = building = None
    if console.is_terminal and not (as_json or quiet):
        from detector.report.terminal.live import LiveLine
        from detector.report.terminal.models import build_line

        live, building = LiveLine(console), build_line(console)
    with errors_as_documents(as_json):
        result = detect(sources, config, command=sys.argv, live=live, building=building)
    if as_json:
        print_json(result.summary)
    elif not quiet and result.session is not None:
        from detector.report.terminal.run import print_run

        print_run(console, result.summary, verbose)
    for error in result.errors:
        complain(error)
    return result.exit_code
