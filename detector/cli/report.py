"""``detect-video report RUN``: a saved session as HTML, table, JSON, CSV or trace; later, on any machine."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.cli.exits import exit_codes
from detector.cli.options import log_to, tracked

if TYPE_CHECKING:
    from detector.session.read import SavedSession

FORMATS = ("html", "table", "json", "csv", "trace")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", metavar="RUN")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="html", show_default=True)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="File, or folder for csv; default: in the session, - for stdout.",
)
@tracked
def command(run: str, kind: str, output: str | None, trackers: tuple[str, ...]) -> None:
    """Render the saved session of a run, RUN being its folder (runs/NAME)."""
    with exit_codes():
        from detector.session.read import read_session

        session = read_session(run)
        log_to(trackers, session)
        if kind == "table":
            _print(session)
            return
        for name, content in _files(session, kind).items():
            _write(session.folder, name, content, output, kind == "csv")


def _print(session: SavedSession) -> None:
    from rich.console import Console

    from detector.report.terminal.profile import print_profile
    from detector.report.terminal.run import print_run

    console = Console(width=None if sys.stdout.isatty() else 140)
    print_run(console, replace(session.document, session=str(session.folder)))
    print_profile(console, session)


def _files(session: SavedSession, kind: str) -> dict[str, bytes]:
    if kind == "csv":
        from detector.report.tables import csv_files

        return {name: text.encode() for name, text in csv_files(session).items()}
    if kind == "html":
        from detector.report.html import page

        return {"report.html": page(session)}
    if kind == "trace":
        from detector.report.trace import trace

        return {"trace.json.gz": trace(session)}
    from detector.analysis.profile import profile_document

    return {"profile.json": (json.dumps(profile_document(session), indent=1) + "\n").encode()}


def _write(folder: Path, name: str, content: bytes, output: str | None, many: bool) -> None:
    """Under a temporary name first. ``many``: OUT is a folder."""
    from detector.errors.writing import write_whole

    if output == "-":
        sys.stdout.buffer.write(content)
        return
    target = folder / name if output is None else Path(output) / name if many else Path(output)
    write_whole(target, content)
    click.echo(str(target))
