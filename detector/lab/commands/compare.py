"""``detect-video compare SOURCE``: engines, precisions and batches on the same frames, in turns."""

from __future__ import annotations

import sys
from typing import Any

import click

from detector.core.cli.command import subcommand
from detector.core.cli.help import Files
from detector.core.cli.options import config_options
from detector.core.cli.printing import echo, error_terminal, print_json, terminal
from detector.core.config.schema import CAMERA_GROUPS

WITHOUT = (
    *("engine", "precision", "batch", "output", "run_dir", "self_timing"),
    *("skip_still", "infer_every", "smooth"),  # engines are compared on frames that they see
)


@subcommand(
    options=config_options(but=(*CAMERA_GROUPS, "page"), without=WITHOUT, defaults={"frames": 60}),
    config_file=True,
    json="the result",
    quiet="Show no progress.",
    interrupted="comparison stopped; nothing of it was kept",
    examples=(
        "detect-video compare in.mp4                        # all engines usable here",
        "detect-video compare in.mp4 --precision fp32,int8  # what int8 gains, loses",
        "detect-video compare in.mp4 --rounds auto          # until all is decided",
        "detect-video compare in.mp4 --use                  # auto takes the winner",
        "detect-video compare in.mp4 --model a.pt,b.pt --table t.md",
        'detect-video compare in.mp4 --where "ort fp32" "openvino int8"',
    ),
)
@click.argument("source", type=Files(), metavar="SOURCE")
@click.option("--engine", metavar="A,B", help="Engines, with commas; default: all usable here.")
@click.option(
    "--table",
    "tables",
    metavar="FILE",
    multiple=True,
    help="Also write the table: .csv, .md, .tex, or .html with a plot. May be repeated.",
)
@click.option(
    "--dataset",
    metavar="D",
    help="Labelled pictures, as eval reads them: adds each row's average precision on them.",
)
@click.option(
    "--precision",
    metavar="A,B",
    help="Precisions, with commas: fp32, tf32, bf16, fp16, int8; default: fp32, and what a run "
    "takes by itself.",
)
@click.option(
    "--batch", metavar="A,B", default="1", show_default=True, help="Batches, with commas."
)
@click.option(
    "--rounds",
    metavar="N|auto",
    default="8",
    show_default=True,
    help="Rounds; in each, every variant has one turn. auto: until every row is decided, "
    "with the first row twice.",
)
@click.option(
    "--seconds",
    metavar="N",
    type=click.FloatRange(1, 86400),
    default=300.0,
    show_default=True,
    help="How long the rounds of --rounds auto may take.",
)
@click.option(
    "--use/--no-use",
    "use",
    default=None,
    help="Let later runs with --engine auto and --precision auto take the result. On a terminal "
    "compare asks, unless one of the two is given.",
)
@click.option(
    "--labels",
    metavar="F",
    help="Labels of the frames, as eval reads them: adds average precision.",
)
@click.option(
    "--mapping",
    metavar="F",
    help="YAML: which classes of model and labels mean the same; or person-vehicle.",
)
@click.option(
    "--where",
    nargs=2,
    metavar="A B",
    help="Two configurations, each in quotes: the first stage at which they differ, from pixels to "
    "boxes. Exit with 8 where one does.",
)
@click.option(
    "--picture",
    metavar="F.png",
    default="where.png",
    show_default=True,
    help="Where --where draws the difference.",
)
def command(
    source: str,
    engine: str | None,
    tables: tuple[str, ...],
    dataset: str | None,
    precision: str | None,
    batch: str,
    rounds: str,
    seconds: float,
    use: bool | None,
    labels: str | None,
    mapping: str | None,
    where: tuple[str, str] | None,
    picture: str,
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Compare engines, precisions and models on the same frames.

    Every variant runs in a process of its own. They take turns, in an order that is drawn anew, in
    several rounds of --frames frames (60). Printed are the median and the interval of the rounds,
    and what is a difference and what is noise; no winner is named inside it. --rounds auto goes on
    until that is decided. Beside every speed stands the agreement of the detections with those of
    fp32, and with --labels their average precision. With --use, auto takes the fastest variant that
    agrees from then on; eval never does.
    """
    from detector.core.config.levels import resolve_config
    from detector.core.terminal.models import progress_bar
    from detector.lab.compare import (
        compare_command,
        parse_models,
        parse_rounds,
        preview_choice,
        record_comparison,
    )
    from detector.lab.report.side_by_side import check_tables, write_tables
    from detector.lab.terminal.compare import print_comparison

    if where is not None:
        others: dict[str, Any] = {
            "engine": engine,
            "table": tables or None,
            "dataset": dataset,
            "labels": labels,
        }
        others |= {"mapping": mapping, "use": use, "batch": None if batch == "1" else batch}
        _refuse_beside_where(others | {"precision": None if precision == "fp32" else precision})
        return _where(source, where, picture, config_file, flags, as_json, quiet)
    models = flags["model"]
    if several := parse_models(models):
        flags["model"] = several[0]
        engine = engine or "auto"
    check_tables(tables)
    config = resolve_config(config_file, flags)
    errors = error_terminal()
    shown = not quiet and errors.is_terminal
    with progress_bar(errors, shown) as watch:
        document, code = compare_command(
            source,
            config,
            engine,
            precision,
            batch,
            rounds=parse_rounds(rounds),
            seconds=seconds,
            watch=watch,
            labels=labels,
            mapping=mapping,
            models=models,
            dataset=dataset,
        )
    would_take = preview_choice(document, config)
    asked = use is None and would_take is not None and not (quiet or as_json) and _can_answer()
    if not as_json:
        print_comparison(terminal(piped_width=100), document, would_take)
    if asked:
        use = click.confirm("Let later runs of this model take it?", default=False, err=True)
    if use:
        document = record_comparison(document, config)
        if not as_json:
            echo(f"recorded: {document.recorded}")
    elif would_take is not None and not (asked or as_json):
        echo("Later runs stay as they are; `compare --use` makes auto take it.")
    if as_json:
        print_json(document)
    for path in write_tables(document, tables):
        if not as_json:
            echo(f"table: {path}")
    return code


def _refuse_beside_where(others: dict[str, Any]) -> None:
    from detector.core.errors import UsageError

    for name, value in others.items():
        if value is not None:
            raise UsageError(
                f"--{name} is for a comparison of speeds; with --where, say it inside of A or B"
            )


def _where(
    source: str,
    given: tuple[str, str],
    picture: str,
    config_file: str | None,
    flags: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> int:
    from detector.core.terminal.models import progress_bar
    from detector.lab.compare.where.words import where_command
    from detector.lab.terminal.where import print_where

    errors = error_terminal()
    with progress_bar(errors, not quiet and errors.is_terminal) as watch:
        document, code = where_command(
            source, given, config_file, flags, picture, lambda doing: watch(doing, 0, 1)
        )
    if as_json:
        print_json(document)
    else:
        print_where(terminal(piped_width=100), document)
    return code


def _can_answer() -> bool:
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
