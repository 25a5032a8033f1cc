"""``detect-video build MODEL``: what an engine needs, made before the first run; or the ONNX graph as a file."""

from __future__ import annotations

import json
from typing import Any

import click

from detector.cli.exits import exit_codes
from detector.cli.options import options_but
from detector.config.schema import options

GROUPS = ("network", "runtime", "calibration")
OTHERS = [leaf.name for group, leaf in options() if group not in GROUPS]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", metavar="MODEL")
@click.option(
    "--batch",
    "batches",
    metavar="N",
    default="1",
    show_default=True,
    help="Frames in one inference; 1..8 for a range, where the engine can.",
)
@click.option(
    "--to",
    type=click.Choice(["onnx"]),
    help="Write the graph that we run as a file, and build nothing.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="With --to: the file; default: NAME-SIZE-bN.onnx in this folder.",
)
@options_but((*OTHERS, "model", "batch", "threads", "concurrency"))
@click.option(
    "--config", "config_file", metavar="F", help="YAML file of options; flags win over it."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the result as one JSON document, and nothing else.",
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
    """Build what an engine needs to run MODEL: a graph of another precision, or the engine's own file."""
    with exit_codes("build stopped; nothing of it was kept"):
        from rich.console import Console

        from detector.config.levels import resolved
        from detector.errors import UsageError
        from detector.jobs.build import build, export_onnx, parse_batches
        from detector.report.terminal.models import lines, progress_bar
        from detector.run.signals import terminated_as_exception

        if output is not None and to is None:
            raise UsageError("--output is for --to onnx; built files go to --engines-dir")
        low, high = parse_batches(batches)
        if to is not None and low != high:
            raise UsageError(f"--batch {batches}: a graph has one batch; write --batch {high}")
        config = resolved(config_file, {**flags, "model": model, "batch": high})
        errors = Console(stderr=True)
        with terminated_as_exception(), progress_bar(errors, errors.is_terminal) as progress:
            facts = (
                build(config, (low, high), progress) if to is None else export_onnx(config, output)
            )
        click.echo(json.dumps(facts, indent=1) if as_json else "\n".join(lines(facts)))
