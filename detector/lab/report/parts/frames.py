"""Parts of the report on single frames: the timeline of stages, and latencies."""

from __future__ import annotations

from collections.abc import Sequence

from detector.core.errors.text import counted
from detector.lab.analysis.loop.activities import (
    Activity,
    activities_of,
    durations_ms,
    frame_times_ms,
    percentiles,
)
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import figure, stage_key, zoom_buttons
from detector.lab.report.part import How, Part, list_stages
from detector.lab.session.read import SavedSession

SHOWN_FRAMES = 20  # frames of the steady state in the timeline


def timeline(session: SavedSession) -> str:
    activities = activities_of(session.spans)
    shown = _select_steady(activities)
    if not shown:
        return ""
    start, end = min(one.start_ns for one in shown), max(one.end_ns for one in shown)
    threads = list(dict.fromkeys(one.thread for one in sorted(activities, key=_thread_order)))
    slices = [
        (
            threads.index(one.thread),
            one.stage,
            f"{one.stage} {one.number}",
            (one.start_ns - start) / 1e6,
            (one.end_ns - start) / 1e6,
        )
        for one in shown
    ]
    drawn = drawings.lanes(threads, slices, (end - start) / 1e6)
    frames = len({one.number for one in shown if one.stage == "nms"})
    whole_run = f"the whole run: {counted(frames, 'frame')}"
    caption = f"{SHOWN_FRAMES} steady frames" if frames >= SHOWN_FRAMES else whole_run
    note = "Gaps are waits. Ctrl or Shift with the mouse wheel also zooms; drag to move."
    return stage_key(list_stages(session)) + figure(drawn, caption) + zoom_buttons(note)


def _select_steady(activities: Sequence[Activity]) -> list[Activity]:
    frames = [one.number for one in activities if one.stage == "nms"]
    if len(frames) < SHOWN_FRAMES:  # the run is too short for a steady state, so show all of it
        return list(activities) if frames else []
    first = max(0, min(max(frames) // 2, max(frames) - SHOWN_FRAMES))
    middle = [
        one
        for one in activities
        if one.stage == "nms" and first <= one.number < first + SHOWN_FRAMES
    ]
    if not middle:  # frame numbers may have a gap in the middle
        return []
    start, end = middle[0].start_ns, middle[-1].end_ns
    return [one for one in activities if one.end_ns > start and one.start_ns < end]


def _thread_order(one: Activity) -> tuple[int, str]:
    order = ("main", "reader", "worker", "writer")
    return order.index(one.thread.split("-")[0]), one.thread


def latency(session: SavedSession) -> str:
    times = frame_times_ms(session.spans)
    infer = durations_ms(session.spans, "infer")
    parts = []
    for name, values in (("from reading a frame to writing it", times), ("one inference", infer)):
        if len(values) < 5:
            continue
        ordered = sorted(values.tolist())
        marks = {mark: value for mark, value in percentiles(values).items() if value is not None}
        top = ordered[min(len(ordered) - 1, int(len(ordered) * 0.995))]
        caption = f"{name}, {counted(len(ordered), 'sample')}"
        if beyond := sum(value > top for value in ordered):
            most = f"{ordered[-1]:.1f} ms"
            caption += f"; the last bin also holds the {beyond} longest, up to {most}"
        parts.append(figure(drawings.histogram(ordered, marks, "ms"), caption))
    return "".join(parts)


SPANS = How(
    "spans",
    "timeline",
    "Every call's recorded start and end are shown; nothing is sampled.",
    "Spans, waits, other",
    "docs/measurement.md",
)
PERCENTILES = How(
    "percentiles",
    "latency",
    "Times of single calls. A percentile with too few samples is omitted.",
    "Percentiles",
    "docs/measurement.md",
)
PARTS = (
    Part("timeline", "Timeline", 30, timeline, how=SPANS),
    Part("latency", "Latency", 50, latency, how=PERCENTILES),
)
