"""``detect-video config show``: print the options in force and where each comes from."""

from __future__ import annotations

from typing import Any

import click

from detector.core.cli.command import CONTEXT, config_options, subcommand
from detector.core.cli.printing import echo, print_json, terminal


@subcommand(
    options=config_options(),
    config_file=True,
    json="the options",
    examples=(
        "detect-video config show --config mine.yaml --conf 0.4  # options of this run",
        "detect-video config show --model yolox_nano             # with this model's defaults",
    ),
)
def show(config_file: str | None, as_json: bool, **flags: Any) -> None:
    """Show every option: its value, and the file or flag that set it.

    Accepts the options of a run, but runs nothing.
    """
    from detector.core.config.levels import collect_levels, list_origins, merge_levels
    from detector.core.models.catalogue import folder

    levels = collect_levels(config_file, flags)
    groups, origins = merge_levels(*levels).as_dict(), list_origins(levels)
    defaults_file = str(folder() / "default.yaml")
    rows = {
        group: {
            name: {
                "value": value,
                "from": "default"
                if origins.get(name, defaults_file) == defaults_file
                else origins[name],
            }
            for name, value in leaves.items()
        }
        for group, leaves in groups.items()
    }
    if as_json:
        print_json({"schema": 1, "options": rows})
        return
    from detector.core.tables import Column, Table
    from detector.core.terminal.tables import draw_table

    cells = [
        {"option": f"{group}.{name}", "value": _format_value(row["value"]), "from": row["from"]}
        for group, leaves in rows.items()
        for name, row in leaves.items()
    ]
    columns = (Column("option"), Column("value"), Column("from"))
    console = terminal(piped_width=120)
    console.print(draw_table(console, Table("options", columns, cells, "options in force")))


def _format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Group(click.Group):
    """Without a subcommand, prints help to stderr and exits with 2, as groups of click 8.2 do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            for line in ctx.get_help().splitlines():
                echo(line, err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)


@click.group(cls=_Group, context_settings=CONTEXT)
def command() -> None:
    """Show the options in force and where each comes from."""


command.add_command(show, "show")
