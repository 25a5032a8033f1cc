"""``detect-video metrics``: nvprof's metric and event names in today's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
    wanted = [word.strip() for given in words for word in given.split(",") if word.strip()]
    if wanted:
        _refuse_unknown(wanted, every)
    picked = {
        kind: {name: row for name, row in rows.items() if _is_meant(name, row, wanted, every)}
        for kind, rows in every.items()
    }
    if as_json:
        print_json({"schema": 1, **picked})
    else:
        print_metrics(terminal(piped_width=160), picked["metrics"], picked["events"])


def _is_meant(
    name: str, row: Mapping[str, str | None], words: Sequence[str], every: Mapping[str, Rows]
) -> bool:
    text = " ".join([name, *(value for value in row.values() if value)]).lower()
    return not words or any(
        name == plain if (plain := _plain(word)) in _names(every) else _holds(text, word)
        for word in words
    )


def _holds(text: str, word: str) -> bool:
    return word.lower() in text or _plain(word) in text


def _plain(word: str) -> str:
    """``Achieved Occupancy`` as nvprof writes it: ``achieved_occupancy``."""
    return "_".join(word.lower().replace("-", " ").split())


def _names(every: Mapping[str, Rows]) -> set[str]:
    return {name for rows in every.values() for name in rows}


def _refuse_unknown(words: Sequence[str], every: Mapping[str, Rows]) -> None:
    """Raises UsageError for words that pick nothing: of several, none is left out in silence."""
    from detector.core.errors import UsageError

    missing = [word for word in words if not any(_found(word, every))]
    if not missing:
        return
    import difflib

    near = difflib.get_close_matches(_plain(missing[0]), sorted(_names(every)), 3, 0.4)
    hint = f"similar names: {', '.join(near)}" if near else "run without WORD to list all"
    counts = " and ".join(f"{len(rows)} {kind}" for kind, rows in every.items())
    raise UsageError(
        f"none of the {counts} of nvprof listed here has {' or '.join(missing)} in its name "
        f"or meaning; {hint}"
    )


def _found(word: str, every: Mapping[str, Rows]) -> Iterator[bool]:
    for rows in every.values():
        for name, row in rows.items():
            yield _is_meant(name, row, [word], every)
