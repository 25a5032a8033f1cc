"""Pictures: a folder, a pattern (``*.jpg``, ``frame_%04d.jpg``), one or more files by name."""

from __future__ import annotations

import glob
import os
from typing import Unpack

from detector.core.sources._contents import PICTURE, kind_of
from detector.core.sources._forms import Gathered, NamedPictures, is_live
from detector.core.sources.base import ANY, OpenOptions, Source


class PicturesSource(Source):
    kind = "pictures"
    has_tracks = True
    imports = ("detector.core.sources._pictures",)

    @classmethod
    def claims(cls, spec: str) -> bool:
        """Return whether ``spec`` is a folder, a picture, or a pattern that is no existing file."""
        if isinstance(spec, NamedPictures) or os.path.isdir(spec):
            return True
        if os.path.lexists(spec):
            return os.path.exists(spec) and kind_of(spec, closely=True) == PICTURE
        from detector.core.sources._specs import is_numbered

        return is_numbered(spec) or (glob.has_magic(spec) and not is_live(spec))

    @classmethod
    def check_spec(cls, spec: str) -> None:
        from detector.core.sources._specs import list_pictures

        list_pictures(spec)

    @classmethod
    def open(cls, spec: str, **how: Unpack[OpenOptions]) -> Source:
        from detector.core.sources._pictures import OpenPictures
        from detector.core.sources._specs import list_contents, list_pictures

        choice = how.get("choice", ANY)
        choice.refuse_tracks(spec)
        paths = list_pictures(spec)
        source = OpenPictures(spec, paths, how.get("stride", 1), how.get("frames"), choice)
        if not isinstance(spec, Gathered) and (contents := list_contents(spec)) is not None:
            from detector.core.sources._left_out import describe_left_out

            source.left_out = describe_left_out(spec, contents, videos=True)
        return source
