"""``detect-video profile SOURCE``: where the time goes, in separate passes, all in one session."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from detector.cli.exits import exit_codes
from detector.cli.options import check, log_to, options_from_config, tracked


class _ListsPasses(click.Command):
    """A command whose help ends with the passes, which are imported only for that."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from detector.jobs.profile import list_passes, open_pass

        rows = []
        for name in list_passes():
            one = open_pass(name)
            asked = f" (only with {one.on_request} or --only)" if one.on_request else ""
            rows.append((name, f"{one.what}{asked}"))
        with formatter.section("Passes, in their order"):
            formatter.write_dl(rows)


@click.command(cls=_ListsPasses, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", required=False, metavar="SOURCE")
@options_from_config
@click.option(
    "--config", "config_file", metavar="F", help="YAML file of options; flags win over it."
)
@click.option(
    "--only", metavar="A,B", help="Run these passes only. Default: all but those on request."
)
@click.option(
    "--sweep",
    is_flag=True,
    help="Also run batches 1 to 8 in every precision: takes 15 s, or minutes.",
)
@click.option(
    "--nsys",
    metavar="FILE",
    help="Read this instead of SOURCE: an nsys recording of this program, exported to SQLite.",
)
@click.option(
    "--prove",
    is_flag=True,
    help="Test the predictions of what-if: run again with stages replaced by stand-ins.",
)
@click.option(
    "--csv",
    "as_csv",
    is_flag=True,
    help="Also write steps_timer.csv, layer_timer.csv and energy.csv into the session.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print all facts as one JSON document, and nothing else.",
)
@tracked
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
) -> None:
    """Measure SOURCE: a plain run, then separate passes, all in one session.

    A pass that needs a profiler runs the pipeline again, so the reported FPS are never disturbed.
    """
    with exit_codes():
        from rich.console import Console

        from detector.analysis.profile import profile_document
        from detector.config.levels import resolved
        from detector.errors import UsageError
        from detector.errors.writing import write_whole
        from detector.jobs.profile import profile
        from detector.report.tables import csv_files
        from detector.report.terminal.profile import print_profile
        from detector.report.terminal.run import print_run

        console = Console(width=None if sys.stdout.isatty() else 140)
        if (source is None) == (nsys is None):
            raise UsageError(
                "profile needs a SOURCE to run, or --nsys FILE to read: one of the two"
            )
        if nsys is not None and as_csv:
            raise UsageError(
                "--csv writes into the session of a run; a recording (--nsys) has none: use --json"
            )
        if nsys is not None or source is None:
            _read_recording(console, str(nsys), as_json)
            return
        check(trackers)

        def say(text: str, whole: bool) -> None:
            if not as_json:
                click.echo(text, nl=whole, err=True)

        wanted = [name.strip() for name in only.split(",") if name.strip()] if only else None
        more = ["sweep"] if sweep else []
        config = resolved(config_file, flags)
        session = profile(
            source, config, only=wanted, more=more, prove=prove, command=sys.argv, say=say
        )
        if as_json:
            click.echo(json.dumps(profile_document(session), indent=1))
        else:
            print_run(console, session.document)
            print_profile(console, session)
        for name, text in csv_files(session).items() if as_csv else ():
            write_whole(session.folder / name, text.encode())
        log_to(trackers, session)
        sys.exit(int(session.document["exit"]["code"]))


def _read_recording(console: Any, path: str, as_json: bool) -> None:
    from detector.analysis.loop.recorded import recorded_facts
    from detector.report.terminal.profile import print_recorded
    from detector.session.nsys import read_nsys

    facts = recorded_facts(read_nsys(path))
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        print_recorded(console, facts)
