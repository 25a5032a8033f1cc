"""List the files that a run will read, and protect them from being overwritten."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from detector.core import sources
from detector.core.config.schema import PACKAGED, Config
from detector.core.errors import DetectVideoError, SourceError, UsageError
from detector.core.errors.guard import keep_listed
from detector.core.errors.writing import is_output
from detector.core.sources._contents import VIDEO, kind_of_name
from detector.core.sources._forms import is_live, is_web


def gather_sources(specs: Sequence[str]) -> list[str]:
    """List sources; ``sources.gather`` omits outputs of earlier runs. Raises SourceError."""
    gathered = sources.gather(specs, is_output)
    for spec in gathered if len(gathered) > 1 else ():
        if is_live(spec) or is_web(spec):  # opening the source checks it
            continue
        try:
            sources.find_claiming(spec)
        except SourceError as error:
            if os.path.exists(whole := " ".join(specs)):
                raise SourceError(f"{error}; did you mean {shlex.quote(whole)}?") from None
            if tuple(specs[1:]) == (spec,) and kind_of_name(spec) == VIDEO:
                raise SourceError(f"{error} (to write it: -o {shlex.quote(spec)})") from None
            raise
    return gathered


def keep_inputs(config: Config, specs: Sequence[str] = ()) -> None:
    """Keep outputs from replacing sources, model or calibration. Raises UsageError for a camera."""
    from detector.core import models
    from detector.core.run.canvas import model_request

    calibrate = config.calibration.calibrate
    named = [(spec, "the source") for spec in specs]
    if calibrate is not None and calibrate != PACKAGED:
        named.append((calibrate, "the calibration"))
    refuse_cameras([spec for spec, _ in named])
    for spec, what in named:
        keep_listed(what, partial(sources.files_of, spec))
    with suppress(DetectVideoError):  # opening the model will report the error
        models.keep_files(model_request(config))


def refuse_cameras(specs: Sequence[str]) -> None:
    """Raise UsageError for a camera. Call this if sources must end, or are read more than once."""
    for spec in specs:
        if is_camera(spec):
            from detector.core.errors.addresses import Address

            raise UsageError(
                f"{Address(spec)}: a camera, but this needs a file; record it first: "
                "detect-video CAMERA --record copy"
            )


def is_camera(spec: str) -> bool:
    """Return whether a source is a webcam, a stream, or a list of cameras. Raises UsageError."""
    if is_web(spec):
        from detector.core.sources._answers import is_file

        return not is_file(spec)
    if is_live(spec):
        return True
    if not spec.lower().endswith((".yaml", ".yml")):  # only YAML files can list cameras
        return False
    try:
        return sources.find_claiming(spec).arrives
    except SourceError:
        return False
