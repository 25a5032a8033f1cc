"""``detect-video compare SOURCE``: compare engines, precisions and batches on the same frames."""

from __future__ import annotations

import sys
from typing import Any

import click

from detector.core.cli.command import config_options, subcommand
from detector.core.cli.help import Files
from detector.core.cli.printing import echo, error_terminal, print_json, terminal
from detector.core.errors.text import split_paths
from detector.core.wings import guest_groups

WITHOUT = (
    *("engine", "precision", "batch", "output", "run_dir", "self_timing"),
    *("skip_still", "infer_every", "smooth"),  # a comparison has to infer every frame
)

TABLES = click.option(
    "--table",
    "tables",
    metavar="A,B",
    multiple=True,
    help="Also write the table: .csv, .md or .tex.",
)
MAPPING = click.option(
    "--mapping",
    metavar="F",
    help="YAML that maps model classes to label classes, or a built-in one: coco, person-vehicle.",
)


@subcommand(
    options=config_options(but=guest_groups(), without=WITHOUT, defaults={"frames": 60}),
    config_file=True,
    json="the result",
    quiet="Show no progress.",
    interrupted="comparison stopped; its results are discarded",
    examples=(
        "detect-video compare in.mp4                        # all usable engines",
        "detect-video compare in.mp4 --precision fp32,int8  # effect of int8",
        "detect-video compare in.mp4 --rounds auto          # until decided",
        "detect-video compare in.mp4 --use                  # later runs use the winner",
        "detect-video compare in.mp4 --model a.pt,b.pt --table t.md",
        'detect-video compare in.mp4 --where "ort fp32" "openvino int8"',
    ),
)
@click.argument("source", type=Files(), metavar="SOURCE")
@click.option("--engine", metavar="A,B", help="Comma-separated engines; default: all usable.")
@TABLES
@click.option(
    "--dataset", metavar="D", help="Labelled dataset for average precision; formats: see eval."
)
@click.option(
    "--precision",
    metavar="A,B",
    help="Comma-separated precisions: fp32, tf32, bf16, fp16, int8; default: fp32 and what "
    "a run uses by default.",
)
@click.option(
    "--batch", metavar="A,B", default="1", show_default=True, help="Comma-separated batch sizes."
)
@click.option(
    "--rounds",
    metavar="N|auto",
    default="8",
    show_default=True,
    help="Rounds; every variant runs once in each. auto: until each row is found faster, slower or "
    "equal; with auto, the first row runs twice in each round.",
)
@click.option(
    "--seconds",
    metavar="N",
    type=click.FloatRange(1, 86400),
    default=300.0,
    show_default=True,
    help="Time budget of --rounds auto.",
)
@click.option(
    "--use/--no-use",
    "use",
    default=None,
    help="Keep the result for later runs: --engine auto and --precision auto then use it. "
    "Without --use and --no-use, compare asks on a terminal.",
)
@click.option(
    "--labels",
    metavar="F",
    help="Labels of SOURCE's frames, for average precision; formats: see eval.",
)
@MAPPING
@click.option(
    "--where",
    nargs=2,
    metavar="A B",
    help="Find the first stage, from pixels to boxes, at which A and B differ; put A and B in "
    "quotes. Exit with 8 if a stage differs.",
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
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Compare engines, precisions and models on the same frames.

    Every variant (engine, precision, batch, model) runs in its own process and is one row of the
    table. In each round, every variant runs the same --frames frames (60), in a new random order.
    The table shows the median of the rounds and, if the terminal is wide, their interval. compare
    names no winner if the difference is within the noise. Each row also shows how well its
    detections agree with fp32 and, with --labels, its average precision. With --use, later runs
    with --engine auto use the fastest variant that agrees with fp32 to 0.95 (--budget) or more.
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
    from detector.lab.report.side_by_side import check_tables, side_by_side, write_tables
    from detector.lab.terminal.compare import print_comparison

    if where is not None:
        others: dict[str, Any] = {
            "engine": engine,
            "table": tables or None,
            "dataset": dataset,
            "labels": labels,
        }
        others |= {"mapping": mapping, "use": use, "batch": None if batch == "1" else batch}
        _refuse_with_where(others | {"precision": None if precision == "fp32" else precision})
        return _where(source, where, config_file, flags, as_json, quiet)
    models = flags["model"]
    if several := parse_models(models):
        flags["model"] = several[0]
        engine = engine or "auto"
    tables = split_paths(tables)
    check_tables(tables)
    config = resolve_config(config_file, flags)
    errors = error_terminal()
    with progress_bar(errors, not quiet and errors.is_terminal) as watch:
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
    can_ask = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    asks_user = use is None and would_take is not None and not (quiet or as_json) and can_ask
    if not as_json:
        print_comparison(terminal(piped_width=100), document, would_take)
    if asks_user:
        use = click.confirm("Use it for later runs of this model?", default=False, err=True)
    if use:
        document = record_comparison(document, config)
        if not as_json:
            echo(f"record: {document.recorded}")
    elif would_take is not None and not (asks_user or as_json):
        echo("Later runs do not change; `compare --use` keeps the result for them.")
    if as_json:
        print_json(document)
    for path in write_tables(side_by_side(document), tables):
        if not as_json:
            echo(f"table: {path}")
    if code:
        echo(f"detect-video: no row could run: {document.rows[0].error}", err=True)
    return code


def _refuse_with_where(others: dict[str, Any]) -> None:
    from detector.core.errors import UsageError

    for name, value in others.items():
        if value is not None:
            can_be_inside = name in ("engine", "precision", "batch")
            cure = "put it inside A or B" if can_be_inside else "omit it"
            raise UsageError(f"--{name} is for compare's table; with --where, {cure}")


def _where(
    source: str,
    variants: tuple[str, str],
    config_file: str | None,
    flags: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> int:
    from detector.core.terminal.models import progress_bar
    from detector.lab.compare.where.words import where_command
    from detector.lab.terminal.compare import print_where

    errors = error_terminal()
    with progress_bar(errors, not quiet and errors.is_terminal) as watch:
        document, code = where_command(
            source, variants, config_file, flags, lambda doing: watch(doing, 0, 1)
        )
    if as_json:
        print_json(document)
    else:
        print_where(terminal(piped_width=100), document)
    return code
