"""``detect-video tune SOURCE``: find the fastest settings, or the cheapest for a frame rate."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detector.core.cli.command import config_options, subcommand
from detector.core.cli.help import Files
from detector.core.cli.printing import echo, error_terminal, print_json, terminal
from detector.core.errors import UsageError
from detector.core.wings import guest_groups

if TYPE_CHECKING:
    from detector.core.config.schema import Config

WITHOUT = ("output", "run_dir", "frames", "self_timing", "infer_every", "smooth")
# Options that the printed command for a run omits: first those with a value, then those without.
OWN, OWN_FLAGS = ("--target", "--seconds", "--floor", "-o", "--output"), ("--json", "-q", "--quiet")


@subcommand(
    options=config_options(but=guest_groups(), without=WITHOUT),
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
        "detect-video tune in.mp4 --target 60fps # what reaches 60 FPS at least cost",
    ),
)
@click.argument("source", type=Files(), metavar="[SOURCE]", required=False)
@click.option(
    "--target",
    metavar="FPS",
    help="Find the cheapest settings that reach this rate (60fps). Exit with 8 if none do.",
)
@click.option(
    "--floor",
    metavar="A",
    type=click.FloatRange(0, 1),
    help="Minimum agreement with fp32: twice the matched boxes divided by all boxes of both runs. "
    "Default: 0.97, or 0 with --target.",
)
@click.option(
    "--seconds",
    metavar="N",
    type=click.FloatRange(1, 86400),
    help="Time budget. Default: 60, or 180 with --target.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the settings here, for --config.")
@click.option(
    "--use",
    is_flag=True,
    help="Keep the settings for later runs: those of this model and kind of input on this machine.",
)
@click.option("--undo", is_flag=True, help="Forget what --use kept on this machine, then exit.")
def command(
    source: str | None,
    target: str | None,
    floor: float | None,
    seconds: float | None,
    output: str | None,
    use: bool,
    undo: bool,
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Find the settings that run SOURCE fastest, or reach --target.

    tune runs the real job, with all its outputs, on the first frames. It tries engines, precisions,
    numbers of parallel requests and of threads, batch sizes, queue sizes and encoder settings, in
    turns with the defaults. The faster half stays, until one setting is left, which alternates with
    the defaults. All outputs are deleted. Without --use or -o, no settings are kept.

    With --target it then tries what reduces accuracy or output: precisions, smaller inputs, fewer
    frames, faster encoding or no video; the cheapest set that reaches the rate in every round wins.

    A later run uses the kept settings, and prints a note, if the model, size and codec are the same
    and none of --engine, --precision, --batch, --threads and --concurrency is given.
    """
    from detector.core.config.levels import resolve_config
    from detector.core.errors import GateError
    from detector.core.errors.guard import keep, refuse_kept
    from detector.core.errors.writing import write_whole
    from detector.core.run.judging import as_options
    from detector.core.terminal.models import progress_bar
    from detector.lab.analysis.next_steps import PROGRAM, drop_options
    from detector.lab.terminal.tune import print_tuning
    from detector.lab.tune import FLOOR, SECONDS, SECONDS_OF_TARGET, parse_target, tune
    from detector.lab.tune.records import as_config

    config = resolve_config(config_file, flags)
    if undo:
        _undo(config, source, use or output is not None, as_json)
        return
    if source is None:
        raise UsageError("SOURCE is missing: give the video to tune for")
    target_fps = None if target is None else parse_target(target)
    if use and target_fps is not None:
        raise UsageError(
            "--use keeps only settings that cost no accuracy; with --target, save them with -o FILE"
        )
    if output is not None:
        keep("the source", source)
        refuse_kept(Path(output), "choose another with -o")  # fail now, not after a minute
    if floor is None:
        floor = FLOOR if target_fps is None else 0.0
    if seconds is None:
        seconds = SECONDS if target_fps is None else SECONDS_OF_TARGET
    errors = error_terminal()
    with progress_bar(errors, not quiet and errors.is_terminal, one_line=True) as progress:
        result = tune(
            source,
            config,
            floor=floor,
            seconds=seconds,
            watch=lambda doing, done, of: progress(doing, round(done), round(of)),
            target=target_fps,
            use=use,
        )
    typed = sys.argv[sys.argv.index("tune") + 1 :]
    new = {name: one for name, one in result.settings.items() if config.value(name) != one}
    words = [PROGRAM, *drop_options(typed, OWN, OWN_FLAGS), *as_options(new)]
    result = replace(result, command=() if target_fps is None else tuple(words))
    if output is not None and result.reached is not False:
        calibrate = config.calibration.calibrate
        write_whole(Path(output), as_config(result, calibrate).encode())
        result = replace(result, file=output)
    if as_json:
        print_json(result)
    else:
        print_tuning(terminal(piped_width=100), result)
        if output is not None and not result.settings:
            echo(f"{output} {'keeps the defaults' if result.file else 'was not written'}.")
    if result.reached is False:
        raise GateError(f"--target {target}: no settings that were tried reach it in every round")


def _undo(config: Config, source: str | None, more: bool, as_json: bool) -> None:
    """Forget what --use kept. ``more``: --use or -o was given. Raises UsageError, OutputError."""
    from detector.core.run import saving
    from detector.core.run.judging import describe

    if source is not None or more:
        raise UsageError("--undo forgets all that --use kept; omit SOURCE, --use and -o")
    dropped = [f"{record.model}, {describe(record)}" for record in saving.forget(config, "tune")]
    if as_json:
        print_json({"schema": 1, "undone": dropped})
        return
    for line in dropped:
        echo(f"undone: {line}")
    if not dropped:
        echo("Nothing to undo: tune --use has kept no settings on this machine.")
