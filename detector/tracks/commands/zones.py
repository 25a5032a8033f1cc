"""``detect-video zones SOURCE``: what one needs to write lines and zones down."""

from __future__ import annotations

from typing import Any

import click

from detector.core.cli.command import subcommand
from detector.core.cli.help import Files
from detector.core.cli.options import config_options
from detector.core.cli.printing import echo
from detector.core.errors import EXIT_DONE


@subcommand(
    options=config_options("input", only=("start", "decoder", "video_track")),
    examples=(
        "detect-video zones in.mp4                   # in-zones.yaml, .png and .html",
        "detect-video zones in.mp4 --start 1:30      # a still of that moment",
        "detect-video zones rtsp://10.0.0.5/stream1  # a still from a camera",
        "detect-video in.mp4 --zones in-zones.yaml   # count",
    ),
)
@click.argument("source", type=Files(), metavar="SOURCE")
@click.option(
    "-o",
    "--output",
    metavar="FILE.yaml",
    help="Where to write the template; .png and .html go next to it. Default: IN-zones.yaml in "
    "the current folder.",
)
def command(source: str, output: str | None, **flags: Any) -> int:
    """Write a template for --zones and a page to draw it on."""
    from detector.core.config.levels import resolve_config
    from detector.core.errors.guard import guarded
    from detector.tracks.template import write_template

    with guarded():
        written = write_template(source, resolve_config(None, flags), output)
    for path in written:
        echo(f"-> {path}")
    echo(
        f"draw in {written[-1]}, save, move the saved file to {written[0]} (or edit that one), "
        f"then run with --zones {written[0]}"
    )
    return EXIT_DONE
