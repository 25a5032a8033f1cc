"""``detect-video report RUN``: a saved session as HTML, table, JSON, CSV or trace; anywhere."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.cli.command import log_to_trackers, subcommand, terminal

if TYPE_CHECKING:
    from detector.session.read import SavedSession

FORMATS = ("html", "table", "json", "csv", "trace")


@subcommand(track=True)
@click.argument("run", metavar="RUN")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="html", show_default=True)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="File, or folder for csv; default: in the session, - for stdout.",
)
def command(run: str, kind: str, output: str | None, trackers: tuple[str, ...]) -> None:
    """Render the saved session of a run. RUN is its folder (runs/NAME)."""
    from detector.session.read import read_session

    session = read_session(run)
    log_to_trackers(trackers, session)
    if kind == "table":
        _print_tables(session)
        return
    for name, content in _render(session, kind).items():
        _write(session.folder, name, content, output, kind == "csv")


def _print_tables(session: SavedSession) -> None:
    from detector.report.terminal.profile import print_profile
    from detector.report.terminal.run import print_run

    console = terminal(piped_width=140)
    print_run(console, replace(session.document, session=str(session.folder)))
    print_profile(console, session)


def _render(session: SavedSession, kind: str) -> dict[str, bytes]:
    """File name -> content."""
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
    """Writes a whole file or none. ``many``: OUT is a folder."""
    from detector.errors.writing import write_whole

    if output == "-":
        sys.stdout.buffer.write(content)
        return
    target = folder / name if output is None else Path(output) / name if many else Path(output)
    write_whole(target, content)
    click.echo(str(target))
