"""Read a video from a finished HLS playlist. FFmpeg skips segments that do not arrive, so the
video's length is compared with the playlist's."""

from __future__ import annotations

import ssl
from contextlib import ExitStack
from typing import Any

from detector.core.errors import SourceError
from detector.core.errors.holding import hold_as
from detector.core.sources._network.addresses import opening_of
from detector.core.sources._network.meanings import explain
from detector.core.sources._network.nested import NestedOpener, resolve
from detector.core.sources._web import SILENT_S, WebPlace
from detector.core.sources.video._container import VideoInfo, probe, require_frame
from detector.core.sources.video.av import AvSource
from detector.core.types import Frame, Image

TOLERANCE_S = 1.0  # a video may be this much shorter than stated, as recorders round to seconds


def open_listed(place: WebPlace, stride: int, frames: int | None, pixels: str) -> ListedSource:
    """Open the playlist. Raises SourceError if it cannot be read, or no frame can be decoded."""
    opening = opening_of(place.whole)
    options = {
        **opening.options,
        "protocol_whitelist": opening.protocols,
        "format_whitelist": opening.formats,
        **_find_authorities(),
    }
    address, cookies = resolve(place.whole)
    opener = NestedOpener(address, options | cookies, SILENT_S, follows=True)
    arguments: dict[str, Any] = {
        "file": address,
        "format": "hls",
        "io_open": opener,
        "options": options,
        "timeout": (SILENT_S, SILENT_S),
    }
    with ExitStack() as stack:
        video = _probe(stack.enter_context(hold_as(str(place), arguments)), opener)
        source = ListedSource(video, stride, frames, pixels=pixels)
        source.cleanup, source.opener = stack.pop_all(), opener
    return require_frame(source, video)


def _find_authorities() -> dict[str, str]:
    """Return options with Python's certificate authorities, since PyAV's FFmpeg has none."""
    paths = ssl.get_default_verify_paths()
    return {"tls_verify": "1", **({"ca_file": paths.cafile} if paths.cafile else {})}


def _probe(name: str, opener: NestedOpener) -> VideoInfo:
    try:
        return probe(name)
    except SourceError as error:
        if error.__cause__ is None:
            raise
        why = opener.given_up or explain(opener.failure or error.__cause__).text
        raise SourceError(f"{name}: {why}") from error


class ListedSource(AvSource):
    """Reads packet by packet. Adds a note if the video is shorter than the playlist states."""

    cleanup: ExitStack
    opener: NestedOpener

    def read(self, into: Image | None = None) -> Frame | None:
        frame = super().read(into)
        if frame is None and self._handed_out != self._frames:
            self._compare_length()
        return frame

    def _compare_length(self) -> None:
        info, stated_s = self.info, self.info.duration_s or 0.0
        end_s = float((self.pts - info.start_pts + self.video.ticks) * info.time_base)
        if end_s < stated_s - TOLERANCE_S:
            self.note_damage(
                f"the video ends at {end_s:.1f} of {stated_s:.1f} s: "
                f"{self.opener.given_up or 'the server did not send the rest'}"
            )

    def close(self) -> None:
        super().close()
        self.cleanup.close()
