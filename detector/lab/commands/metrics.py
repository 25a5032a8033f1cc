"""``detect-video metrics``: translate nvprof's metrics and events to Nsight Compute's names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import click

from detector.core.cli.command import subcommand
from detector.core.cli.printing import print_json, terminal

Rows = Mapping[str, Mapping[str, str | None]]
"""nvprof's name -> ``ncu``, ``nearest`` and ``says``, as in cfg/nvprof_metrics.yaml."""


@subcommand(
    json="the metrics and events",
    light=True,
    examples=(
        "detect-video metrics gld                # all metrics of global loads",
        "detect-video metrics ipc,sm_efficiency  # a list, as for nvprof --metrics",
    ),
)
@click.argument("words", nargs=-1, metavar="[WORD]...")
def command(words: tuple[str, ...], as_json: bool) -> None:
    """List what nvprof's metrics are called in Nsight Compute.

    A WORD that is a metric's name selects that metric; any other WORD selects all metrics with it
    in their name or meaning. Separate WORDs by commas if you like, as in nvprof's command lines.
    """
    from detector.core.config.levels import read_level
    from detector.core.models.catalogue import folder
    from detector.lab.terminal.metrics import print_metrics

    _, known = read_level(folder() / "nvprof_metrics.yaml")
    every: dict[str, Rows] = {
        kind: {
            name: {key: row.get(key) for key in ("ncu", "nearest", "says")}
            for name, row in known[kind].items()
        }
        for kind in ("metrics", "events")
    }
    terms = [word.strip() for argument in words for word in argument.split(",") if word.strip()]
    names = {name for rows in every.values() for name in rows}
    if terms:
        _refuse_unknown(terms, every, names)
    picked = {
        kind: {
            name: row
            for name, row in rows.items()
            if not terms or any(_matches(word, name, row, names) for word in terms)
        }
        for kind, rows in every.items()
    }
    if as_json:
        print_json({"schema": 1, **picked})
    else:
        print_metrics(terminal(piped_width=160), picked["metrics"], picked["events"])


def _matches(word: str, name: str, row: Mapping[str, str | None], names: Collection[str]) -> bool:
    normalized = _normalize(word)
    if normalized in names:
        return name == normalized
    text = " ".join([name, *(value for value in row.values() if value)]).lower()
    return word.lower() in text or normalized in text


def _normalize(word: str) -> str:
    """Write ``Achieved Occupancy`` like nvprof: ``achieved_occupancy``."""
    return "_".join(word.lower().replace("-", " ").split())


def _refuse_unknown(
    words: Sequence[str], every: Mapping[str, Rows], names: Collection[str]
) -> None:
    """Raise UsageError for words that select nothing, even if others select something."""
    from detector.core.errors import UsageError

    known = [row for rows in every.values() for row in rows.items()]
    missing = [one for one in words if not any(_matches(one, *row, names) for row in known)]
    if not missing:
        return
    import difflib

    near = difflib.get_close_matches(_normalize(missing[0]), sorted(names), 3, 0.4)
    hint = f"similar names: {', '.join(near)}" if near else "run without WORD to list all"
    counts = " and ".join(f"{len(rows)} {kind}" for kind, rows in every.items())
    raise UsageError(
        f"none of the {counts} of nvprof listed here has {' or '.join(missing)} in its name "
        f"or meaning; {hint}"
    )
