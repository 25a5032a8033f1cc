"""``detect-video burn X.mkv``: draw an overlay's boxes into a video."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from detector.core.cli.command import subcommand
from detector.core.cli.exits import complain
from detector.core.cli.help import Files
from detector.core.cli.options import config_options
from detector.core.cli.printing import echo
from detector.core.errors import EXIT_DAMAGED, EXIT_DONE, DetectVideoError
from detector.core.errors.text import counted

OPTIONS = ("quality", "preset", "crf", "encoder", "decoder")


@subcommand(
    options=[*config_options("input", "output", only=OPTIONS), *config_options("drawing")],
    examples=(
        "detect-video in.mp4 --save overlay          # in-overlay.mkv; encodes nothing",
        "detect-video burn in-overlay.mkv            # later: in-overlay-burnt.mp4",
        "detect-video burn x.mkv -o x.webm --blur person",
    ),
)
@click.argument("overlays", type=Files(), nargs=-1, required=True, metavar="OVERLAY...")
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="File (for one overlay) or folder; default: X-burnt.mp4 in the current folder.",
)
def command(overlays: tuple[str, ...], **flags: Any) -> int:
    """Draw the boxes of an overlay (--save overlay) into a video.

    X.mkv becomes X-burnt.mp4.
    """
    from detector.core.config.levels import resolve_config
    from detector.core.jobs.burn import burn, check_output

    config = resolve_config(None, flags)
    check_output(overlays, config)
    code, taken = EXIT_DONE, set[Path]()
    for spec in overlays:
        try:
            burnt = burn(spec, config, taken)
        except DetectVideoError as error:
            if len(overlays) == 1:
                raise
            complain(error)
            code = code or error.exit_code
            continue
        echo(f"{burnt.path}: {counted(burnt.frames, 'frame')}")
        for note in burnt.notes:
            echo(f"note: {note}", err=True)
        code = code or (EXIT_DAMAGED if burnt.damaged else EXIT_DONE)
    return code
