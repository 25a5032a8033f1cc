"""Decide by content and name whether a file is a picture or a video."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from functools import lru_cache

# Suffixes of the files that we read from folders, patterns and batches. Any other file that a user
# names is tried as a video. We omit .dat, .mod, .ogg and .ico, which are rarely videos.
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


PICTURE, VIDEO = "picture", "video"
HEAD_BYTES = 512
FIRST_JPEG_WITHIN = 1 << 20  # bytes searched for the end of the first JPEG in a stream
# File signatures. Files without one are judged by name.
_PICTURES = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n|II\*\0|MM\0\*|BM.{4}\0{4}|RIFF.{4}WEBP|8BPS|qoif|#\?RADIANCE|"
    rb"v/1\x01|SDPX|XPDS|\xff\x4f\xff\x51|.{4}jP  .{12}(?!mjp2)|"
    rb".{4}ftyp(?:hei[cxms]|avif|mif[12]|miaf|avci)",
    re.DOTALL,
)
_VIDEOS = re.compile(
    rb"\x1a\x45\xdf\xa3|FLV|OggS|GIF8|YUV4MPEG2|DKIF|nut/|\.RMF|RIFF.{4}AVI |\0\0\x01[\xb3\xba]|"
    rb"\x06\x0e\x2b\x34|\x30\x26\xb2\x75\x8e\x66\xcf\x11|(?:.{4})?G.{187}G.{187}G|"
    rb".{4}(?:moov|mdat|wide|pnot|styp|sidx|moof|ftypavis|jP  .{12}mjp2)",
    re.DOTALL,
)
# These brands may be picture sequences or raw photos rather than videos.
_UNSURE = (b"mif1", b"msf1", b"heic", b"hevc", b"hevx", b"crx ")
_NEXT_JPEG = b"\xff\xd9\xff\xd8\xff"


def kind_of_name(path: str) -> str | None:
    name = path.lower()
    return PICTURE if name.endswith(PICTURES) else VIDEO if name.endswith(VIDEOS) else None


def kind_of(path: str, *, closely: bool = False) -> str | None:
    """Return PICTURE, VIDEO or None, judging by the first bytes, else by the name. ``closely`` also
    recognizes a stream of JPEGs."""
    with suppress(OSError, ValueError):
        about = os.stat(path)
        if stat.S_ISREG(about.st_mode):
            return _find_kind(path, closely, about.st_size, about.st_mtime_ns)
    return kind_of_name(path)


@lru_cache(maxsize=1 << 16)  # folders are listed several times
def _find_kind(path: str, closely: bool, size: int, changed_ns: int) -> str | None:
    with open(path, "rb") as file:
        head = file.read(FIRST_JPEG_WITHIN if closely else HEAD_BYTES)
    if closely and holds_jpegs(head):
        return VIDEO
    named = kind_of_name(path)
    # Raw camera photos begin like TIFF, but OpenCV would read only their thumbnails: return None.
    is_raw = named is None and head[:2] in (b"II", b"MM")
    is_by_name = is_raw or path.lower().endswith((".mjpg", ".mjpeg"))
    return named if is_by_name else kind_of_bytes(head) or named


def kind_of_bytes(head: bytes) -> str | None:
    """Return PICTURE, VIDEO, or None if the first bytes have no known signature."""
    if _PICTURES.match(head):
        return None if b"acTL" in head.partition(b"IDAT")[0] else PICTURE
    brands = {head[at : at + 4] for at in range(8, head[3] if len(head) > 8 else 0, 4)}
    is_movie = head[4:8] == b"ftyp" and brands.isdisjoint(_UNSURE)
    return VIDEO if is_movie or _VIDEOS.match(head) else None


def holds_jpegs(data: bytes) -> bool:
    """Return whether JPEGs of one size follow each other, as in a video. MPO files do not count."""
    if data[:3] != _NEXT_JPEG[2:] or (end := data.find(_NEXT_JPEG)) < 0 or b"MPF\0" in data[:end]:
        return False
    from detector.core.sources._picture_size import claimed_size

    size = claimed_size(data)
    return size is not None and claimed_size(data[end + 2 :]) == size
