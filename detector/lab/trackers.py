"""``--track``: a session's figures, tables and report with a run tracker, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from detector.core.cli.printing import echo

TRACKERS = ("mlflow", "tensorboard")  # of report/trackers, which --help must not import
TRACK = click.Option(
    ["--track", "trackers"],
    type=click.Choice(TRACKERS),
    multiple=True,
    help="Log figures, tables and the report with this run tracker. Can be repeated.",
)


def require_trackers(trackers: Sequence[str]) -> None:
    """Raises UsageError for a tracker whose library is absent: before the run, not after it."""
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
