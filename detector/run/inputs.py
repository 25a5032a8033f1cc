"""Which files a run reads, as far as they are known before it opens the first one.

They are kept from being overwritten (``errors.guard``). What only a file itself tells, such as the
external data of an ONNX model, is added by whoever reads that file.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from functools import partial

from detector import models, sources
from detector.config.schema import CAMERA_GROUPS, PACKAGED, Config, flag_of, options
from detector.errors import DetectVideoError, UsageError
from detector.errors.guard import keep_listed
from detector.errors.secrets import Address
from detector.errors.writing import is_output
from detector.run.canvas import model_request
from detector.sources._addresses import is_web
from detector.sources._standard_input import SPEC as STDIN
from detector.sources._unclaimed import is_live


def gather_sources(specs: Sequence[str]) -> list[str]:
    """What ``sources.gather`` makes of a command line. Videos in a folder that runs wrote there are
    no sources."""
    return sources.gather(specs, is_output)


def keep_inputs(config: Config, specs: Sequence[str] = ()) -> None:
    """Guards the sources, the model's files and the calibration. Raises UsageError for a camera
    among them."""
    asked = config.calibration.calibrate
    calibrate = None if asked == PACKAGED else asked
    refuse_cameras([*specs, *filter(None, [calibrate])])
    for spec in specs:
        keep_listed("the source", partial(sources.files_of, spec))
    if calibrate is not None:
        listed = partial(sources.files_of, calibrate)
        keep_listed("the calibration", listed)
    with suppress(DetectVideoError):  # whoever opens the model says what is wrong
        models.keep_files(model_request(config))


def refuse_cameras(specs: Sequence[str]) -> None:
    """Raises UsageError for a camera, where only files will do: they end, and can be read again."""
    for spec in specs:
        if _is_camera(spec):
            raise UsageError(
                f"{Address(spec)}: is a camera, and this needs a file; record one first: "
                "detect-video CAMERA --record copy"
            )


def reads_cameras(specs: Sequence[str], config: Config, given: Container[str] = ()) -> bool:
    """Whether these are sources of a live run. Raises UsageError for files among cameras, and
    SourceError for an address among them that is no video.

    ``given``: as of ``refuse_camera_options``. Where an option of cameras is among them, every
    address is a camera's, and nobody asks its server.
    """
    if config.live.repeat:
        return True
    if next(_camera_flags(config, given), None) is not None:
        live = [spec for spec in specs if is_live(spec) or _is_camera(spec)]
    else:
        _ask_servers(specs)
        live = [spec for spec in specs if _is_camera(spec)]
    if live and len(live) < len(specs):
        file = next(spec for spec in specs if spec not in live)
        if file == STDIN:
            raise UsageError(f"{file}: is standard input among cameras; run it by itself")
        if is_web(file):
            sources.check(file)  # a web page is refused as such
            raise UsageError(
                f"{Address(file)}: is a file among cameras; --live latest takes all of them for "
                "cameras, or run it by itself"
            )
        raise UsageError(
            f"{file}: is a file among cameras; --loop plays it again and again as if it were one, "
            "or run it by itself"
        )
    return bool(live)


def refuse_camera_options(specs: Sequence[str], config: Config, given: Container[str] = ()) -> None:
    """Raises UsageError for an option that does nothing for files: nobody is to believe that
    alerts are sent where none are.

    ``given``: names of the options that stand on the command line. In a file of options, those
    count that are not the default.
    """
    for flag in _camera_flags(config, given):
        if all(os.path.isfile(spec) for spec in specs):
            files = "the file as one" if len(specs) == 1 else "the files as some"
            raise UsageError(f"{flag} is for cameras; add --loop to play {files}, or leave it out")
        raise UsageError(f"{flag} is for cameras, not for files; leave it out")


def _camera_flags(config: Config, given: Container[str]) -> Iterator[str]:
    """The options of cameras that are given, but for --loop, which makes cameras of files."""
    for group, leaf in options():
        if group not in CAMERA_GROUPS or leaf.name == "repeat":
            continue  # without cameras there was no --loop, or --no-loop
        value = getattr(getattr(config, group), leaf.name)
        if value != leaf.default or (leaf.name in given and value is not False):
            yield flag_of(leaf)


def _ask_servers(specs: Sequence[str]) -> None:
    """Side by side, where there are some."""
    if len(addresses := [spec for spec in specs if is_web(spec)]) > 1:
        from detector.sources._answers import take_all

        take_all(addresses)


def remark_on(spec: str) -> str:
    """What is to be said of an address whose server was asked what it is; "" for nothing."""
    if not is_web(spec):
        return ""
    from detector.sources._answers import remark_of

    return remark_of(spec)


def _is_camera(spec: str) -> bool:
    """A webcam, an address but of a file (whose server is asked), or a list of cameras. Raises
    UsageError for a list that is no YAML."""
    if is_web(spec):
        from detector.sources._answers import is_file

        return not is_file(spec)
    if is_live(spec):
        return True
    if not spec.lower().endswith((".yaml", ".yml")):  # whoever reads it imports more
        return False
    from detector.sources.live.cameras import is_camera_list

    return is_camera_list(spec)
