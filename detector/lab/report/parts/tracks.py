"""The part of the report on --save tracks: a contact sheet with a picture of each track."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from detector.core.errors import UsageError
from detector.core.errors.text import counted
from detector.core.session.document import SourceSummary
from detector.lab.report.html.drawings import text
from detector.lab.report.part import Part
from detector.lab.session.read import SavedSession
from detector.lab.session.tracks import TrackRow, read_tracks


def contact_sheet(session: SavedSession) -> str:
    has_all_frames = not session.document.config.get("output", {}).get("only_detections")
    drawn = []
    for number, source in enumerate(session.document.each):
        try:
            rows = read_tracks(session.folder, number)
        except UsageError as error:
            drawn.append(text(f"The pictures are omitted: {error}"))
            continue
        if not rows:
            continue
        figures = "".join(_figure(row, _link(row, source, has_all_frames)) for row in rows)
        video = "video" in source.outputs and has_all_frames
        note = (
            f"{Path(source.video.path).name}: {counted(len(rows), 'track')}, the ones seen "
            "longest. The times are when each was first and last seen, in seconds of the source. "
            f"Click to open {'the video at the best picture' if video else 'the picture'}, unless "
            "the file was moved."
        )
        drawn.append(f'{text(note)}<div class="tracks">{figures}</div>')
    return "".join(drawn)


def _figure(row: TrackRow, link: str) -> str:
    says = f"{row.name} {row.track}: {row.first_s:.1f} to {row.last_s:.1f} s"
    try:
        source = base64.b64encode(row.picture).decode()
        picture = f'<img alt="{escape(says)}" src="data:image/jpeg;base64,{source}">'
    except UsageError as error:
        picture, says = "", f"{says}; {error}"
    inside = f"{picture}<figcaption>{escape(says)}</figcaption>"
    return f'<figure><a href="{escape(link)}">{inside}</a></figure>'


def _link(row: TrackRow, source: SourceSummary, has_all_frames: bool) -> str:
    """Link to the picture's time in a video of all frames or, if there is none, to its own file."""
    video = source.outputs.get("video")
    if video is not None and has_all_frames:
        return f"{Path(video).absolute().as_uri()}#t={max(0.0, row.at_s):.2f}"
    return (Path(source.outputs.get("tracks", "")) / row.file).absolute().as_uri()


PARTS = (Part("tracks", "Tracks", 15, contact_sheet),)
