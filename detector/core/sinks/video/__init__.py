"""Annotated video with the source's time stamps and sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detector.core import wings
from detector.core.errors import OutputError, UsageError
from detector.core.errors.text import counted
from detector.core.sinks._partial import Partial, output_errors
from detector.core.sinks.base import Sink
from detector.core.types import Detections, Frame, SourceInfo

if TYPE_CHECKING:
    from detector.core.sinks.video.clips import ClipFilter
    from detector.core.sinks.video.file import VideoFile


class VideoFormat(NamedTuple):
    """A format. ``file``: module and class that write it. ``muxer``: FFmpeg's name. ``largest``:
    limit of a side, in pixels. ``worst_crf``: the highest --crf; None if --crf does not apply.
    ``encoders``: values of --encoder."""

    name: str
    file: tuple[str, str]
    muxer: str
    largest: int
    worst_crf: int | None = None
    encoders: tuple[str, ...] = ()


WORST_CRF_AV1 = 63
_HARDWARE = ("x264", "nvenc", "qsv")
_H264 = VideoFormat("H.264", ("h264", "H264File"), "mp4", 16384, 51, (*_HARDWARE, "svtav1"))
FORMATS = {
    ".mp4": _H264,
    ".m4v": _H264,
    ".mov": _H264._replace(muxer="mov", encoders=_HARDWARE),
    ".mkv": _H264._replace(muxer="matroska"),
    ".ts": _H264._replace(muxer="mpegts", encoders=_HARDWARE),
    ".flv": _H264._replace(muxer="flv", encoders=_HARDWARE),
    ".webm": VideoFormat("VP9", ("vp9", "Vp9File"), "webm", 16384, 63),
    ".avi": VideoFormat("Motion JPEG", ("mjpeg", "MjpegFile"), "avi", 65500),
    ".gif": VideoFormat("GIF", ("gif", "GifFile"), "gif", 65535),
}
LEAD_S = 2.0  # default of --lead


class VideoSink(Sink):
    """A video file. Before ``close`` renames the file, it checks the number of frames."""

    name = "video"
    suffixes = tuple(FORMATS)
    pictures = "yuv420p"
    kinds = ("video",)
    alone = False
    order = 4
    options = ("quality", "preset", "crf", "encoder", "only_detections", "lead")
    imports = (f"{__name__}.h264",)

    @classmethod
    def check_options(cls, suffix: str, options: Mapping[str, Any]) -> None:
        format = FORMATS[suffix.lower()]
        worst, crf = format.worst_crf, options.get("crf")
        given = [name for name in ("quality", "preset", "crf") if options.get(name) is not None]
        if "quality" in given and len(given) > 1:
            raise UsageError(f"--quality and --{given[1]} both set the encoding; omit one")
        for name in given:
            if worst is None:
                raise UsageError(
                    f"--{name} does not apply to {suffix} ({format.name}); omit it, or write a "
                    ".mp4 or .webm"
                )
        _check_encoder(suffix, format, options)
        if options.get("encoder") == "svtav1":
            worst = WORST_CRF_AV1
        if worst is not None and crf is not None and crf > worst:
            raise UsageError(
                f"--crf {crf}: the scale of {format.name} ({suffix}) ends at {worst}; give 0 "
                f"(best) to {worst}"
            )

    def __init__(
        self,
        path: Path,
        *,
        quality: str | None = None,
        preset: str | None = None,
        crf: int | None = None,
        encoder: str | None = None,
        only_detections: bool = False,
        lead: float | None = None,
        audio: bool = True,
    ) -> None:
        """``lead``: seconds. Raises UsageError for conflicting options, and OutputError for an
        encoder that does not run here."""
        super().__init__(path)
        if self.path.suffix.lower() not in FORMATS:
            raise UsageError(
                f"{self.path.name} is not the name of a video; end it in {', '.join(FORMATS)}"
            )
        given = {"quality": quality, "preset": preset, "crf": crf}
        self.check_options(self.path.suffix, {**given, "encoder": encoder})
        self._format = FORMATS[self.path.suffix.lower()]
        self._encoding, self._encoder = given, encoder
        self._audio = audio
        self._lead = Fraction(str(LEAD_S if lead is None else lead)) if only_detections else None
        self._clips: ClipFilter | None = None
        self._partial: Partial | None = None  # None before open, and after close or abort
        self._file: VideoFile

    def open(self, info: SourceInfo) -> None:
        kind = self._choose_file()
        self._partial = Partial(self.path, info.path)
        self._open_file(kind, self._partial.path, info)

    def _open_file(self, kind: Callable[..., VideoFile], path: Path, info: SourceInfo) -> None:
        if self._lead is not None:
            from detector.core.sinks.video.clips import ClipFilter

            self._clips = ClipFilter(self._lead, info.time_base)
        self._file = kind(path, self._format.muxer, info, **self._encoding, audio=self._audio)
        self.notes = self._file.notes

    def _choose_file(self) -> Callable[..., VideoFile]:
        if self._encoder is not None:
            from detector.core.sinks.video.encoders import FILES

            return FILES[self._encoder]
        module, name = self._format.file
        kind: type[VideoFile] = wings.load(f"{__name__}.{module}:{name}")
        return kind

    def write(self, frame: Frame, detections: Detections) -> None:
        assert self._partial is not None, "write before open"
        with output_errors(self.path, self._file.errors):
            self._encode(frame, detections)

    def _encode(self, frame: Frame, detections: Detections) -> None:
        if not self._file.sent and max(frame.size) > self._format.largest:
            raise OutputError(
                f"cannot write {self.path}: {self._format.name} allows at most "
                f"{self._format.largest} pixels a side; use --save pictures"
            )
        if self._clips is None:
            self._file.add(frame)
            return
        for released, joined in self._clips.take(frame, len(detections) > 0):
            self._file.add(released, joined)

    def close(self) -> Path | None:
        if self._partial is None:
            return self.path
        sent = self._file.sent
        if self._clips is not None:
            if not sent:
                self.abort()
                self.notes.append("nothing was detected, so no video was written")
                return None
            if self._clips.shortened:
                self.notes.append(
                    f"--lead was shortened for {counted(self._clips.shortened, 'clip')}, to save "
                    "memory"
                )
        if not sent:
            raise OutputError(f"cannot write {self.path}: the source gave no frame")
        with output_errors(self.path, self._file.errors):
            self._file.finish()
            count = self._file.count_packets()
        if count != sent:
            raise OutputError(
                f"{self.path}: {counted(sent, 'frame', 'was')} encoded, but the file holds "
                f"{count}; the disk may be failing, write elsewhere with -o"
            )
        self._partial.commit()
        self._partial = None
        return self.path

    def abort(self) -> Path | None:
        partial, self._partial = self._partial, None
        if partial is None:
            return None
        with suppress(Exception):
            self._file.finish()
        with suppress(Exception):
            self._file.close()
        with suppress(Exception):  # a file that cannot be read is discarded
            if self._file.sent and self._file.count_packets() > 0:
                partial.release()
                return partial.path
        partial.discard()
        return None


def _check_encoder(suffix: str, format: VideoFormat, options: Mapping[str, Any]) -> None:
    """Raise UsageError if --encoder conflicts with the format or --preset. Raise OutputError if the
    encoder does not run here."""
    name = options.get("encoder")
    if name is None:
        return
    if name not in format.encoders:
        others = ", ".join(ending for ending, kind in FORMATS.items() if name in kind.encoders)
        raise UsageError(
            f"--encoder {name} cannot write {suffix} ({format.name}); omit it, or write {others}"
        )
    if name != "x264" and options.get("preset") is not None:
        raise UsageError(
            f"--preset {options['preset']} is a preset of x264, not of {name}; use --quality"
        )
    from detector.core.sinks.video.encoders import cure_of, why_not

    if (reason := why_not(name)) is not None:
        remedy = "" if (known := cure_of(name, reason)) is None else f"; {known}"
        raise OutputError(
            f"--encoder {name} does not run here: {reason}{remedy}; omit --encoder to use x264"
        )
