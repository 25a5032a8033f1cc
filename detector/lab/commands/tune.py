"""``detect-video tune SOURCE``: the settings that run this source fastest on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detector.core.cli.command import subcommand
from detector.core.cli.help import Files
from detector.core.cli.options import config_options
from detector.core.cli.printing import echo, error_terminal, print_json, terminal
from detector.core.config.schema import CAMERA_GROUPS
from detector.core.errors import UsageError

if TYPE_CHECKING:
    from detector.core.config.schema import Config

WITHOUT = ("output", "run_dir", "frames", "self_timing", "infer_every", "smooth")


@subcommand(
    options=config_options(but=(*CAMERA_GROUPS, "page"), without=WITHOUT),
    config_file=True,
    json="the result",
    quiet="Show no progress.",
    interrupted="tuning stopped; its results are discarded",
    examples=(
        "detect-video tune in.mp4                # the fastest settings, in a minute",
        "detect-video tune in.mp4 --use          # use them for similar runs",
        "detect-video tune --undo                # ... and stop using them",
        "detect-video tune in.mp4 -o tuned.yaml  # save them to a file, for --config",
        "detect-video tune in.mp4 --engine ort   # options that you give stay fixed",
    ),
)
@click.argument("source", type=Files(), metavar="[SOURCE]", required=False)
@click.option(
    "--floor",
    metavar="A",
    type=click.FloatRange(0, 1),
    default=0.97,
    show_default=True,
    help="Minimum agreement with fp32: twice the matched boxes divided by the boxes of both.",
)
@click.option(
    "--seconds",
    metavar="N",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="Time budget.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the settings here, for --config.")
@click.option(
    "--use",
    is_flag=True,
    help="Keep the settings for later runs, on this machine, of this model and kind of input.",
)
@click.option("--undo", is_flag=True, help="Forget what --use kept on this machine, then exit.")
def command(
    source: str | None,
    floor: float,
    seconds: float,
    output: str | None,
    use: bool,
    undo: bool,
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Find the settings that run SOURCE fastest on this machine.

    tune runs the real job, with all its outputs, on the first frames: one short run for each engine
    and precision, then for the numbers of requests at once and of threads, and batch sizes, then
    for queue sizes and encoder settings.
    The faster half gets longer runs, until one setting is left; that one alternates with the
    defaults. The outputs are deleted. Without --use or -o, nothing is kept.

    A later run uses the kept settings, and prints a note, if the model, size and codec are the same
    and none of --engine, --precision, --batch, --threads and --concurrency is given.
    """
    from dataclasses import replace

    from detector.core.config.levels import resolve_config
    from detector.core.errors.guard import keep, refuse_kept
    from detector.core.errors.writing import write_whole
    from detector.core.run.choose import in_words
    from detector.core.terminal.models import progress_bar
    from detector.core.terminal.tables import print_pieces
    from detector.lab.terminal.tune import print_tuning, verdict
    from detector.lab.tune import as_config, tune

    config = resolve_config(config_file, flags)
    if undo:
        _undo(config, source, use or output is not None, as_json)
        return
    if source is None:
        raise UsageError("SOURCE is missing: give the video to tune for")
    if output is not None:
        keep("the source", source)
        refuse_kept(Path(output), "choose another with -o")  # before a minute has passed
    errors = error_terminal()
    with progress_bar(errors, not quiet and errors.is_terminal, one_line=True) as progress:
        found = tune(
            source,
            config,
            floor=floor,
            seconds=seconds,
            watch=lambda doing, done, of: progress(doing, round(done), round(of)),
            clock=time.monotonic,
            use=use,
        )
    if output is not None and found.settings:
        calibrate = config.calibration.calibrate
        write_whole(Path(output), as_config(found, calibrate).encode())
        found = replace(found, file=output)
    if as_json:
        print_json(found)
        return
    console = terminal(piped_width=100)
    words = {place: in_words(trial.settings) for place, trial in enumerate(found.trials)}
    print_tuning(console, found, words)
    print_pieces(console, verdict(found, in_words(found.settings)))
    if output is not None and not found.settings:
        echo(f"{output} was not written.")


def _undo(config: Config, source: str | None, more: bool, as_json: bool) -> None:
    """Raises UsageError for what --undo does not go with, and OutputError."""
    from detector.core.run import measurements
    from detector.core.run.choose import describe

    if source is not None or more:
        raise UsageError("--undo forgets all that --use kept; omit SOURCE, --use and -o")
    dropped = [
        f"{record.model}, {describe(record)}" for record in measurements.forget(config, "tune")
    ]
    if as_json:
        print_json({"schema": 1, "undone": dropped})
        return
    for line in dropped:
        echo(f"undone: {line}")
    if not dropped:
        echo("Nothing to undo: tune --use has kept no settings on this machine.")
