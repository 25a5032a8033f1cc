"""``detect-video models``: list the known models, inspect one, or download its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detector.core.cli.command import CONTEXT, config_options, subcommand
from detector.core.cli.help import Models
from detector.core.cli.printing import echo, print_json, terminal

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = ("weights", "names", "family", "describe", "random_weights", "size", "batch")


@subcommand(json="the list")
def list_models(as_json: bool) -> None:
    """List the known models.

    Shows family, input, parameters, MACs, FLOPs, licence, and what is missing to run each model.
    """
    from detector.core.jobs.models import listing
    from detector.core.terminal.models import print_models

    if as_json:
        print_json(listing())
    else:
        print_models(terminal(piped_width=220), listing())


@subcommand(options=config_options("network", "runtime", only=SHOWN), json="the counts")
@click.argument("model", type=Models(), metavar="MODEL")
def show(model: str, as_json: bool, **flags: Any) -> None:
    """Count a model's parameters, MACs and FLOPs."""
    from detector.core.config.levels import resolve_config
    from detector.core.jobs.models import facts
    from detector.core.run.canvas import model_request
    from detector.core.terminal.models import print_model

    document = facts(model_request(resolve_config(None, {"model": model, **flags})))
    if as_json:
        print_json(document)
    else:
        print_model(terminal(piped_width=220), document)


@subcommand(quiet="Print only errors.")
@click.argument("name", type=Models(), metavar="NAME")
def pull(name: str, quiet: bool) -> None:
    """Download a known model's official file.

    Prints the licence, then saves the file in the cache. An interrupted download resumes.
    """
    from detector.core.models import pull as pulling
    from detector.core.models.catalogue import known_model

    model = known_model(name)
    if model.download is not None and model.download.sha256 is not None and not quiet:
        echo(f"{name}: {model.licence}; from {model.download.url}")
    console = terminal(piped_width=220)
    if quiet or not console.is_interactive:
        path, fetched = pulling.pull(name)
    else:
        path, fetched = _pull_with_bar(name, console)
    if not quiet:
        state = "downloaded, size and sha256 checked" if fetched else "already complete"
        echo(f"{path}: {state}")


def _pull_with_bar(name: str, console: Console) -> tuple[Path, bool]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from detector.core.models import pull as pulling

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        return pulling.pull(name, lambda done, total: bar.update(task, completed=done, total=total))


@subcommand(options=config_options("network", "runtime", only=("family", "size")))
@click.argument("model", type=Models(), metavar="MODEL")
@click.option(
    "-o", "--output", metavar="FILE", help="File; default: X.describe.yaml; - prints the YAML."
)
def describe(model: str, output: str | None, **flags: Any) -> None:
    """Write a YAML that describes an .onnx or .xml file.

    It describes the input and outputs. If these are not recognised, it is a template to fill in.
    Then run MODEL with --describe FILE.
    """
    from detector.core.config.levels import resolve_config
    from detector.core.jobs.models import write_description
    from detector.core.run.canvas import model_request

    request = model_request(resolve_config(None, {"model": model, **flags}))
    for line in write_description(request, output).splitlines():
        echo(line)
    if output != "-":
        target = output or f"{request.path.stem}.describe.yaml"
        echo(f"wrote {target}; check it, then use --model {model} --describe {target}")


@subcommand(json="the list")
def families(as_json: bool) -> None:
    """List the supported families of .onnx and .xml files."""
    from detector.core.jobs.models import family_listing
    from detector.core.terminal.models import print_families

    if as_json:
        print_json(family_listing())
    else:
        print_families(terminal(piped_width=220), family_listing())


@click.group(context_settings=CONTEXT, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the list as one JSON document.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List, inspect or download models."""
    if context.invoked_subcommand is None:
        context.invoke(list_models, as_json=as_json)


command.add_command(list_models, "list")
command.add_command(show, "show")
command.add_command(pull, "pull")
command.add_command(families, "families")
command.add_command(describe, "describe")
