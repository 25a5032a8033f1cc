"""``detect-video eval DATASET``: how right a model is, and how fast it was while it was."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from detector.cli.exits import complain, exit_codes
from detector.cli.options import options_but
from detector.config.schema import EVAL_DEFAULTS

if TYPE_CHECKING:
    from detector.jobs.evaluate import EvalOptions
    from detector.session.evaluation import Evaluation, FailedEvaluation

# What says where results of a detection run go has no meaning here.
WITHOUT = ("output", "save", "no_video", "preset", "crf", "classes")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset")
@click.option(
    "--mapping",
    metavar="F",
    help="YAML: which classes of model and labels mean the same; or person-vehicle.",
)
@click.option(
    "--images", metavar="P", help="Folder of the pictures, or the video whose frames are labelled."
)
@click.option(
    "--format", default="auto", metavar="F", help="Of the labels: coco, yolo, mot, or auto."
)
@click.option(
    "--split", default="val", metavar="S", help="Part of a YOLO data.yaml.  [default: val]"
)
@click.option(
    "--subset",
    metavar="S",
    help="Only pictures whose set has this name (COCO json), or one MOT sequence.",
)
@click.option(
    "--detections",
    metavar="F",
    help="Score this file and run nothing: .json, .txt, .jsonl, .csv or a folder.",
)
@click.option(
    "--min-ap50",
    type=click.FloatRange(0, 1),
    metavar="A",
    help="Gate: exit with 8 where AP50 is below this.",
)
@options_but(WITHOUT, EVAL_DEFAULTS)
@click.option(
    "--config", "config_file", metavar="F", help="YAML file of options; flags win over it."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the figures as one JSON document, and nothing else.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def command(
    dataset: str,
    mapping: str | None,
    images: str | None,
    format: str,
    split: str,
    subset: str | None,
    detections: str | None,
    min_ap50: float | None,
    config_file: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Average precision on DATASET, with the speed of the same run.

    DATASET: a COCO json, a YOLO data.yaml or folder (images/, labels/), a MOT sequence; pictures, or a video with its
    labels. --engine takes several (ort,torch) and says what each differs from the first.
    """
    with exit_codes():
        from detector.jobs.evaluate import EvalOptions
        from detector.session.evaluation import Evaluation

        options = EvalOptions(dataset, format, images, split, subset, mapping, detections, min_ap50)
        document = _evaluate(options, config_file, flags, as_json, quiet)
        if as_json:
            from detector.session.codec import to_json

            click.echo(to_json(document), nl=False)
        elif not quiet and isinstance(document, Evaluation):
            from detector.report.terminal.evaluate import print_evaluation

            print_evaluation(_console(), document)
        if document.exit.code:
            click.echo(f"detect-video: {document.exit.reason}", err=True)
        sys.exit(document.exit.code)


def _evaluate(
    options: EvalOptions, config_file: str | None, flags: dict[str, Any], as_json: bool, quiet: bool
) -> Evaluation | FailedEvaluation:
    from detector.config.levels import resolved
    from detector.errors import DetectVideoError
    from detector.jobs.evaluate import configs_for_engines, evaluate
    from detector.report.plots import plots
    from detector.session.evaluation import SCHEMA, Exit, FailedEvaluation

    try:
        engines = [name.strip() for name in (flags.pop("engine") or "").split(",") if name.strip()]
        configs = configs_for_engines(resolved(config_file, flags, EVAL_DEFAULTS), engines)
        live = None if as_json or quiet or not _console().is_terminal else _live
        return evaluate(options, configs, command=sys.argv, live=live, plots=plots)
    except DetectVideoError as error:
        if not as_json:
            raise
        complain(error)
        return FailedEvaluation(SCHEMA, Exit(error.exit_code, str(error)))


def _console() -> Any:
    from rich.console import Console

    # Piped, there is no width to keep to: the tables stay whole.
    return Console(width=None if sys.stdout.isatty() else 140)


def _live() -> Any:
    from detector.report.terminal.live import LiveLine

    return LiveLine(_console())
