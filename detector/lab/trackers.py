"""``--log-to``: a session's figures, tables and report with a run tracker, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from detector.core.cli.help import HelpfulCommand
from detector.core.cli.printing import echo

TRACKERS = ("mlflow", "tensorboard")  # of report/trackers, which --help must not import
LOG_TO = click.Option(
    ["--log-to", "trackers"],
    type=click.Choice(TRACKERS),
    metavar="TRACKER",
    multiple=True,
    help="Log to mlflow or tensorboard: figures, tables and the report. Can be repeated.",
)


class LogsRuns(HelpfulCommand):
    """A command with ``LOG_TO``, which once was called --track. That follows objects."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for one, behind in zip(args, [*args, ""][1:], strict=True):
            option, _, value = one.partition("=")
            name = value or behind
            if option == "--track" and name in TRACKERS:
                raise click.UsageError(
                    (f"--track {name}: experiment trackers have their own option: --log-to {name}"),
                    ctx,
                )
        return super().parse_args(ctx, args)


def require_trackers(trackers: Sequence[str]) -> None:
    if trackers:
        from detector.lab.report.trackers import ready

        for name in trackers:
            ready(name)


def log_to_trackers(trackers: Sequence[str], session: Any) -> None:
    """Logs a session. Says where on stderr, because stdout may be a document."""
    require_trackers(trackers)
    if trackers:
        from detector.lab.report.trackers import track

        for name in trackers:
            echo(track(name, session), err=True)
