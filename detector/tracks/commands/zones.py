"""``detect-video zones SOURCE``: write a template of lines and zones, and a page to draw them."""

from __future__ import annotations

import shlex
from typing import Any

import click

from detector.core.cli.command import config_options, subcommand
from detector.core.cli.help import Files, HelpfulCommand
from detector.core.cli.printing import echo


@subcommand(examples=("detect-video zones check in.counts.csv in.mp4   # in-check.html",))
@click.argument("counts", type=Files(), metavar="COUNTS.csv")
@click.argument("video", type=Files(), metavar="VIDEO")
@click.option("--zones", type=Files(), metavar="FILE", help="The lines. Default: IN-zones.yaml.")
@click.option(
    "--sample", default=100, type=click.IntRange(1, 1000), help="Crossings to judge (100)."
)
@click.option(
    "--stretch", default=30, type=click.IntRange(1, 1000), help="Seconds to count in (30)."
)
@click.option("--output", "-o", metavar="FILE.html", help="Default: IN-check.html.")
def check(**given: Any) -> None:
    """Write a page on which you judge counted crossings, and count a part of the video by hand."""
    from detector.tracks.check import write_check

    path, shown, counted = write_check(**given)
    echo(f"-> {path}")
    echo(f"open this page in a browser; it shows {shown} of {counted} crossings, chosen at random")


class ZonesCommand(HelpfulCommand):
    """``zones SOURCE`` and ``zones check``. A source named check must be given as ./check."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["check"]:
            return check.make_context(f"{info_name} check", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@subcommand(
    cls=ZonesCommand,
    options=config_options("input", only=("start", "decoder", "video_track")),
    examples=(
        "detect-video zones in.mp4                   # in-zones.yaml and .html",
        "detect-video zones in.mp4 --start 1:30      # a still of that moment",
        "detect-video zones rtsp://10.0.0.5/stream1  # a still from a camera",
        "detect-video in.mp4 --zones in-zones.yaml   # count",
        "detect-video zones check in.counts.csv in.mp4  # verify",
    ),
)
@click.argument("source", type=Files(), metavar="SOURCE")
@click.option(
    "-o",
    "--output",
    metavar="FILE.yaml",
    help="Where to write the template; its page goes next to it. Default: IN-zones.yaml in the "
    "current folder.",
)
def command(source: str, output: str | None, **flags: Any) -> None:
    """Write a template for --zones, and a page to draw on."""
    from detector.core.config.levels import resolve_config
    from detector.tracks.template import write_template

    written = write_template(source, resolve_config(None, flags), output)
    for path in written:
        echo(f"-> {path}")
    echo(
        f"draw in {written[-1]}, save, and move the saved file to {written[0]} (or edit only "
        f"{written[0]}); then run with --zones {shlex.quote(str(written[0]))}"
    )
