"""``detect-video doctor``: what can run here, and why not."""

from __future__ import annotations

import json
import sys

import click

from detector.cli.exits import exit_codes


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--engines-dir", metavar="DIR", help="Look at this folder for built engine files.")
@click.option("--quick", is_flag=True, help="Try nothing; judge by what is installed.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the findings as one JSON document, and nothing else.",
)
def command(engines_dir: str | None, quick: bool, as_json: bool) -> None:
    """Say what can run here, and of everything else the reason and the command that helps.

    Every engine that is installed is really tried, and so is the default job, each in a process of its own. The exit
    code is the default job's: 0 where it can run.
    """
    with exit_codes():
        from rich.console import Console

        from detector.config.levels import resolved
        from detector.jobs.doctor import examine
        from detector.report.terminal.doctor import print_findings

        findings = examine(resolved(None, {"engines_dir": engines_dir}), quick)
        if as_json:
            click.echo(json.dumps(findings, indent=1))
        else:
            print_findings(Console(width=None if sys.stdout.isatty() else 100), findings)
        sys.exit(findings["exit"]["code"])
