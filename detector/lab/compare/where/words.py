"""Turn what the user typed for A and B into two ``Side`` objects, opened as in a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from detector.core import engines
from detector.core.config.levels import resolve_config
from detector.core.config.schema import Config, options
from detector.core.engines.base import PRECISIONS
from detector.core.errors import EXIT_DONE, EXIT_GATE, UsageError
from detector.core.models.base import Network
from detector.core.models.catalogue import known
from detector.core.run.inputs import refuse_cameras
from detector.core.run.loading import LoadedModel
from detector.core.run.plan import RunPlan, resolve
from detector.core.types import Frame
from detector.lab.compare.where.search import Differences, Side, search
from detector.lab.session.where import StageDifference, Where

FRAMES = 3  # two frames show faults that depend on the previous frame; a third costs little
WORDS = "an engine, a precision, a model, a .yaml file or option=value"
PLACES: Mapping[str, str] = {
    "decode": "decoding",
    "letterbox": "letterboxing",
    "input": "the input tensor",
    "graph": "the network",
    "outputs": "the raw outputs",
    "candidates": "the head",
    "nms": "NMS",
    "annotate": "drawing",
}


def where_command(
    source: str,
    texts: tuple[str, str],
    config_file: str | None,
    flags: Mapping[str, Any],
    step: Callable[[str], object],
) -> tuple[Where, int]:
    """Return the document, and the exit code: 0 if no stage differs, else 8."""
    from detector.core import sources

    refuse_cameras([source])
    sources.refuse_pipe(source, "both sides read it")
    configs = [parse_words(text, config_file, flags) for text in texts]
    sides: list[Side] = []
    for text, config in zip(texts, configs, strict=True):
        step(f"open {text}")
        sides.append(open_side(text, config, source))
    result = search(sides[0], sides[1], configs[0].input.frames or FRAMES, step)
    document = Where(
        a=texts[0],
        b=texts[1],
        source=source,
        frames=result.frames,
        first=result.first,
        stages=tuple(result.stages),
        probes=tuple(result.probes),
        verdict=describe(result),
    )
    return document, EXIT_DONE if result.first is None else EXIT_GATE


def parse_words(text: str, config_file: str | None, flags: Mapping[str, Any]) -> Config:
    """Parse "ort conf=0.4" or "b.yaml"; without a file, fp32 is the default. Raises UsageError."""
    own: dict[str, Any] = {}
    for word in _split(text):
        name, value = _parse_word(word)
        if name in own:
            raise UsageError(f"--where {text!r}: gives {name!r} twice")
        own[name] = value
    file = own.pop("config", config_file)
    if file != config_file and config_file is not None:
        raise UsageError(f"--where {text!r}: names a file of options; omit --config")
    defaults = {"precision": "fp32"} if file is None else {}
    typed = {name: value for name, value in flags.items() if value is not None}
    return resolve_config(file, {**defaults, **typed, **own})


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--where {text!r}: {error}; close the quotation mark") from None
    if not words:
        raise UsageError(f"--where needs two configurations; each is {WORDS}")
    return words


def _parse_word(word: str) -> tuple[str, Any]:
    if word in (*engines.names(), "auto"):
        return "engine", word
    if word in PRECISIONS:
        return "precision", word
    if word.lower().endswith((".yaml", ".yml")):
        return "config", word
    is_file = "=" not in word and bool(PurePath(word).suffix)  # a missing file is reported later
    if word in known() or is_file or os.path.exists(word):
        return "model", word
    name, sign, value = word.partition("=")
    name = name.removeprefix("--").replace("-", "_")
    kinds = {leaf.name: str(leaf.type) for _, leaf in options()}
    if name not in kinds:
        raise UsageError(f"--where: {word!r} is unknown; give {WORDS}")
    if kinds[name] == "bool":
        if value not in ("", "true", "false"):
            raise UsageError(f"--where: {word}: write {name}=true or {name}=false")
        return name, value != "false"
    if not sign:
        raise UsageError(f"--where: {word} needs a value: {name}=...")
    return name, value


def open_side(text: str, config: Config, source: str) -> Side:
    plan = resolve(config, specs=[source])
    loaded = plan.loaded
    preprocess, head, nms = plan.stages()
    height, width = loaded.network.input.height, loaded.network.input.width
    draw = plan.drawing.annotation((), watched=lambda: True)
    assert draw is not None
    return Side(
        name=text,
        precision=loaded.engine.precision,
        frames=lambda count: _read_frames(plan, source, count),
        preprocess=preprocess,
        input_shape=(height, width),
        network=loaded.network,
        open=lambda network: _open(loaded, network),
        head=head,
        nms=nms,
        draw=draw,
    )


def _read_frames(plan: RunPlan, source: str, count: int) -> list[Frame]:
    frames: list[Frame] = []
    with plan.reading.open(source, "yuv420p") as opened:
        while len(frames) < count and (frame := opened.read()) is not None:
            frames.append(frame)
    return frames


def _open(loaded: LoadedModel, network: Network) -> Any:
    if network is loaded.network:
        return nullcontext(loaded.engine)  # the caller's engine is not closed
    assert loaded.options is not None
    single = replace(loaded.options, requests=1, concurrency=1, artefact=None)
    single = replace(single, threads=loaded.engine.threads, device=loaded.engine.device)
    return engines.open(loaded.engine.name, network, single)


def describe(result: Differences) -> str:
    first = result.first
    if first is None:
        untold = [one for one in result.stages if one.untold is not None]
        if untold:
            return f"no difference in the stages that could be compared; {untold[0].untold}"
        return "no stage differs by more than rounding"
    words = f"the first difference is in {PLACES[first.stage]} ({first.what})"
    words += f": {first.kind}" if first.kind else ""
    words += f", {first.detail}" if first.detail else ""
    later = [PLACES[one.stage] for one in result.stages if one.differs and _is_separate(first, one)]
    return words + (f"; also in {' and '.join(later)}, given the same input" if later else "")


def _is_separate(first: StageDifference, other: StageDifference) -> bool:
    """Return whether ``other`` is a separate fault. A layer's fault also changes the outputs."""
    inside = ("input", "graph", "outputs")
    return other is not first and not (first.stage in inside and other.stage in inside)
