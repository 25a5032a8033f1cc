"""``detect-video build MODEL``: build an engine file before the first run, or export the graph."""

from __future__ import annotations

from typing import Any

import click

from detector.core.cli.command import config_options, subcommand
from detector.core.cli.help import Models
from detector.core.cli.printing import echo, error_terminal, print_json

WITHOUT = ("model", "batch", "threads", "concurrency", "self_timing")


@subcommand(
    options=config_options("network", "runtime", "calibration", without=WITHOUT),
    config_file=True,
    json="the result",
    interrupted="build stopped; nothing was kept",
)
@click.argument("model", type=Models(), metavar="MODEL")
@click.option(
    "--batch",
    "batches",
    metavar="N",
    default="1",
    show_default=True,
    help="Frames per inference; 1..8 for a range, if the engine supports it.",
)
@click.option(
    "--to", type=click.Choice(["onnx"]), help="Only export the graph that the engine would run."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="With --to: the file to write; default: NAME-SIZE-bN.onnx in this folder.",
)
def command(
    model: str,
    batches: str,
    to: str | None,
    output: str | None,
    config_file: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Build MODEL's engine file before the first run, or export ONNX.

    An engine file is a graph in another precision, or a file in the engine's own format.
    """
    from detector.core.config.levels import resolve_config
    from detector.core.errors import UsageError
    from detector.core.jobs.build import build, export_onnx, parse_batches
    from detector.core.terminal.models import describe_build, progress_bar

    if output is not None and to is None:
        raise UsageError("--output is for --to onnx; built files go to --engines-dir")
    low, high = parse_batches(batches)
    if to is not None and low != high:
        raise UsageError(f"--batch {batches}: an exported graph has one batch; use --batch {high}")
    config = resolve_config(config_file, {**flags, "model": model, "batch": high})
    errors = error_terminal()
    with progress_bar(errors, errors.is_terminal) as progress:
        facts = export_onnx(config, output) if to else build(config, (low, high), progress)
    if as_json:
        print_json(facts)
    else:
        for line in describe_build(facts):
            echo(line)
