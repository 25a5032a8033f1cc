"""``detect-video batch SOURCES... -o OUT``: process many videos; --resume continues a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from detector.core.cli.command import config_options, errors_as_documents, subcommand
from detector.core.cli.help import Files
from detector.core.cli.printing import echo, print_json, terminal
from detector.core.errors import OutputError, UsageError
from detector.core.errors.text import counted
from detector.core.wings import guest_groups

if TYPE_CHECKING:
    from detector.batch.documents import BatchProgress
    from detector.batch.job import Request, Watch
    from detector.core.terminal.console import SafeConsole

WITHOUT = ("output", "run_dir")
PROGRESS_EVERY_S = 1.0


@subcommand(
    options=config_options(but=guest_groups(), without=WITHOUT),
    config_file=True,
    json="the result",
    quiet="Print nothing but errors.",
    interrupted="the batch job stopped; continue with --resume",
    examples=(
        "detect-video batch videos -o out           # every video and image in it",
        "detect-video batch videos -o out --resume  # continue: skip what is done",
        "detect-video batch 'cam*/2026-11-*' list.txt -o out --workers 4 --no-video",
        "detect-video batch -o out --status         # during or after the job",
        "detect-video batch /nas/videos -o /nas/out --on ray",
    ),
)
@click.argument("sources", type=Files(), nargs=-1, metavar="SOURCE...")
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=Files(),
    required=True,
    help="Folder for the results, or s3://.",
)
@click.option(
    "--on",
    metavar="WHERE",
    default="local",
    show_default=True,
    help="Where to run: local, ray or ray://HOST:PORT. With ray: the cluster of RAY_ADDRESS, or a "
    "new one here; with ray://HOST:PORT: another cluster, by its client port.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 1024),
    help="Number of processes, which share the cores; default: one per two cores, or as many as "
    "fit into the cluster.",
)
@click.option("--resume", is_flag=True, help="Continue the job in OUT; skip what is done.")
@click.option("--dry-run", is_flag=True, help="List what would be done, without doing it.")
@click.option(
    "--shard",
    metavar="I/N",
    help="Do part I of N; other runs do the rest, here or on other machines.",
)
@click.option(
    "--split",
    metavar="auto|off|S",
    help="Split long files into parts for several workers. auto (the default): only the few that "
    "would delay the rest; off: none; S: all, into parts of about S seconds.",
)
@click.option(
    "--max-failures",
    metavar="N",
    type=click.IntRange(0),
    help="Stop after more than N failed items.",
)
@click.option(
    "--item-timeout",
    metavar="S",
    type=click.FloatRange(0.1),
    help="Time limit of an item in seconds; default: none, but it must yield a frame every 300 s.",
)
@click.option(
    "--progress",
    "progress_to",
    metavar="FILE|-",
    type=Files(),
    help="Append a JSON line to FILE every second; - is standard error.",
)
@click.option(
    "--one-csv", is_flag=True, help="Write all detections of the job to OUT/detections.csv."
)
@click.option(
    "--sort",
    metavar="empty,CLASS,...",
    help="Link each file into OUT/sorted/CLASS; CLASS: its first class in this list, else 'other'.",
)
@click.option("--status", is_flag=True, help="Show the progress of the job in OUT.")
@click.option("--prune", is_flag=True, help="Delete results whose source no longer exists.")
def command(
    sources: tuple[str, ...],
    output: str,
    on: str,
    workers: int | None,
    resume: bool,
    dry_run: bool,
    shard: str | None,
    split: str | None,
    max_failures: int | None,
    item_timeout: float | None,
    progress_to: str | None,
    one_csv: bool,
    sort: str | None,
    status: bool,
    prune: bool,
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Detect objects in many videos, locally or on a cluster.

    SOURCE is a folder, a quoted glob, a list file or a file, here or at s3://, gs:// or https://.

    Each video gets a folder OUT/files/PATH with its detections and its annotated video; a marker
    file is added when both are complete. --resume continues a job that was killed. A video that
    crashes or hangs its worker is tried twice and then listed in OUT/failures.jsonl. The exit code
    is 7 if some videos failed, and that of the first failure if all did.
    """
    from detector.batch.job import Request
    from detector.batch.listing import parse_shard
    from detector.batch.long_items import parse_split
    from detector.batch.start import prune_batch

    with errors_as_documents(as_json):
        if output == "-":
            raise UsageError("--output -: a batch job needs a folder; give -o OUT")
        request = Request(
            sources=sources,
            output=output,
            flags=flags,
            config_file=config_file,
            on=on,
            workers=workers,
            resume=resume,
            shard=parse_shard(shard),
            most_failures=max_failures,
            item_timeout=item_timeout,
            prune=prune,
            split=parse_split(split),
            one_csv=one_csv,
            sort=() if sort is None else [word.strip() for word in sort.split(",")],
        )
        if status or dry_run:
            from detector.batch import looking
            from detector.batch import terminal as screen

            if status:
                _print(looking.look(output), screen.print_result, as_json)
            else:
                _print(looking.dry_run(request), screen.print_dry_run, as_json)
            return 0
        if prune and not resume:
            removed = prune_batch(request)
            if as_json:
                print_json({"schema": 1, "output": output, "pruned": removed})
            else:
                echo(
                    f"{output}: removed {counted(removed, 'result')} whose source no longer exists"
                )
            return 0
        if not sources and not resume:
            raise UsageError("no SOURCE given; give folders or files, or --resume")
        return _run(request, as_json, quiet, progress_to)


def _run(request: Request, as_json: bool, quiet: bool, progress_to: str | None) -> int:
    from detector.batch.start import run_batch

    with _watched(as_json, quiet, progress_to) as watch:
        result = run_batch(request, watch)
    if as_json or not quiet:
        from detector.batch.terminal import print_result

        _print(result, print_result, as_json)
    elif result.exit.code:
        echo(f"detect-video: {result.exit.reason}", err=True)
    return result.exit.code


def _print(document: Any, show: Callable[[SafeConsole, Any], None], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        show(terminal(piped_width=140), document)


@contextmanager
def _watched(as_json: bool, quiet: bool, progress_to: str | None) -> Iterator[Watch]:
    from detector.batch.job import Watch

    displays: list[Callable[[BatchProgress], None]] = []
    say = Watch().say
    with ExitStack() as stack:
        if progress_to is not None:
            displays.append(stack.enter_context(_json_lines(progress_to)))
        if not (as_json or quiet):
            from detector.batch.terminal import PlainLines, live_progress

            console = terminal(piped_width=140)
            if console.is_terminal:
                displays.append(stack.enter_context(live_progress(console)))
                say = console.print
            elif progress_to != "-":
                displays.append(PlainLines(_say).show)
                say = _say

        def show(progress: BatchProgress) -> None:
            for display in displays:
                display(progress)

        yield Watch(progress=show, say=say)


@contextmanager
def _json_lines(target: str) -> Iterator[Callable[[BatchProgress], None]]:
    """Yield a function that writes JSON lines: at most one per second, but always the last line."""
    import json
    import time

    from detector.core.errors.guard import refuse_kept
    from detector.core.session.codec import to_builtins

    last: BatchProgress | None = None
    written = float("-inf")

    def line(progress: BatchProgress) -> str:
        return json.dumps(to_builtins(progress))

    with ExitStack() as stack:
        if target == "-":

            def write(text: str) -> None:
                echo(text, err=True)
        else:
            refuse_kept(target, "choose another file with --progress")
            try:
                file = stack.enter_context(open(target, "a", encoding="ascii"))
            except OSError as error:
                raise OutputError(f"{target}: cannot be written: {error.strerror}") from error

            def write(text: str) -> None:
                file.write(text + "\n")
                file.flush()

        def show(progress: BatchProgress) -> None:
            nonlocal last, written
            last = progress
            if time.monotonic() - written >= PROGRESS_EVERY_S:
                written, last = time.monotonic(), None
                write(line(progress))

        try:
            yield show
        finally:
            if last is not None:
                write(line(last))


def _say(text: str) -> None:
    echo(f"detect-video: {text}", err=True)
