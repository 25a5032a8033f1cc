"""``detect-video profile SOURCE``: where the time goes, in separate passes, in one session."""

from __future__ import annotations

import sys
from typing import Any

import click

from detector.cli.command import log_to_trackers, print_json, require_trackers, subcommand, terminal
from detector.cli.options import config_options


@subcommand(options=config_options(), config_file=True, json="what was found", track=True)
@click.argument("source", required=False, metavar="SOURCE")
@click.option(
    "--only", metavar="A,B", help="These passes only; default: all that can run here but sweep."
)
@click.option(
    "--sweep", is_flag=True, help="Also batches 1 to 8 in every precision: some 15 s, or minutes."
)
@click.option(
    "--nsys",
    metavar="FILE",
    help="Instead of SOURCE: an nsys recording of this program, as SQLite export.",
)
@click.option(
    "--prove", is_flag=True, help="Test what-if: run again with stages replaced by stand-ins."
)
@click.option(
    "--csv",
    "as_csv",
    is_flag=True,
    help="Also write steps_timer.csv, layer_timer.csv and energy.csv into the session.",
)
def command(
    source: str | None,
    config_file: str | None,
    only: str | None,
    sweep: bool,
    nsys: str | None,
    prove: bool,
    as_csv: bool,
    as_json: bool,
    trackers: tuple[str, ...],
    **flags: Any,
) -> int:
    """Measure SOURCE in separate passes: loop, critical path, what-if, layers, roofline, memory...

    Each says how long it took. --only chooses; sweep runs where --sweep or --only asks for it.
    """
    from detector.analysis.profile import profile_document
    from detector.config.levels import resolve_config
    from detector.errors import UsageError
    from detector.jobs.profile import profile
    from detector.report.tables import csv_files
    from detector.report.terminal.profile import print_profile
    from detector.report.terminal.run import print_run
    from detector.session.store import write_whole

    if nsys is not None and source is None:
        if as_csv:
            raise UsageError("--csv writes into a run's session; a recording has none: use --json")
        return _print_recording(nsys, as_json)
    if source is None or nsys is not None:
        raise UsageError("profile needs a SOURCE to run, or --nsys FILE to read: one of the two")
    require_trackers(trackers)

    def say(text: str, whole: bool) -> None:
        if not as_json:
            click.echo(text, nl=whole, err=True)

    found = profile(
        source,
        resolve_config(config_file, flags),
        only=[name.strip() for name in only.split(",") if name.strip()] if only else None,
        more=["sweep"] if sweep else [],
        prove=prove,
        command=sys.argv,
        say=say,
    )
    if as_json:
        print_json(profile_document(found))
    else:
        print_run(terminal(piped_width=140), found.document)
        print_profile(terminal(piped_width=140), found)
    for name, text in csv_files(found).items() if as_csv else ():
        write_whole(found.folder / name, text.encode())
    log_to_trackers(trackers, found)
    return int(found.document["exit"]["code"])


def _print_recording(path: str, as_json: bool) -> int:
    from detector.analysis.loop.recorded import recorded_facts
    from detector.report.terminal.profile import print_recorded
    from detector.session.nsys import read_nsys

    facts = recorded_facts(read_nsys(path))
    if as_json:
        print_json(facts)
    else:
        print_recorded(terminal(piped_width=140), facts)
    return 0
