"""``detect-video models``: list the known ones, show one, pull a file."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from detector.cli.exits import exit_codes
from detector.cli.options import options_of

CONTEXT = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=CONTEXT, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the models that are known by name; show or pull one."""
    if context.invoked_subcommand is None:
        _list(as_json)


@command.command("list", context_settings=CONTEXT)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_(as_json: bool) -> None:
    """List name, family, input, parameters, MACs, FLOPs, licence, and what each still needs."""
    _list(as_json)


def _list(as_json: bool) -> None:
    with exit_codes():
        from detector.jobs.models import listing

        models = listing()
        if as_json:
            click.echo(json.dumps(models, indent=1))
            return
        from detector.report.terminal.models import print_models

        print_models(_console(), models)


@command.command(context_settings=CONTEXT)
@click.argument("model", metavar="MODEL")
@options_of(
    "network", "runtime", only=("weights", "names", "family", "random_weights", "size", "batch")
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(model: str, as_json: bool, **flags: Any) -> None:
    """Count parameters, MACs and FLOPs of MODEL: a file, or a known name."""
    with exit_codes():
        from detector.config.levels import resolved
        from detector.jobs.models import facts
        from detector.run.wire import network_arguments

        config = resolved(None, {"model": model, **flags})
        options = network_arguments(config)
        found = facts(options.pop("model"), **options)
        if as_json:
            click.echo(json.dumps(found, indent=1))
            return
        from detector.report.terminal.models import print_model

        print_model(_console(), found)


@command.command(context_settings=CONTEXT)
@click.argument("name", metavar="NAME")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def pull(name: str, quiet: bool) -> None:
    """Download the official file of the known model NAME into the cache; goes on where it stopped."""
    with exit_codes():
        from detector.models import catalogue

        if quiet:
            catalogue.pull(name)
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TransferSpeedColumn,
        )

        columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=_console(), transient=True) as bar:
            task = bar.add_task(name, total=None)
            path, fetched = catalogue.pull(
                name, lambda done, total: bar.update(task, completed=done, total=total)
            )
        click.echo(
            f"{path}: {'complete, size and sha256 checked' if fetched else 'is there already, whole'}"
        )


def _console() -> Any:
    from rich.console import Console

    # Piped, there is no width to keep to: the table stays whole.
    return Console(width=None if sys.stdout.isatty() else 220)
