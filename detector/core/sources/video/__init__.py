"""Video files. Each module without an underscore is one decoder, selected with ``--decoder``."""

from __future__ import annotations

import importlib
import os
import weakref
from contextlib import ExitStack
from typing import Unpack

from detector.core.errors.holding import hold
from detector.core.sources._contents import PICTURE, kind_of_name
from detector.core.sources.base import OpenOptions, Source, check_file


class VideoSource(Source):
    """Reads every file that no other source claims. Raises SourceError for a file without video."""

    order = 100
    gives = ("bgr", "yuv420p")
    has_tracks = True
    imports = (f"{__name__}.auto", f"{__name__}._threaded")

    @classmethod
    def claims(cls, spec: str) -> bool:
        return os.path.exists(spec) and not os.path.isdir(spec)

    @classmethod
    def open(cls, spec: str, **how: Unpack[OpenOptions]) -> Source:
        check_file(spec)
        module = importlib.import_module(f"{__name__}.{how.pop('decoder', 'auto')}")
        if kind_of_name(spec) != PICTURE or spec.lower().endswith(".avif"):
            source: Source = module.open(spec, **how)
            return source
        with ExitStack() as stack:
            # Hide the suffix: for some suffixes of pictures, FFmpeg would read only one picture.
            stack.enter_context(hold(spec, suffix=""))
            source = module.open(spec, **how)
            weakref.finalize(source, stack.pop_all().close)
        source.notes.append(f"{spec}: its name is that of a picture, but it holds a video")
        return source
