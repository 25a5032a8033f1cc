"""``detect-video eval DATASET``: measure a model's accuracy, and its speed in the same run."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import click

from detector.core.cli.command import config_options, errors_as_documents, subcommand
from detector.core.cli.help import Files
from detector.core.cli.printing import echo, print_json, terminal
from detector.core.config.schema import EVAL_DEFAULTS, DrawingConfig
from detector.core.errors import UsageError
from detector.core.errors.text import split_paths
from detector.core.wings import guest_groups
from detector.lab.commands.compare import MAPPING, TABLES

# Options for the outputs and pictures of a run, which eval does not write.
DRAWING = tuple(leaf.name for leaf in dataclasses.fields(DrawingConfig))
OUTPUTS = (
    "output", "save", "no_video", "only_detections", "lead", "quality", "preset", "crf", "encoder",
)  # fmt: skip
USED_BY_FILES = ("names", "run_dir", "frames", "stride")  # run options that --detections accepts
LABELS = ("mapping", "images", "format", "split", "subset")  # a session does not store these
WITHOUT = (*OUTPUTS, "classes", *DRAWING, "self_timing", "trails", "zones", "smooth")


@subcommand(
    options=config_options(but=guest_groups(), without=WITHOUT, defaults=EVAL_DEFAULTS),
    config_file=True,
    json="the figures",
    quiet="Print nothing but errors.",
    examples=(
        "detect-video eval coco/annotations.json         # COCO",
        "detect-video eval data.yaml --split val         # YOLO",
        "detect-video eval labels.json --min-ap50 0.5    # exit with 8 below it",
        "detect-video eval labels.json --tiles none,2x2  # small objects, in tiles",
        "detect-video eval MOT17-04 --track ocsort       # HOTA, IDF1, MOTA, too",
        "detect-video eval MOT17/train --detections a,b  # files of two trackers",
    ),
)
@click.argument("dataset", type=Files())
@MAPPING
@TABLES
@click.option("--images", metavar="P", help="Folder of the images, or the labelled video.")
@click.option(
    "--format", default="auto", metavar="F", help="Format of the labels: coco, yolo, mot, or auto."
)
@click.option(
    "--split", default="val", metavar="S", show_default=True, help="Split of a YOLO data.yaml."
)
@click.option(
    "--subset", metavar="S", help="Only images of this set (COCO JSON), or this MOT sequence."
)
@click.option(
    "--detections",
    metavar="A,B",
    multiple=True,
    help="Score these files, not a model: .json, .txt, .jsonl, .csv, a folder, or DIR/SEQ.txt.",
)
@click.option(
    "--min-ap50",
    type=click.FloatRange(0, 1),
    metavar="A",
    help="Exit with 8 if AP50 is below this.",
)
def command(
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    engine: str | None,
    tiles: str | None,
    tables: tuple[str, ...],
    **flags: Any,
) -> int:
    """Measure average precision on DATASET, and speed.

    DATASET is a COCO JSON, a YOLO data.yaml or folder (images/, labels/), or a MOT sequence; its
    images can be frames of a video. --engine (ort,torch) and --tiles (none,2x2) accept several
    values and show how each differs from the first. Without --engine, --precision and --min-ap50,
    the table shows fp32 and, if it differs, what a run without these options would use.
    """
    from detector.core.config.levels import resolve_config
    from detector.core.terminal.progress import LiveLine
    from detector.lab.evaluate import EvalOptions, add_usual_engine, evaluate, list_configs
    from detector.lab.report.plots import plots
    from detector.lab.report.side_by_side import check_tables, write_tables
    from detector.lab.terminal.evaluate import print_evaluation, result_table

    flags["detections"] = split_paths(flags["detections"])
    flags |= _read_earlier(config_file, click.get_current_context())
    options = EvalOptions(**{name: flags.pop(name) for name in EvalOptions.__dataclass_fields__})
    engines, grids = (
        [name.strip() for name in (values or "").split(",") if name.strip()]
        for values in (engine, tiles)
    )
    console = terminal(piped_width=140)
    watched = console.is_terminal and not (as_json or quiet)
    live = (lambda: LiveLine(console)) if watched else None
    with errors_as_documents(as_json):
        check_tables(tables := split_paths(tables))
        if options.detections:
            for name, value in {**flags, "engine": engine, "tiles": tiles}.items():
                if value not in (None, False) and name not in USED_BY_FILES:
                    option = f"--{name.replace('_', '-')}"
                    raise UsageError(
                        f"{option} has no effect on --detections: no model runs; omit {option}"
                    )
        # A tracker needs the score threshold of a run; average precision needs all scores.
        defaults = EVAL_DEFAULTS if flags["track"] is None else {}
        configs = list_configs(resolve_config(config_file, flags, defaults), engines, grids)
        if len(configs) == 1 and options.min_ap50 is None and not options.detections:
            configs = add_usual_engine(*configs)
        document = evaluate(options, configs, command=sys.argv, live=live, plots=plots)
    if as_json:
        print_json(document)
    elif not quiet:
        print_evaluation(console, document)
    table = result_table(document)
    for path in write_tables(table, tables if table.rows else ()):
        if not (as_json or quiet):
            echo(f"table: {path}")
    if document.exit.code:
        echo(f"detect-video: {document.exit.reason}", err=True)
    return document.exit.code


def _read_earlier(config_file: str | None, context: click.Context) -> dict[str, Any]:
    """Return the label options in the command line of a saved session that are not given now."""
    from detector.core.config.levels import read_level

    words = read_level(config_file)[1].get("command") if config_file else None
    if not isinstance(words, list) or "eval" not in words:
        return {}
    rest = [str(word) for word in words[words.index("eval") + 1 :]]
    given = context.command.make_context("eval", rest, resilient_parsing=True).params
    default = click.core.ParameterSource.DEFAULT
    absent = [name for name in LABELS if context.get_parameter_source(name) is default]
    return {name: given[name] for name in absent}
