"""``detect-video profile SOURCE``: measure where the time goes, in separate passes."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click
from msgspec import UNSET

from detector.core.cli.command import config_options, subcommand
from detector.core.cli.help import Files, HelpfulCommand
from detector.core.cli.printing import echo, print_json, terminal
from detector.core.wings import guest_groups


class _ListsPasses(HelpfulCommand):
    """A command whose help lists the passes. They are imported only if the help is printed."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from detector.lab.profile import list_passes, open_pass

        rows = []
        for name in list_passes():
            one = open_pass(name)
            asked = f" (with {one.on_request} or --only)" if one.on_request else ""
            rows.append((name, f"{one.what}{asked}"))
        with formatter.section("Passes, in order"):
            formatter.write_dl(rows)
        super().format_epilog(ctx, formatter)


@subcommand(
    options=config_options(but=guest_groups()),
    config_file=True,
    json="all facts",
    examples=(
        "detect-video profile in.mp4 --run-dir runs/why  # a run and all passes",
        "detect-video profile in.mp4 --only layers       # time per layer",
    ),
    cls=_ListsPasses,
)
@click.argument("source", type=Files(), required=False, metavar="SOURCE")
@click.option(
    "--only", metavar="A,B", help="Run only these passes. Default: all except those on request."
)
@click.option(
    "--moments",
    is_flag=True,
    help="Also record clock speeds and page faults; costs about 0.2 ms per frame.",
)
@click.option(
    "--nsys",
    metavar="FILE",
    help="Run nothing, and read this Nsight Systems recording: a .nsys-rep or .sqlite file.",
)
@click.option(
    "--nsys-run",
    type=click.IntRange(min=1),
    metavar="N",
    help="Which run to read if the recording has several; default: the one with the most frames.",
)
@click.option(
    "--what-if-seconds",
    metavar="N",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="Time budget of the pass what_if; limits the length and number (3 to 10) of its rounds.",
)
@click.option(
    "--peak",
    metavar="RATE",
    help="Data-sheet peak compute (8.1TFLOPS), shown next to the measured one.",
)
@click.option(
    "--bandwidth", metavar="RATE", help="Data-sheet memory bandwidth (320GB/s); needs --peak."
)
@click.option(
    "--csv",
    "as_csv",
    is_flag=True,
    help="Also write the times as CSV files: by step, by layer, and energy.",
)
@click.option(
    "--verbose", "-v", is_flag=True, help="Print all tables of all passes, as the report does."
)
def command(
    source: str | None,
    config_file: str | None,
    only: str | None,
    moments: bool,
    nsys: str | None,
    nsys_run: int | None,
    what_if_seconds: float,
    peak: str | None,
    bandwidth: str | None,
    as_csv: bool,
    verbose: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Show where every millisecond goes.

    SOURCE runs once for the FPS, then again under each profiler.
    """
    from detector.core.config.levels import resolve_config
    from detector.core.errors import UsageError
    from detector.core.errors.writing import utf8
    from detector.core.run.canvas import refuse_rect
    from detector.core.session.store import add_to_session
    from detector.core.terminal.run import print_run
    from detector.lab.analysis.layers import parse_sheet
    from detector.lab.analysis.profile import profile_document
    from detector.lab.profile import profile
    from detector.lab.report.page import page
    from detector.lab.report.tables import csv_files
    from detector.lab.terminal.profile import list_faster, print_profile

    passes = [name.strip() for name in only.split(",") if name.strip()] if only else None
    if nsys is not None and source is None:
        if as_csv:
            raise UsageError(
                "--csv writes into a run's session, and a recording has none; use --json"
            )
        return _print_recording(nsys, nsys_run, as_json)
    if source is None or nsys is not None:
        raise UsageError("profile needs a SOURCE to run, or --nsys FILE to read: one of the two")
    if nsys_run is not None:
        raise UsageError("--nsys-run N needs --nsys FILE")
    config = resolve_config(config_file, flags)
    refuse_rect(config)
    sheet = parse_sheet(peak, bandwidth)

    def say(text: str, ends_line: bool) -> None:
        if not as_json:
            echo(text, nl=ends_line, err=True)

    session = profile(
        source,
        config,
        only=passes,
        more=["moments"] * moments,
        seconds=what_if_seconds,
        sheet=sheet,
        command=sys.argv,
        say=say,
    )
    report = add_to_session(session.folder, "report.html", page(session))
    if as_json:
        print_json(profile_document(session).as_builtins())
    else:
        print_all = verbose or only is not None
        shown = replace(session.document, session=UNSET)  # only print_profile prints the folder
        faster = list_faster(session)
        print_run(terminal(piped_width=140), shown, verbose=print_all, faster=faster)
        print_profile(terminal(piped_width=140), session, short=not print_all)
        echo(f"report: {report}")
    for name, text in csv_files(session).items() if as_csv else ():
        echo(f"csv: {add_to_session(session.folder, name, utf8(text))}", err=as_json)
    return session.document.exit.code


def _print_recording(path: str, number: int | None, as_json: bool) -> int:
    from detector.lab.analysis.loop.recorded import recorded_facts
    from detector.lab.session.nsys import read_nsys
    from detector.lab.terminal.profile import print_recorded

    facts = recorded_facts(read_nsys(path), number)
    if as_json:
        print_json(facts)
    else:
        print_recorded(terminal(piped_width=140), facts)
    return 0
