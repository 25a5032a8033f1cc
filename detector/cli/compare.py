"""``detect-video compare SOURCE``: engines, precisions and batches on the same frames, in turns."""

from __future__ import annotations

from typing import Any

import click

from detector.cli.command import print_json, subcommand, terminal
from detector.cli.options import config_options

WITHOUT = ("engine", "precision", "batch", "output", "run_dir")


@subcommand(
    options=config_options(without=WITHOUT, defaults={"frames": 60}),
    config_file=True,
    json="the result",
    quiet="Show no progress.",
    interrupted="comparison stopped; nothing of it was kept",
)
@click.argument("source", metavar="SOURCE")
@click.option("--engine", metavar="A,B", help="Engines, with commas; default: all usable here.")
@click.option(
    "--precision",
    metavar="A,B",
    default="fp32",
    show_default=True,
    help="Precisions, with commas: fp32, tf32, bf16, fp16, int8.",
)
@click.option(
    "--batch", metavar="A,B", default="1", show_default=True, help="Batches, with commas."
)
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Rounds; in each, every variant has one turn.",
)
@click.option(
    "--record/--no-record",
    default=True,
    help="Keep the result in the engines' folder, for --engine auto and --precision auto.",
)
@click.option(
    "--labels",
    metavar="F",
    help="Labels of the frames, as eval reads them: adds average precision.",
)
@click.option(
    "--mapping",
    metavar="F",
    help="YAML: which classes of model and labels mean the same; or person-vehicle.",
)
def command(
    source: str,
    engine: str | None,
    precision: str,
    batch: str,
    rounds: int,
    record: bool,
    labels: str | None,
    mapping: str | None,
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Compare engines, precisions and batches on the frames of SOURCE.

    Every variant runs in a process of its own. They take turns, A B C A B C, in several rounds of
    --frames frames (60). Printed are the median and the interval of the rounds; no winner is named
    inside the noise. Beside every speed stands the agreement of the detections with those of fp32,
    and with --labels their average precision. From then on, auto takes the fastest variant that
    agrees.
    """
    from rich.console import Console

    from detector.config.levels import resolve_config
    from detector.jobs.compare import compare_command
    from detector.report.terminal.compare import print_comparison, progress_bar
    from detector.run.signals import terminated_as_exception

    config = resolve_config(config_file, flags)
    errors = Console(stderr=True)
    shown = not quiet and errors.is_terminal
    with terminated_as_exception(), progress_bar(errors, shown) as watch:
        document, code = compare_command(
            source,
            config,
            engine,
            precision,
            batch,
            rounds=rounds,
            recorded=record,
            watch=watch,
            labels=labels,
            mapping=mapping,
        )
    if as_json:
        print_json(document)
    else:
        print_comparison(terminal(piped_width=100), document)
    return code
