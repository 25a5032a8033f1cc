"""``detect-video diff RUN_A RUN_B``: report what became slower by more than the noise."""

from __future__ import annotations

import click

from detector.core.cli.command import subcommand
from detector.core.cli.help import Files
from detector.core.cli.printing import echo, print_json, terminal


@subcommand(
    json="the changes",
    examples=(
        "detect-video diff  # the last two runs",
        "detect-video diff runs/before runs/after --max-regression 5%  # a gate",
    ),
)
@click.argument("run_a", type=Files(), metavar="[RUN_A]", required=False)
@click.argument("run_b", type=Files(), metavar="[RUN_B]", required=False)
@click.option(
    "--max-regression",
    metavar="P",
    help="Exit with 8 if a frame takes longer by more than P: 5% or 0.05.",
)
@click.option(
    "--strict", is_flag=True, help="Also exit with 8 if --max-regression cannot be judged."
)
def command(
    run_a: str | None, run_b: str | None, max_regression: str | None, strict: bool, as_json: bool
) -> None:
    """Compare two saved sessions: RUN_A before, RUN_B after.

    Default: the newest two in runs/. If the load of other programs differed between the runs,
    --max-regression checks CPU times, not wall times. If that load was more than half of the cores
    in a run, the outcome is "not judged" and the exit code is 0 (with --strict: 8).
    """
    from detector.core.errors import GateError, UsageError
    from detector.lab.analysis.diff import END_TO_END, diff, judge_gate, list_differences
    from detector.lab.analysis.load import compare_cpu, compare_load
    from detector.lab.session.read import newest_runs, read_session
    from detector.lab.terminal.diff import print_diff

    limit = _share(max_regression)
    if strict and limit is None:
        raise UsageError("--strict: needs a limit; add --max-regression 5%")
    if run_a is None or run_b is None:
        run_a, run_b = (run_a, *newest_runs()) if run_a else newest_runs(2)
        echo(f"before: {run_a}, after: {run_b}", err=True)
    before, after = read_session(run_a), read_session(run_b)
    changes, differing = diff(before, after), list_differences(before, after)
    end_to_end = next((change for change in changes if change.what == END_TO_END), None)
    if not changes or (end_to_end is None and limit is not None):
        raise UsageError(
            f"{run_a} and {run_b} have too few frames to compare: each needs six; run more frames"
        )
    load = compare_load(before.document, after.document)
    cpu = compare_cpu(before.document, after.document)
    outcome = reason = None
    if limit is not None and end_to_end is not None:
        outcome, reason = judge_gate(limit, end_to_end, load, cpu)
    if as_json:
        gate = None if outcome is None else {"limit": limit, "outcome": outcome, "reason": reason}
        rows = [change.as_json() for change in changes]
        loads = None if load is None else load.as_json()
        document = {"schema": 1, "changes": rows, "not_the_same": differing, "others": loads}
        print_json(document | {"cpu": [change.as_json() for change in cpu], "gate": gate})
    else:
        print_diff(terminal(piped_width=120), changes, differing, load, cpu)
    if outcome == "failed" or (outcome == "not judged" and strict):
        raise GateError(f"gate {outcome}: {run_a} -> {run_b}: {reason}")
    if outcome == "not judged":
        echo(f"not judged: {reason} (exit code 0; with --strict: 8)", err=True)


def _share(text: str | None) -> float | None:
    """Convert 5% or 0.05 to 0.05. Raises UsageError for 5, since a share of 5 would be 500%."""
    from detector.core.errors import UsageError

    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < (100 if text.endswith("%") else 1):
        raise UsageError(f"--max-regression {text}: not a share; write 5% or 0.05")
    return value
