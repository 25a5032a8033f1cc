"""``detect-video infer-raw``: decode outputs for arrays, to compare them with other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from detector.core.cli.command import subcommand
from detector.core.cli.help import Models
from detector.core.cli.options import config_options
from detector.core.cli.printing import echo


@subcommand(
    options=config_options(
        "network", "runtime", "calibration", without=("model", "size", "self_timing")
    ),
    hidden=True,
)
@click.argument("model", type=Models(), metavar="MODEL")
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
def command(model: str, given: str, output: str, **flags: Any) -> None:
    """Run MODEL on the pictures in X.npz and write all decoded rows, before thresholds and NMS."""
    from detector.core.config.levels import resolve_config
    from detector.core.jobs.infer_raw import infer_raw

    config = resolve_config(None, {**flags, "model": model})
    for name, shape in infer_raw(config, Path(given), Path(output)).items():
        echo(f"{output}: {name} {'x'.join(map(str, shape))}")
