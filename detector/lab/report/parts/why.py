"""The part of the report that explains the slowest frames. A click on one shows its calls."""

from __future__ import annotations

import base64
from html import escape

from detector.core.errors import UsageError
from detector.core.errors.text import counted
from detector.core.tables import Column, Table
from detector.lab.analysis.loop.activities import DISPLAY_NAMES
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import details, stage_key
from detector.lab.report.part import How, Part, list_stages
from detector.lab.session.passes import FramesFacts, MomentsFacts
from detector.lab.session.read import SavedSession, read_picture
from detector.lab.session.why import Why, WhyFrame, WhyPart
from detector.lab.why import explain

SHOWN = 10
MIN_FRAMES = 20  # frames; the median of fewer is not representative

PART_COLUMNS = (
    Column("part", value=lambda one: part_text(one)),
    Column("waited_for", "waited for", value=lambda one: _waited_for(one), out=4),
    Column("ms", form=".1f"),
    Column("median_ms", "median", ".1f"),
    Column("more", "difference", "+.1f", value=lambda one: round(one.ms - one.median_ms, 1) + 0.0),
    Column("cpu_ms", "on CPU", ".1f", out=3),
    Column("ready_ms", "no core", ".1f", out=2),
    Column("blocked_ms", "blocked", ".1f", out=1),
)
CAUSE_COLUMNS = (
    Column("frame"),
    Column("ms", form=".1f"),
    Column("cause", value=lambda one: one.cause.name),
    Column("where", value=lambda one: name_call(one)),
    Column("text", "why", value=lambda one: one.cause.text, out=1),
)


def part_text(part: WhyPart) -> str:
    return f"wait before {part.stage}" if part.waits else part.stage


def _waited_for(part: WhyPart) -> str:
    return f"{part.waited_for} ({DISPLAY_NAMES.get(part.cause, part.cause)})" if part.cause else ""


def list_parts_without_short_waits(one: WhyFrame) -> list[WhyPart]:
    return [part for part in one.parts if not part.waits or max(part.ms, part.median_ms) >= 0.05]


def name_call(one: WhyFrame) -> str:
    cause = one.cause
    own = cause.frame == one.frame
    return f"its {cause.stage}" if own else f"{cause.stage} of frame {cause.frame}"


def cause_text(one: WhyFrame, why: Why) -> str:
    """Describe the cause. If a wait grew by more than the cause's call, describe the wait first."""
    cause = one.cause
    if one.ms <= why.median_ms:
        return "no slower than the median frame"
    text = f"{name_call(one)} took {cause.excess_ms:.1f} ms more than the median {cause.stage}"
    part = max(one.parts, key=lambda each: each.ms - each.median_ms)
    if part.waits and (more := part.ms - part.median_ms) > cause.excess_ms:
        text = f"it waited {more:.1f} ms more before {part.stage}, for {part.waited_for}; {text}"
    return f"{text}: {cause.text}"


def list_facts(one: WhyFrame, why: Why) -> list[str]:
    facts = []
    if one.boxes is not None:
        facts.append(f"{counted(one.boxes, 'box')} (median {why.median_boxes:g})")
    if one.key is not None:
        facts.append("a key frame" if one.key else "not a key frame")
    if one.faults is not None:
        facts.append(f"{counted(one.faults, 'page fault')}, {one.disk_faults} from disk")
    if one.mhz is not None:
        facts.append(f"{one.mhz:.0f} MHz (median {why.median_mhz:.0f})")
    return facts


def draw_slow_frames(session: SavedSession) -> str:
    facts = session.facts(FramesFacts)
    try:
        why = explain(session, None, SHOWN, clip=False)
    except UsageError:
        return ""
    if why.recorded < MIN_FRAMES and facts is None:
        return ""
    files = {} if facts is None else {row.frame: row.file for row in facts.rows}
    shown = [
        _draw_slow_frame(
            why, one, _picture(session, files[one.frame]) if one.frame in files else ""
        )
        for one in why.frames
    ]
    note = (
        f"<p>Median time from read to write over {counted(why.recorded, 'frame')}: "
        f"{why.median_ms:.1f} ms.</p>"
    )
    return note + stage_key([*list_stages(session), "wait"]) + "".join(shown)


def _picture(session: SavedSession, file: str) -> str:
    try:
        source = base64.b64encode(read_picture(session.folder, file)).decode()
    except UsageError as error:
        return f"<p>Its picture is omitted: {escape(str(error))}</p>"
    return f'<img alt="{escape(file)}" src="data:image/jpeg;base64,{source}">'


def _draw_slow_frame(why: Why, one: WhyFrame, picture: str) -> str:
    bar = drawings.bar(
        [("wait" if part.waits else part.stage, part_text(part), part.ms) for part in one.parts],
        "ms",
        labels=False,
    )
    known = ", ".join(list_facts(one, why))
    inside = f"<p>{escape(cause_text(one, why))}</p>" + (f"<p>{escape(known)}</p>" if known else "")
    described = Table(f"why-{one.frame}", PART_COLUMNS, list_parts_without_short_waits(one))
    head = f"frame {one.frame}: {one.ms:.1f} ms ({name_call(one)}: {one.cause.text})"
    return details(head, inside, picture, bar, drawings.table(described))


def describe_pictures(facts: FramesFacts) -> list[str]:
    return [f"frames: pictures of the {len(facts.rows)} slowest frames are in the report"]


def describe_moments(facts: MomentsFacts) -> list[str]:
    pauses = sum(one.end_ns - one.start_ns for one in facts.collections) / 1e6
    return [
        f"moments: {counted(len(facts.frames), 'frame')} recorded in {facts.cost_us:.0f} us each; "
        f"{counted(len(facts.collections), 'garbage collection')} took {pauses:.1f} ms; "
        "`detect-video why RUN` explains slow frames"
    ]


HOW = How(
    "why",
    "why frames were slow",
    "Each slow frame is traced to the call that delayed it. The call's excess is its time minus "
    "the median of its stage. A cause is named if it explains at least half of that excess.",
    "Why a frame was slow",
)
PARTS = (
    Part("why", "Why frames were slow", 172, draw_slow_frames, how=HOW),
    Part("pictures", "Pictures", 173, facts=FramesFacts, says=describe_pictures, detail=True),
    Part("moments", "Moments", 174, facts=MomentsFacts, says=describe_moments),
)
