"""``detect-video audit``: find mistakes in a benchmark of this or another program."""

from __future__ import annotations

import click

from detector.core.cli.command import subcommand
from detector.core.cli.help import Files
from detector.core.cli.printing import print_json, terminal

NEVER = "never"


@subcommand(
    json="the findings",
    examples=(
        "detect-video audit runs/in                        # a saved run",
        "detect-video audit table.csv README.md            # tables in files",
        "detect-video audit t.csv --machine peak=8.1TFLOPS --machine card=T4",
        "detect-video audit --explain fps-against-latency  # a rule, with examples",
    ),
)
@click.argument("paths", type=Files(), metavar="RUN|TABLE...", nargs=-1)
@click.option(
    "--machine",
    multiple=True,
    metavar="FACT",
    help="A fact of the machine (cores=8, peak=8.1TFLOPS, bandwidth=320GB/s, clock=3.2GHz, "
    "flops_per_cycle=32, card=T4) or of the measurement (pictures=128), or a YAML file of facts. "
    "Can be repeated.",
)
@click.option(
    "--columns",
    type=Files(),
    metavar="FILE",
    help="YAML: how to read column titles ('Lat.': 'latency (ms)'; null skips a column).",
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "note", NEVER]),
    default="error",
    show_default=True,
    help="Exit with 8 if there is a finding of this severity or worse.",
)
@click.option("--explain", metavar="RULE", help='Explain a rule with examples; "all" lists rules.')
def command(
    paths: tuple[str, ...],
    machine: tuple[str, ...],
    columns: str | None,
    fail_on: str,
    explain: str | None,
    as_json: bool,
) -> None:
    """Find mistakes in a benchmark: a saved run or a table."""
    from detector.core.errors import GateError, UsageError
    from detector.core.errors.text import counted
    from detector.lab.audit.case import audit
    from detector.lab.audit.gather import gather
    from detector.lab.audit.machine import read_machine
    from detector.lab.audit.read import read_titles
    from detector.lab.session.audit import SEVERITIES
    from detector.lab.terminal.audit import print_audit, print_rules

    if explain is not None:
        print_rules(terminal(piped_width=80), explain)
        return
    if not paths:
        raise UsageError("nothing to audit: give a run (runs/NAME) or a .json, .csv or .md file")
    titles = read_titles(columns) if columns is not None else {}
    document = audit(gather(paths, titles, read_machine(machine)))
    if as_json:
        print_json(document)
    else:
        print_audit(terminal(piped_width=80), document)
    if fail_on == NEVER:
        return
    failing = SEVERITIES[: [*SEVERITIES].index(fail_on) + 1]  # type: ignore[arg-type]
    counts = [counted(n, one) for one in failing if (n := document.counts[one])]
    if counts:
        raise GateError(f"audit: {', '.join(counts)} (--fail-on {fail_on})")
