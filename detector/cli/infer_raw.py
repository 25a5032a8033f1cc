"""``detect-video infer-raw``: decoded outputs for arrays, for comparisons with other implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from detector.cli.exits import exit_codes
from detector.cli.options import options_of


@click.command(hidden=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", metavar="MODEL")
@click.option(
    "--input",
    "given",
    required=True,
    metavar="X.npz",
    help="u8 RGB arrays [N, H, W, 3] or [N, 3, H, W].",
)
@click.option(
    "--output", required=True, metavar="Y.npz", help="Decoded rows [N, rows, 5 + classes], float32."
)
@options_of("network", "runtime", "calibration", without=("model", "size"))
def command(model: str, given: str, output: str, **flags: Any) -> None:
    """Run MODEL on the pictures in X.npz and write every decoded row, before any threshold or NMS."""
    with exit_codes():
        from detector.config.levels import resolved
        from detector.jobs.infer_raw import infer_raw

        shapes = infer_raw(resolved(None, {**flags, "model": model}), Path(given), Path(output))
        for name, shape in shapes.items():
            click.echo(f"{output}: {name} {'x'.join(map(str, shape))}")
