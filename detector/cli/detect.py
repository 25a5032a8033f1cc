"""``detect-video [detect] SOURCE...``: the main job."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from detector.cli.exits import complain, exit_codes
from detector.cli.options import options_from_config


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@options_from_config
@click.option(
    "--config", "config_file", metavar="F", help="YAML file of options; flags win over it."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the summary as one JSON document, and nothing else.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@click.option("--verbose", "-v", is_flag=True, help="Say more: why this engine, how many threads.")
def command(
    sources: tuple[str, ...],
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **flags: Any,
) -> None:
    """Detect objects in SOURCE; write an annotated copy and the detections."""
    with exit_codes():
        from rich.console import Console

        from detector.config.levels import resolved
        from detector.run.detect import detect
        from detector.session.codec import to_json

        config = resolved(config_file, flags)
        # Piped, there is no width to keep to: the tables stay whole.
        console = Console(width=None if sys.stdout.isatty() else 140)
        live = _live(console) if not (as_json or quiet) else None
        building = _building(console) if live is not None else None
        result = _detect_or_document(detect, sources, config, live, building, as_json)
        if as_json:
            click.echo(to_json(result.summary), nl=False)
        elif not quiet and result.session is not None:
            from detector.report.terminal.run import print_run

            print_run(console, result.summary, verbose)
        for error in result.errors:
            complain(error)
        sys.exit(result.exit_code)


def _live(console: Any) -> Any:
    """The live line on a terminal; nothing where output is piped."""
    if not console.is_terminal:
        return None
    from detector.report.terminal.live import LiveLine

    return LiveLine(console)


def _building(console: Any) -> Any:
    from detector.report.terminal.models import build_line

    return build_line(console)


def _detect_or_document(
    detect: Any, sources: tuple[str, ...], config: Any, live: Any, building: Any, as_json: bool
) -> Any:
    from detector.errors import DetectVideoError

    try:
        return detect(sources, config, command=sys.argv, live=live, building=building)
    except DetectVideoError as error:
        if as_json:
            document = {"schema": 1, "exit": {"code": error.exit_code, "reason": str(error)}}
            click.echo(json.dumps(document, indent=1))
        raise
