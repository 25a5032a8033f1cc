"""What ``tune --use`` keeps, and when a run takes it.

An entry of engines/measured.json holds the options that a search found, for one model, machine and
kind of input. A run takes it where it counts like a comparison (same machine, settings and library
versions), where the source is of that kind, and where the user named neither engine nor precision.
An option of its own that the user names stays as named. The newest of what ``compare --use`` and
``tune --use`` kept counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from detector.core.config.schema import Config
from detector.core.engines._built import store
from detector.core.run import choose
from detector.core.session.codec import from_json, to_json
from detector.core.session.measured import Measurement

ENCODING = (
    "quality",
    "preset",
    "crf",
    "encoder",
)  # one decision: who names one of them has made it
UNDO = "detect-video tune --undo"


@dataclass(frozen=True, slots=True)
class Kept:
    """``config``: with the options of the search. ``options``: those that it changed."""

    config: Config
    options: Mapping[str, Any]
    reason: str


def find(
    config: Config, model_sha256: str, model_input: Sequence[int], kind: Callable[[], str | None]
) -> Kept | None:
    """The search that counts for a run. ``kind`` is asked only where one might."""
    runtime = config.runtime
    if (runtime.engine, runtime.precision, runtime.batch) != ("auto", "auto", 1):
        return None
    asked = None
    for entry in reversed(choose.read_kept(config, model_sha256, model_input)):
        if entry.kind == "compare":
            return None
        asked = asked or kind()
        if entry.input_kind == asked and _can_be_taken(entry):
            options = _options_of(entry, config)
            return Kept(
                _with(config, entry, options), options, f"{describe(entry)}; {UNDO} undoes it"
            )
    return None


def drop(config: Config) -> list[str]:
    """Removes what was kept on this machine, and returns a line for each. Raises OutputError."""
    machine = choose.this_machine()

    def is_dropped(entry: Measurement) -> bool:
        return entry.kind == "tune" and entry.machine == machine

    dropped = [entry for entry in choose.read_file(config) if is_dropped(entry)]
    if dropped:
        folder = store.choose_folder(config.runtime.engines_dir)
        store.rewrite(folder, choose.FILE, partial(_without, is_dropped))
    return [f"{entry.model}, {describe(entry)}" for entry in dropped]


def list_in_force(config: Config) -> list[choose.InForce]:
    """The searches that count on this machine with these settings, the newest of each model and
    kind of input."""
    newest = {
        (entry.model_sha256, entry.model_input, entry.input_kind): entry
        for entry in choose.read_file(config)
        if entry.kind == "tune" and choose.counts(entry, config) and _can_be_taken(entry)
    }
    path = store.choose_folder(config.runtime.engines_dir) / choose.FILE
    return [
        choose.InForce(
            entry.model or "a model",
            entry.model_input or (0, 0),
            describe(entry),
            str(path),
            f"undo it: {UNDO}",
        )
        for entry in newest.values()
    ]


def describe(entry: Measurement) -> str:
    """``tuned for 1280x720 h264 (2026-11-22), 1.8 times the defaults: --engine ort``."""
    speeds = [row.fps.get("end_to_end") for row in entry.rows]
    times = ""
    if len(speeds) == 2 and speeds[0] is not None and speeds[1] is not None:
        times = f", {speeds[0].median / speeds[1].median:.1f} times the defaults"
    return f"tuned for {entry.input_kind} ({entry.date}){times}: {in_words(entry.tuned)}"


def _can_be_taken(entry: Measurement) -> bool:
    """Whether its engine is here in the version that was measured, and its calibration, too."""
    row = entry.rows[0] if entry.rows else None
    return row is not None and choose.is_as_now(row) and choose.can_be_had(row, entry)


def _options_of(entry: Measurement, config: Config) -> dict[str, Any]:
    """Those that nobody named. A file of another version may hold names that are none here."""
    plain = Config()
    encoded = any(config.value(name) != plain.value(name) for name in ENCODING)
    return {
        name: value
        for name, value in entry.tuned.items()
        if plain.has(name)
        and config.value(name) == plain.value(name)
        and not (encoded and name in ENCODING)
    }


def _with(config: Config, entry: Measurement, options: Mapping[str, Any]) -> Config:
    config = config.with_options(options)
    if options.get("precision") != "int8":
        return config
    calibration = choose.calibration_unless_given(config, entry)
    return replace(config, calibration=replace(config.calibration, **calibration))


def _without(is_dropped: Callable[[Measurement], bool], before: bytes | None) -> bytes:
    """The file without some entries. What this version cannot read in it stays."""
    document = from_json(before or b"{}", dict[str, Any], choose.FILE)
    each = document.get("comparisons", [])
    kept = [one for one in each if (entry := choose.entry_of(one)) is None or not is_dropped(entry)]
    return to_json({**document, "comparisons": kept}).encode()


def in_words(settings: Mapping[str, Any]) -> str:
    """``--engine openvino --precision int8``: as it is typed."""
    if not settings:
        return "the defaults"
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())
