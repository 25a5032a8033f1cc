"""``detect-video metrics``: nvprof's metric names in today's words."""

from __future__ import annotations

import click

from detector.cli.command import subcommand
from detector.cli.printing import print_json, terminal


@subcommand(json="the metrics", light=True)
@click.argument("words", nargs=-1, metavar="[WORD]...")
def command(words: tuple[str, ...], as_json: bool) -> None:
    """Say what nvprof's metrics are called in Nsight Compute.

    With WORDs, only metrics that hold one of them in their name or meaning.
    """
    import difflib

    from detector.config.levels import read_level
    from detector.errors import UsageError
    from detector.models.catalogue import folder
    from detector.report.terminal.models import print_metrics

    _, known = read_level(folder() / "nvprof_metrics.yaml")
    text = {name: f"{name} {row['ncu']} {row['says']}".lower() for name, row in known.items()}
    metrics = {
        name: row
        for name, row in known.items()
        if not words or any(word.lower() in text[name] for word in words)
    }
    if not metrics:
        near = difflib.get_close_matches(words[0], known, 3, 0.4)
        hint = f"similar names: {', '.join(near)}" if near else "give no WORD to list all"
        raise UsageError(f"no metric of nvprof contains {' or '.join(words)}; {hint}")
    if as_json:
        print_json({"schema": 1, "metrics": metrics})
    else:
        print_metrics(terminal(piped_width=160), metrics)
