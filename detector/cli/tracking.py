"""``--track NAME`` of profile and report."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any

import click

NAMES = ("mlflow", "tensorboard")  # those of report/trackers, without importing it for --help
F = typing.TypeVar("F", bound=Callable[..., Any])


def tracked(command: F) -> F:
    return click.option(
        "--track", "trackers", type=click.Choice(NAMES), multiple=True,
        help="Log figures, tables and the report with this run tracker; may stand several times.",
    )(command)  # fmt: skip


def check(trackers: Sequence[str]) -> None:
    """Raises UsageError for one whose library is absent."""
    if trackers:
        from detector.report.trackers import ready

        for name in trackers:
            ready(name)


def log_to(trackers: Sequence[str], session: Any) -> None:
    """Says where on stderr: stdout may be a document."""
    check(trackers)
    if trackers:
        from detector.report.trackers import track

        for name in trackers:
            click.echo(track(name, session), err=True)
