"""Write the result of a search: a file for --config, and a record for later runs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from detector.core.config.schema import Config, option_groups
from detector.core.run import saving
from detector.lab.session.tuning import Settings, Tuning
from detector.lab.tune.candidates import DefaultRun


def as_config(tuning: Tuning, calibrate: str | None) -> str:
    import yaml

    grouped: dict[str, Settings] = {}
    for group, kind in option_groups().items():
        names = {one.name for one in fields(kind)}
        if settings := {name: value for name, value in tuning.settings.items() if name in names}:
            grouped[group] = settings
    if calibrate is not None:
        grouped["calibration"] = {"calibrate": calibrate}
    head = (
        f"# detect-video tune {tuning.source}: {tuning.model}, "
        f"{tuning.ratio.median if tuning.ratio else 1:.2f} times as fast as the "
        "defaults on this machine.\n# To use this file, run: detect-video IN --config FILE\n"
    )
    return head + str(yaml.safe_dump(grouped, sort_keys=False))


def keep(result: Tuning, config: Config, plain: DefaultRun, kind: str) -> Path:
    """Add a search's result to the records; return their path. Raises OutputError."""
    assert result.after is not None
    rows = [
        saving.row(
            settings.get("engine", result.engine),
            settings.get("precision", result.precision),
            settings,
            result.agreement,
            end_to_end=speed,
        )
        for settings, speed in ((result.settings, result.after), ({}, result.before))
    ]
    record = saving.make(
        config,
        "tune",
        rows,
        model=result.model,
        model_sha256=plain.model_sha256,
        model_input=plain.model_input,
        input_kind=kind,
        rounds=result.rounds,
        source=result.source,
    )
    return saving.keep(record, config)
