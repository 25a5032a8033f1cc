"""``detect-video doctor``: what can run here, and why not."""

from __future__ import annotations

import click

from detector.core.cli.command import subcommand
from detector.core.cli.printing import print_json, terminal


@subcommand(
    json="the findings", examples=("detect-video doctor --quick    # only look, try nothing",)
)
@click.option("--engines-dir", metavar="DIR", help="Look at this folder for built engine files.")
@click.option("--quick", is_flag=True, help="Try nothing. Judge by what is installed.")
def command(engines_dir: str | None, quick: bool, as_json: bool) -> int:
    """Say what can run here, and what helps where something cannot.

    Every installed engine is really tried, and so is the default job, each in a process of its own.
    The exit code is the default job's: 0 where it can run.
    """
    from detector.core.config.levels import resolve_config
    from detector.core.jobs.doctor import examine
    from detector.core.terminal.doctor import print_findings

    findings = examine(resolve_config(None, {"engines_dir": engines_dir}), quick)
    if as_json:
        print_json(findings)
    else:
        print_findings(terminal(piped_width=100), findings)
    return int(findings["exit"]["code"])
