"""``detect-video report RUN``: render a saved session as HTML, tables, JSON, CSV or a trace."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.core.cli.command import subcommand
from detector.core.cli.help import Files
from detector.core.cli.printing import check_standard_output, echo, terminal

if TYPE_CHECKING:
    from detector.lab.session.read import SavedSession

FORMATS = ("html", "table", "json", "csv", "trace")
HELP_FORMATS = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}; default: html."


@subcommand(
    examples=(
        "detect-video report                         # the most recent run",
        "detect-video report runs/in                 # runs/in/report.html",
        "detect-video report runs/in --format trace  # for chrome://tracing, Perfetto",
    )
)
@click.argument("run", type=Files(), metavar="[RUN]", required=False)
@click.option(
    "--format", "kind", metavar="F", type=click.Choice(FORMATS), default="html", help=HELP_FORMATS
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="File, or folder for csv; - for stdout. Default: in the run's folder.",
)
def command(run: str | None, kind: str, output: str | None) -> None:
    """Render the report of a saved run. RUN is its folder; default: the newest in runs/."""
    from detector.core.session.store import keep_session
    from detector.lab.session.read import newest_runs, read_session

    session = read_session(run or newest_runs()[0])
    keep_session(session.folder)
    if kind == "table":
        _print_tables(session)
        return
    for name, content in _render(session, kind, output).items():
        _write(session.folder, name, content, output, kind == "csv")


def _print_tables(session: SavedSession) -> None:
    from detector.core.terminal.run import print_run
    from detector.lab.terminal.profile import print_profile

    console = terminal(piped_width=140)
    print_run(console, replace(session.document, session=str(session.folder)), verbose=True)
    print_profile(console, session)


def _render(session: SavedSession, kind: str, output: str | None) -> dict[str, bytes]:
    if kind == "csv":
        from detector.core.errors.writing import utf8
        from detector.lab.report.tables import csv_files

        return {name: utf8(text) for name, text in csv_files(session).items()}
    if kind == "html":
        from detector.lab.report.page import page

        return {"report.html": page(session)}
    if kind == "trace":
        from detector.lab.report.trace import trace

        # A .json file or a pipe gets uncompressed JSON.
        return {"trace.json.gz": trace(session, output is None or output.endswith(".gz"))}
    from detector.core.session.codec import to_json
    from detector.lab.analysis.profile import profile_document

    return {"profile.json": to_json(profile_document(session).as_builtins()).encode()}


def _write(folder: Path, name: str, content: bytes, output: str | None, many: bool) -> None:
    from detector.core.errors.writing import is_null_device, write_whole
    from detector.core.session.store import add_to_session

    if output == "-":
        check_standard_output({"--output -": True})
        sys.stdout.buffer.write(content)
        return  # main flushes stdout and reports errors
    if output is None:
        target = add_to_session(folder, name, content)
    else:
        is_folder = many and not is_null_device(output)
        target = Path(output) / name if is_folder else Path(output)
        write_whole(target, content)
    echo(str(target))
