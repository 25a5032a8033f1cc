"""What lies in a folder: which names are pictures, which are videos, and what is below.

Opens no file but those that end in .avif, and imports no library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from detector.core.errors import SourceError
from detector.core.errors.writing import is_output

# What is taken in folders, patterns and batches, by a suffix in lower case. By its own name, any
# other file is tried as a video. Left out are suffixes that mostly mean something else: .dat, .mod,
# .ogg, .ico.
FFMPEG_PICTURES = tuple(  # pictures that OpenCV does not decode
    ".dpx .exr .heic .heif .hif .jls .pcx .psd .qoi .sgi .tga .xbm .xwd".split()
)
PICTURES = FFMPEG_PICTURES + tuple(
    ".avif .bmp .dib .hdr .j2c .j2k .jfif .jp2 .jpc .jpe .jpeg .jpf .jpg .jpx .mpo .pam .pbm .pfm "
    ".pgm .pic .png .pnm .ppm .pxm .ras .sr .tif .tiff .webp".split()
)
VIDEOS = tuple(
    ".264 .265 .266 .360 .3g2 .3gp .3gp2 .3gpp .amv .apng .asf .av1 .avc .avi .cine .dav .dirac "
    ".divx .dv .evo .f4v .flv .gif .gxf .h261 .h263 .h264 .h265 .h266 .hevc .insv .ismv .ivf .lrv "
    ".m1v .m2p .m2t .m2ts .m2v .m4v .mj2 .mjpeg .mjpg .mk3d .mkv .mov .mp4 .mp4v .mpe .mpeg .mpg "
    ".mpv .mts .mxf .nut .obu .ogm .ogv .qt .rm .rmvb .tod .tp .trp .ts .vc1 .vob .vro .vvc .webm "
    ".wmv .wtv .xvid .y4m".split()
)


class Contents(NamedTuple):
    """What a folder holds, or a pattern matches: files, folders that are not entered, and how many
    names lead to neither (dead links, pipes). Hidden names are left out."""

    files: list[str]
    folders: list[str]
    strange: int = 0

    @property
    def pictures(self) -> list[str]:
        return sorted(filter(is_picture, self.files), key=natural_key)

    @property
    def videos(self) -> list[str]:
        return sorted(filter(is_video, self.files), key=natural_key)


def is_picture(path: str) -> bool:
    """By the name, but for a sequence of AVIF, which is a video."""
    name = path.lower()
    return name.endswith(PICTURES) and not (name.endswith(".avif") and _is_sequence(path))


def is_video(path: str) -> bool:
    name = path.lower()
    return name.endswith(VIDEOS) or (name.endswith(".avif") and _is_sequence(path))


def _is_sequence(path: str) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(12)[4:] == b"ftypavis"
    except OSError:
        return False


def list_folder(folder: str) -> Contents:
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise SourceError(
            f"{folder}: cannot be listed ({error.strerror}); check its permissions: ls -ld {folder}"
        ) from error
    # DirEntry.is_file would raise for a link that leads to itself; isfile says that it is none.
    files = [path for path in paths if os.path.isfile(path)]
    folders = [] if len(files) == len(paths) else [path for path in paths if os.path.isdir(path)]
    return Contents(files, folders, len(paths) - len(files) - len(folders))


def walk_files(folder: str, entered: set[str] | None = None) -> Iterator[str]:
    """The files below a folder, at any depth, without hidden names and outputs of earlier runs.
    ``entered`` collects real paths, so that links lead into a folder only once."""
    entered = set() if entered is None else entered
    left = [folder]
    while left:
        place = left.pop()
        real = os.path.realpath(place)
        if real in entered or (place != folder and is_output(place)):
            continue
        entered.add(real)
        try:
            contents = list_folder(place)
        except SourceError:
            continue
        left += sorted(contents.folders, reverse=True)
        yield from contents.files


def natural_key(path: str) -> list[tuple[bool, int, str]]:
    """Sorts img2 before img10: digits compare as numbers."""
    parts = re.split(r"(\d+)", path)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
