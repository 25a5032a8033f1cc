"""The option ``--log-to``, which also logs a session to an experiment tracker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from detector.core.cli.help import HelpfulCommand
from detector.core.cli.printing import echo

TRACKERS = ("mlflow", "tensorboard")  # files of report/trackers, which --help must not import
LOG_TO = click.Option(
    ["--log-to", "trackers"],
    type=click.Choice(TRACKERS),
    metavar="TRACKER",
    multiple=True,
    help="Log to mlflow or tensorboard: figures, tables and the report. Can be repeated.",
)


class LogsRuns(HelpfulCommand):
    """A command with ``LOG_TO``. Reports uses of its old name --track, which now tracks objects."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for word, next_word in zip(args, [*args, ""][1:], strict=True):
            option, _, value = word.partition("=")
            name = value or next_word
            if option == "--track" and name in TRACKERS:
                raise click.UsageError(
                    f"--track {name}: experiment trackers have their own option: --log-to {name}",
                    ctx,
                )
        return super().parse_args(ctx, args)


def require_trackers(trackers: Sequence[str]) -> None:
    if trackers:
        from detector.lab.report.trackers import check_installed

        for name in trackers:
            check_installed(name)


def log_to_trackers(trackers: Sequence[str], session: Any) -> None:
    """Log a session, and print to stderr where, since stdout may be a document."""
    require_trackers(trackers)  # before anything is logged
    if trackers:
        from detector.lab.report.trackers import log_session

        for name in trackers:
            echo(log_session(name, session), err=True)
