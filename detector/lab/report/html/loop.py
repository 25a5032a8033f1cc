"""Sections of the report on single frames of the loop: its queues, and its slowest moments."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from detector.core.errors import UsageError
from detector.core.timeline.spans import STAGES
from detector.lab.analysis.loop.activities import LoopShape, activities_of, queue_curves
from detector.lab.analysis.loop.frames import FramePart, frame_parts
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import figure, key, section
from detector.lab.session.passes import FramesFacts, SlowFrame
from detector.lab.session.read import SavedSession, read_picture

MOST_PICTURES = 50


def queues(session: SavedSession) -> str:
    loop = session.document.loop[0] if session.document.loop else None
    activities = activities_of(session.spans)
    if not loop or not activities:
        return ""
    drawn = []
    for one in queue_curves(activities, LoopShape.of(loop)):
        caption = (
            f"{one.name}: {one.mean:.1f} on average, room for {one.room}; full for {one.full:.0%} "
            f"of the time, empty for {one.empty:.0%}"
        )
        points = list(zip(one.times_s, one.means, strict=True))
        around = list(zip(one.times_s, one.least, one.most, strict=True))
        drawn.append(figure(drawings.queue(points, around, one.room, "s", "how many"), caption))
    note = (
        "<p>The line is the mean of a stretch of time, the band around it the least and the most, "
        "and the broken line the room that there is; one more may wait at the door. "
        "A queue that is always full waits for the stage behind it; one that is always empty, for "
        "the stage before it.</p>"
    )
    return section("queues", "Queues", note, *drawn, how="spans") if drawn else ""


def slowest(session: SavedSession) -> str:
    """Each with its picture, and where its time went."""
    facts = session.facts(FramesFacts)
    rows = facts.rows[:MOST_PICTURES] if facts else ()
    parts = frame_parts(
        activities_of(session.spans), session.document.batch, {row.frame for row in rows}
    )
    shown = "".join(_slow_frame(session, row, parts.get(row.frame, ())) for row in rows)
    if not shown:
        return ""
    frames = f'<div class="frames">{shown}</div>'
    return section(
        "slowest", "The slowest moments", key((*STAGES, "wait")), frames, how="percentiles"
    )


def _slow_frame(session: SavedSession, row: SlowFrame, parts: Sequence[FramePart]) -> str:
    text = (
        f"frame {row.frame}: {row.ms:.1f} ms, of which {row.stage} took the longest "
        f"({row.stage_ms:.1f} ms)"
    )
    went = ""
    if parts:
        text = f"frame {row.frame}: {row.ms:.1f} ms"
        bar = drawings.bar(
            [("wait" if one.waits else one.stage, one.text, one.ms) for one in parts],
            "ms",
            labels=False,
        )
        longest = sorted(parts, key=lambda one: -one.ms)
        listed = ", ".join(f"{one.text} {one.ms:.1f}" for one in longest if one.ms >= 0.05)
        went = f'{bar}<p class="went">{escape(listed)} ms</p>'
    try:
        source = base64.b64encode(read_picture(session.folder, row.file)).decode()
        picture = f'<img alt="{escape(text)}" src="data:image/jpeg;base64,{source}">'
    except UsageError as error:
        picture, text = "", f"{text}; its picture is left out: {error}"
    return f"<figure>{picture}<figcaption>{escape(text)}</figcaption>{went}</figure>"
