"""The settings of a job: resolved once, stored in OUT/job.json, used by every worker.

The first worker loads the model and resolves ``auto``. From then on engine, precision, canvas (the
size of the network's input), batch, threads and requests are fixed, also for later runs of the job.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detector.batch.documents import OF_SOURCE, Canvas, JobSettings
from detector.core.config.levels import merge_levels, resolve_config
from detector.core.config.own_file import FILES
from detector.core.config.schema import PACKAGED, Config
from detector.core.errors import OutputError
from detector.core.errors.writing import write_whole
from detector.core.session.codec import check_schema, from_builtins, parse_json, read_file, to_json
from detector.core.wings import guest_groups

JOB, SETTINGS = "job.json", "settings.yaml"
# Groups and options that affect an item's outputs. Threads, requests and the group ``loop`` do not.
DECIDING = ("selection", "input", "drawing")
DECIDING_RUNTIME = ("engine", "precision", "batch", "size", "device", "engine_options")
NOT_DECIDING_OUTPUT = ("output", "run_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFacts:
    config: dict[str, dict[str, Any]]
    model: str
    model_sha256: str
    model_input: tuple[int, int]  # height, width
    class_names: list[str]
    engine_reason: str | None
    notes: list[str]
    load_s: float
    canvas: Canvas | None = None


def ask(
    sources: Sequence[str], flags: Mapping[str, Any], config_file: str | None
) -> tuple[Config, dict[str, Any]]:
    """Resolve a command line. Return the configuration (JSONL rows are always saved) and the flags
    that were given. Raises UsageError."""
    given = {name: value for name, value in flags.items() if value is not None}
    config = resolve_config(config_file, given)
    save = config.output.save
    if save is not None and "jsonl" not in save:
        save = (*save, "jsonl")
    output = replace(config.output, save=save, output=None, run_dir=None)
    return _with_whole_paths(replace(config, output=output)), given


def _with_whole_paths(config: Config) -> Config:
    network, calibration, drawing = config.network, config.calibration, config.drawing
    files = {
        name: os.path.abspath(value)
        for name in FILES
        if (value := getattr(network, name, None)) is not None and os.path.isfile(value)
    }
    if calibration.calibrate not in (None, PACKAGED) and os.path.exists(calibration.calibrate):
        calibration = replace(calibration, calibrate=os.path.abspath(calibration.calibrate))
    if drawing.font is not None and os.path.isfile(drawing.font):
        drawing = replace(drawing, font=os.path.abspath(drawing.font))
    network = replace(network, **files)
    return replace(config, network=network, calibration=calibration, drawing=drawing)


def settle(
    sources: Sequence[str],
    flags: dict[str, Any],
    config_file: str | None,
    asked: Config,
    facts: LoadedFacts,
) -> JobSettings:
    return JobSettings(
        sources=[os.path.abspath(spec) if os.path.exists(spec) else spec for spec in sources],
        flags=flags,
        config_file=None if config_file is None else os.path.abspath(config_file),
        asked=as_plain(asked),
        config=facts.config,
        model=facts.model,
        model_sha256=facts.model_sha256,
        model_input=facts.model_input,
        class_names=facts.class_names,
        engine_reason=facts.engine_reason,
        digest=digest_of(facts),
        notes=facts.notes,
        canvas=facts.canvas,
    )


def as_plain(config: Config) -> dict[str, dict[str, Any]]:
    """Return the configuration as JSON types (lists for tuples), without options of cameras."""
    plain: dict[str, dict[str, Any]] = json.loads(json.dumps(config.as_dict()))
    return {group: values for group, values in plain.items() if group not in guest_groups()}


def config_of(plain: Mapping[str, Any]) -> Config:
    return merge_levels((JOB, plain))


def digest_of(facts: LoadedFacts) -> str:
    """Return the digest of the model and of all options that affect results."""
    config = facts.config
    runtime = {name: config["runtime"][name] for name in DECIDING_RUNTIME}
    output = {
        name: value for name, value in config["output"].items() if name not in NOT_DECIDING_OUTPUT
    }
    document: list[Any] = [
        facts.model_sha256,
        list(facts.model_input),
        facts.class_names,
        {name: config["network"][name] for name in ("family", "random_weights")},
        runtime,
        {group: config[group] for group in DECIDING},
        output,
    ]
    if runtime["precision"] == "int8":
        document.append(config["calibration"])
    if facts.canvas is not None:
        document.append({"canvas": facts.canvas})
    return _digest(json.dumps(document, sort_keys=True))


def key_of(path: str, version: str, settings: str) -> str:
    """Return the key of an item's results. If the item's marker has another key, it is redone."""
    return _digest(f"{path}\0{version}\0{settings}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def read_settings(place: str) -> JobSettings | None:
    path = Path(place, JOB)
    if not os.path.lexists(path):
        return None
    content = parse_json(read_file(path), path)
    check_schema(content, path)
    return from_builtins(content, JobSettings, path)


def write_settings(place: str, settings: JobSettings, *, first: bool) -> JobSettings:
    """Store the settings, and return the job's settings. ``first``: the job had none. If another
    shard has stored its settings meanwhile, keep and return those instead."""
    path = Path(place, JOB)
    if first:
        temporary = path.with_name(f".detect-video-{os.urandom(8).hex()}.json")
        try:
            write_whole(temporary, to_json(settings).encode(), ours=True)
            try:
                os.link(temporary, path)  # fails if ``path`` exists, even on network file systems
            except FileExistsError:
                standing = read_settings(place)
                assert standing is not None
                return standing
            except OSError:  # no hard links: of shards that start at once, the last one wins
                os.replace(temporary, path)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    else:
        write_whole(path, to_json(settings).encode(), ours=True)
    write_whole(Path(place, SETTINGS), _as_yaml(settings).encode(), ours=True)
    return settings


def _as_yaml(settings: JobSettings) -> str:
    import yaml

    head = (
        f"# The settings of every worker of this job ({settings.model}).\n"
        "# To get the same detections in a single run: detect-video IN --config settings.yaml\n"
    )
    if settings.canvas == OF_SOURCE:
        height, width = settings.model_input
        head += (
            "# size: null means that each source gets a canvas of its own shape, with about the\n"
            f"# area of {width}x{height}.\n"
        )
    return head + str(yaml.safe_dump(settings.config, sort_keys=False, allow_unicode=False))
