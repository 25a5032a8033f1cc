"""``detect-video metrics``: nvprof's metric names and what Nsight Compute calls them."""

from __future__ import annotations

import json
import sys

import click

from detector.cli.exits import exit_codes


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else.")
def command(words: tuple[str, ...], as_json: bool) -> None:
    """List nvprof's metrics by their names in Nsight Compute.

    With WORDs: only metrics whose name or meaning contains one of them.
    """
    with exit_codes():
        import difflib

        from detector.config.schema import read_layer
        from detector.errors import UsageError
        from detector.models.catalogue import folder

        _, known = read_layer(folder() / "nvprof_metrics.yaml")
        text = {name: f"{name} {row['ncu']} {row['says']}".lower() for name, row in known.items()}
        listed = {
            name: row
            for name, row in known.items()
            if not words or any(word.lower() in text[name] for word in words)
        }
        if not listed:
            near = difflib.get_close_matches(words[0], known, 3, 0.4)
            hint = f"similar names: {', '.join(near)}" if near else "give no WORD to list all"
            raise UsageError(f"no metric of nvprof contains {' or '.join(words)}; {hint}")
        if as_json:
            click.echo(json.dumps({"schema": 1, "metrics": listed}, indent=1))
            return
        from rich.console import Console

        from detector.report.terminal.models import print_metrics

        print_metrics(Console(width=None if sys.stdout.isatty() else 160), listed)
