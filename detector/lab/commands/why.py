"""``detect-video why RUN``: explain why single frames of a saved run were slow."""

from __future__ import annotations

import click

from detector.core.cli.command import subcommand
from detector.core.cli.help import Files
from detector.core.cli.printing import print_json, terminal


@subcommand(
    json="the frames and their causes",
    examples=(
        "detect-video why                          # the slowest of the last run",
        "detect-video why runs/in-ort --frame 212  # one frame, stage by stage",
    ),
)
@click.argument("run", type=Files(), metavar="[RUN]", required=False)
@click.option("--frame", metavar="N", type=click.IntRange(min=0), help="Only frame N (first: 0).")
@click.option(
    "--slowest",
    metavar="N",
    type=click.IntRange(1, 1000),
    help="Number of slowest frames to explain; default: 10.",
)
def command(run: str | None, frame: int | None, slowest: int | None, as_json: bool) -> None:
    """Explain the slow frames of a saved run.

    Default: the newest in runs/. Print how long each frame waited and for what, the call that
    delayed it, and the cause: garbage collection, no free core, the disk, many boxes, a key frame,
    a slow CPU clock. Facts that were not recorded are listed; `profile --moments` records them.
    """
    from detector.core.errors import UsageError
    from detector.lab.session.read import newest_runs, read_session
    from detector.lab.terminal.why import print_why
    from detector.lab.why import explain

    if frame is not None and slowest is not None:
        raise UsageError("--frame and --slowest exclude each other; give one of them")
    document = explain(read_session(run or newest_runs()[0]), frame, slowest or 10)
    if as_json:
        print_json(document)
    else:
        print_why(terminal(piped_width=100), document)
