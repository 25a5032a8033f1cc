"""``detect-video doctor``: check what can run on this machine."""

from __future__ import annotations

import click

from detector.core.cli.command import subcommand
from detector.core.cli.printing import print_json, terminal


@subcommand(json="the findings", examples=("detect-video doctor --quick    # check without a run",))
@click.option("--engines-dir", metavar="DIR", help="Check this folder for built engine files.")
@click.option("--quick", is_flag=True, help="Run nothing; check only what is installed.")
def command(engines_dir: str | None, quick: bool, as_json: bool) -> int:
    """Check what can run on this machine and how to fix what cannot.

    Runs every installed engine and the default job for real, each in its own process. The exit code
    is that of the default job: 0 if it can run.
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
