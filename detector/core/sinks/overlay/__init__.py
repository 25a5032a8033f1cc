"""A copy of the source's video without re-encoding, with boxes and labels as subtitles."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core.errors import OutputError, UsageError
from detector.core.errors.text import counted
from detector.core.sinks._partial import Partial, output_errors
from detector.core.sinks.base import Sink
from detector.core.types import Detections, Frame, SourceInfo

if TYPE_CHECKING:
    from detector.core.sinks.overlay.packets import Scan, SourceCopy
    from detector.core.stages.annotate import Style
    from detector.core.stages.font import Font

MS = Fraction(1, 1000)  # Matroska's time base
CHECKED_FIRST = 250  # packets checked before a model is loaded; the run checks all packets
LARGEST_FONT = 32 << 20  # bytes; a font with all languages and weights is 130 MB
ALTERNATIVE = "use --save video, which draws the boxes into the picture"


class OverlaySink(Sink):
    """A Matroska file. A picture's subtitles are written when the next picture's time is known."""

    name = "overlay"
    suffixes = (".mkv",)
    ending = "-overlay"
    kinds = ("video",)
    order = 5  # after VideoSink, which is the default for -o FILE.mkv
    options = ("style", "only_detections")
    imports = (f"{__name__}.ass", f"{__name__}.packets", "detector.core.sinks.video.file")
    untouched = True

    @classmethod
    def check_options(cls, suffix: str, options: Mapping[str, Any]) -> None:
        if options.get("only_detections"):
            raise UsageError(
                "--only-detections skips frames, but an overlay copies the whole video of the "
                f"source; {ALTERNATIVE}, or omit --only-detections"
            )

    @classmethod
    def check_source(cls, spec: str) -> None:
        from detector.core.sinks.overlay.packets import SourceCopy, UnfitError, UnreadableError

        try:
            with closing(SourceCopy(spec)) as source:
                if source.videos == 1:  # with several, the choice is not known yet
                    source.scan(CHECKED_FIRST)
        except UnreadableError:
            return
        except UnfitError as error:
            raise _explain_refusal(spec, error) from error

    def __init__(
        self, path: Path, *, style: Style | None = None, only_detections: bool = False
    ) -> None:
        from detector.core.stages.annotate import Style

        super().__init__(path)
        if self.path.suffix.lower() not in self.suffixes:
            raise UsageError(f"an overlay must be a .mkv, not {self.path.name}")
        self.check_options(self.path.suffix, {"only_detections": only_detections})
        self._style = style or Style()
        self._partial: Partial | None = None  # None before open, and after close or abort
        self._file: _OverlayFile | None = None
        self._source: SourceCopy | None = None

    def open(self, info: SourceInfo) -> None:
        from detector.core.sinks.overlay.packets import SourceCopy, UnfitError

        if info.mirrored:
            raise _explain_refusal(info.path, "is stored mirrored, which Matroska cannot express")
        if info.tracks:
            raise _explain_refusal(
                info.path, "can be read only once, but an overlay reads the source twice"
            )
        self._info = info
        self._partial = Partial(self.path, info.path)
        try:
            source = self._source = SourceCopy(info.path, info.stream)
            if info.has_computed_pts:
                raise UnfitError("its packets have no time stamps, as in all raw streams")
            self._scan: Scan = source.scan(longest_gap_s=info.longest_gap_s)
        except UnfitError as error:
            self.abort()
            raise _explain_refusal(info.path, error) from error
        except BaseException:
            self.abort()
            raise
        self.notes += source.notes

    def write(self, frame: Frame, detections: Detections) -> None:
        from detector.core.sinks.overlay.packets import REFUSED, UnfitError

        assert self._partial is not None, "write before open"
        assert self._source is not None
        with output_errors(self.path, REFUSED):
            try:
                self._file = self._file or _OverlayFile(
                    self._partial.path,
                    self._info,
                    self._source,
                    self._scan,
                    frame,
                    self._style,
                    self.notes,
                )
            except UnfitError as error:
                raise _explain_refusal(self._info.path, error) from error
            self._file.add(frame, detections)

    def close(self) -> Path:
        from detector.core.sinks.overlay.packets import REFUSED

        if self._partial is None:
            return self.path
        if self._file is None:
            raise OutputError(f"cannot write {self.path}: the source gave no frame")
        with output_errors(self.path, REFUSED):
            self._file.finish()
            count = _count_packets(self._partial.path)
        if count != (copied := self._file.copier.copied):
            raise OutputError(
                f"{self.path}: {counted(copied, 'picture', 'was')} copied, but the "
                f"file holds {count}; the disk may be failing, write elsewhere with -o"
            )
        self._close_source()
        self._partial.commit()
        self._partial = None
        return self.path

    def abort(self) -> Path | None:
        partial, self._partial = self._partial, None
        try:
            if partial is None:
                return None
            if self._file is not None:
                with suppress(Exception):
                    self._file.stop()
            with suppress(Exception):  # a file that cannot be read is discarded
                if self._file is not None and _count_packets(partial.path) > 0:
                    partial.release()
                    return partial.path
            partial.discard()
            return None
        finally:
            self._close_source()

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            with suppress(Exception):
                source.close()


def _explain_refusal(spec: str, why: object) -> UsageError:
    return UsageError(f"--save overlay: {spec}: {why}; {ALTERNATIVE}")


def _count_packets(path: Path) -> int:
    import av

    with av.open(str(path)) as container:
        return sum(1 for packet in container.demux(video=0) if packet.size)


class _OverlayFile:
    def __init__(
        self,
        path: Path,
        info: SourceInfo,
        source: SourceCopy,
        scan: Scan,
        first: Frame,
        style: Style,
        notes: list[str],
    ) -> None:
        import av

        from detector.core.sinks.overlay import ass
        from detector.core.sinks.overlay.packets import OPTIONS, PacketCopier, packets_from
        from detector.core.sinks.video.file import shift_tags

        self._info, self._source, self._scan, self._style = info, source, scan, style
        self._notes = notes
        self._base = info.time_base
        self._height, self._width = first.size
        key_pts, packets = packets_from(source, None if first.index == 0 else first.pts)
        self._shift = scan.first_pts if first.index == 0 else key_pts
        self._per_scale = ass.font_size(style.font)
        self._container = av.open(str(path), "w", format="matroska", options=OPTIONS)
        try:
            begin = info.start_pts if first.index == 0 else key_pts
            self._container.metadata.update(shift_tags(info, begin))
            streams = source.add_to(self._container)
            size = round(self._per_scale * 0.64, 1)
            font = style.font if style.labels else None
            look = (ass.FAMILY, "") if font is None else (font.family, font.style)
            self._track = self._add_track(ass.header(self._width, self._height, *look, size))
            if font is not None:
                self._attach(font)
            self._container.start_encoding()
        except BaseException:
            with suppress(Exception):
                self._container.close()
            raise
        self.copier = PacketCopier(source, self._container, streams, self._shift, packets)
        self._first_pts = first.pts
        self._lines: list[str] = []  # lines of the last picture, until its end time is known
        self._last_pts: int | None = None
        self._last_ms = self._step = 0
        self._written = 0

    def _attach(self, font: Font) -> None:
        """Attach the font of ``--font``. Without one, players use their own sans-serif font."""
        if len(font.data) > LARGEST_FONT:
            self._notes.append(
                f"the font is not attached: it has more than {LARGEST_FONT >> 20} MB"
            )
            return
        suffix = {b"OTTO": "otf", b"ttcf": "ttc"}.get(font.data[:4], "ttf")
        kind = "application/vnd.ms-opentype" if suffix == "otf" else "application/x-truetype-font"
        self._container.add_attachment(f"labels.{suffix}", kind, font.data)

    def _add_track(self, header: str) -> Any:
        """Add a subtitle track. PyAV can only copy a track, so we copy that of a short script."""
        import av

        from detector.core.sinks._about import DETECTIONS

        script = f"{header}Dialogue: 0,0:00:00.00,0:00:00.01,Boxes,,0,0,0,,\n"
        with av.open(BytesIO(script.encode()), format="ass") as template:
            track = self._container.add_stream_from_template(template.streams[0])
        track.metadata["title"] = DETECTIONS
        track.disposition = av.stream.Disposition.default
        return track

    def _to_ms(self, pts: int) -> int:
        from detector.core.sinks.overlay.packets import to_ms

        return to_ms(max(0, pts - self._shift), self._base)

    def add(self, frame: Frame, detections: Detections) -> None:
        now_ms = self._to_ms(frame.pts)
        if self._last_pts is not None:
            self._step = frame.pts - self._last_pts
            self._write_lines(now_ms)
        self._lines = self._make_lines(detections.shown)
        self._last_pts, self._last_ms = frame.pts, now_ms
        self.copier.copy_up_to(frame.pts)

    def _make_lines(self, shown: Detections) -> list[str]:
        from detector.core.sinks.overlay import ass
        from detector.core.stages.annotate import lay_out

        layout = lay_out(self._width, self._height, shown, self._style)
        boxes = ass.boxes_text(layout, self._width, self._height)
        labels = ass.label_texts(layout, shown, self._per_scale)
        return [
            *([f"0,{ass.BOXES},,0,0,0,,{boxes}"] if boxes else []),
            *(f"{layer},{ass.LABELS},,0,0,0,,{text}" for layer, text in enumerate(labels, 1)),
        ]

    def _write_lines(self, end_ms: int) -> None:
        import av

        for line in self._lines:
            packet = av.Packet(f"{self._written},{line}".encode(errors="replace"))
            packet.time_base = MS
            packet.pts = packet.dts = self._last_ms
            packet.duration = end_ms - self._last_ms
            packet.stream = self._track
            self._container.mux_one(packet)
            self._written += 1
        self._lines = []

    def finish(self) -> None:
        """Copy the rest of the source if the frames reached its end, and write the trailer."""
        assert self._last_pts is not None
        nominal = max(1, round(1 / (self._info.fps * self._base)))
        step = max(nominal, self._step)
        self._write_lines(self._to_ms(self._last_pts + step))
        if self._scan.last_pts - self._last_pts <= step:
            self.copier.copy_rest()
        else:
            self.copier.copy_up_to(self._last_pts)
        self._note_omissions()
        self._container.close()

    def _note_omissions(self) -> None:
        before = (self._first_pts - self._shift) * self._base
        if before > 0:
            self._notes.append(
                f"the overlay begins {float(before):.3f} s before its first detections, because a "
                "copy can only begin at a key frame"
            )
        if self.copier.refused:
            self._notes.append(
                f"{counted(self.copier.refused, 'damaged packet')} of the video could not be copied"
            )
        if self.copier.broken:
            self._notes.append(
                f"the overlay ends where the source became unreadable ({self.copier.broken})"
            )

    def stop(self) -> None:
        """Make the part written so far playable after a failure."""
        if self._last_pts is not None:
            with suppress(Exception):
                self._write_lines(self._last_ms + 40)
        self._container.close()
