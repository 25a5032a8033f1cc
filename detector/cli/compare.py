"""``detect-video compare SOURCE``: engines, precisions and batches on the same frames, turn by turn."""

from __future__ import annotations

import sys
from typing import Any

import click

from detector.cli.exits import exit_codes
from detector.cli.options import options_but


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="SOURCE")
@click.option(
    "--engine",
    "engines",
    metavar="A,B",
    help="Engines, with commas; default: all that are usable here.",
)
@click.option(
    "--precision",
    "precisions",
    metavar="A,B",
    default="fp32",
    show_default=True,
    help="Precisions, with commas: fp32, tf32, bf16, fp16, int8.",
)
@click.option(
    "--batch",
    "batches",
    metavar="A,B",
    default="1",
    show_default=True,
    help="Batches, with commas.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Turns of every variant.",
)
@click.option(
    "--record/--no-record",
    "recorded",
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
@options_but(("engine", "precision", "batch", "output", "run_dir"), {"frames": 60})
@click.option(
    "--config", "config_file", metavar="F", help="YAML file of options; flags win over it."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the result as one JSON document, and nothing else.",
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def command(
    source: str,
    engines: str | None,
    precisions: str,
    batches: str,
    rounds: int,
    recorded: bool,
    labels: str | None,
    mapping: str | None,
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Hold engines, precisions and batches against each other on the frames of SOURCE.

    Every variant runs in a process of its own; they take turns, A B C A B C, in several rounds of --frames frames
    (60). Printed are the median and the interval of the rounds, never a winner inside the noise, and beside every
    speed the agreement of the detections with fp32's, and with --labels their average precision. What is fastest and
    agrees is what auto takes from then on.
    """
    with exit_codes("comparison stopped; nothing of it was kept"):
        from rich.console import Console

        from detector.config.levels import resolved
        from detector.jobs.compare import compare_command
        from detector.report.terminal.compare import print_comparison, progress_bar
        from detector.run.signals import terminated_as_exception
        from detector.session.codec import to_json

        config = resolved(config_file, flags)
        console = Console(width=None if sys.stdout.isatty() else 100)
        errors = Console(stderr=True)
        with (
            terminated_as_exception(),
            progress_bar(errors, not quiet and errors.is_terminal) as watch,
        ):
            document, code = compare_command(
                source,
                config,
                engines,
                precisions,
                batches,
                rounds=rounds,
                recorded=recorded,
                watch=watch,
                labels=labels,
                mapping=mapping,
            )
        if as_json:
            click.echo(to_json(document), nl=False)
        else:
            print_comparison(console, document)
        sys.exit(code)
