"""Explain slow frames of a saved session from its spans, its rows and its video (``why``)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from statistics import median_low

from detector.core.errors import UsageError
from detector.core.session.document import SessionDocument
from detector.core.timeline.rows import NOT_KNOWN
from detector.lab.analysis.loop.activities import LoopShape, activities_of
from detector.lab.analysis.loop.why import Explanation, RunEvidence
from detector.lab.session.passes import MomentsFacts
from detector.lab.session.read import SavedSession
from detector.lab.session.rows import read_rows
from detector.lab.session.why import Why

REORDERED = 64  # packets to read beyond the frames, since files store pictures out of display order
NO_MOMENTS = "record them: detect-video profile SOURCE --moments"


def explain(session: SavedSession, frame: int | None, slowest: int, *, clip: bool = True) -> Why:
    """Explain ``frame``, or the ``slowest`` slowest frames if it is None. Raises UsageError."""
    known, absent = gather(session, clip)
    sizes = session.document.loop[0] if session.document.loop else None
    spans = activities_of(session.spans)
    explanation = Explanation(spans, LoopShape.of(sizes), known) if sizes else None
    if explanation is None or not explanation.frames:
        raise UsageError(f"{session.folder}: no frame has all its spans, from `read` to `write`")
    recorded = explanation.frames
    if frame is not None and frame not in recorded:
        raise UsageError(
            f"--frame {frame}: not among the {len(recorded)} recorded frames of "
            f"{session.folder} ({recorded[0]} to {recorded[-1]})"
        )
    frames = explanation.slowest(slowest) if frame is None else [frame]
    return Why(
        run=str(session.folder),
        frames=[explanation.explain(one) for one in frames],
        median_ms=explanation.median_ms(),
        median_boxes=median_low(known.boxes.values()) if known.boxes else None,
        median_mhz=median_low(known.moments.mhz) if known.moments and known.moments.mhz else None,
        recorded=len(recorded),
        absent=absent,
    )


def gather(session: SavedSession, clip: bool = True) -> tuple[RunEvidence, dict[str, str]]:
    """Return the facts that spans do not contain and, for each missing fact, how to record it or
    why it is unknown. ``clip``: whether to read the video to find key frames."""
    absent: dict[str, str] = {}
    moments = session.facts(MomentsFacts)
    if moments is None:
        for name in ("garbage collections", "page faults", "clock"):
            absent[name] = NO_MOMENTS
        if not (session.spans["ready_ns"] != NOT_KNOWN).any():
            absent["time on a core"] = NO_MOMENTS
    elif not moments.mhz:
        absent["clock"] = "this system does not report it"
    first = session.document.each[0]
    rows = read_rows(session.folder)
    own = [row for row in rows.frames if row.source == rows.frames[0].source]
    boxes = {number: sum(row.by_class.values()) for number, row in enumerate(own)}
    if not boxes:
        absent["boxes"] = rows.left_out or "the session contains no rows"
    keys: Collection[int] | None = None if moments is None else moments.keys
    if keys is None and clip:
        try:
            keys = find_key_frames(session.document)
        except UsageError as error:
            absent["key frames"] = f"{first.video.path}: {error}"
    cores, used = session.document.environment.cpu.cores, first.verdict.others_cores
    return RunEvidence(moments, boxes, keys, (used or 0.0) / (cores or 1)), absent


def find_key_frames(document: SessionDocument) -> set[int]:
    """Return the key frames, read from the video's packets. Raises UsageError if that fails."""
    settings = document.config.get("input", {})
    if settings.get("stride", 1) != 1 or settings.get("start") is not None:
        raise UsageError("unknown for a run with --stride or --start")
    path = document.each[0].video.path
    sha256 = document.clip_sha256.get(path)
    if sha256 is None or not Path(path).is_file():
        raise UsageError("the video file is missing")
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise UsageError("the video file has changed since the run")
    return _read_keys(path, document.each[0].frames.read)


def _read_keys(path: str, frames: int) -> set[int]:
    import av

    try:
        with av.open(path) as container:
            packets: list[tuple[int, bool]] = []
            for packet in container.demux(video=0):
                if packet.pts is not None:
                    packets.append((packet.pts, packet.is_keyframe))
                if len(packets) >= frames + REORDERED:
                    break
    except (OSError, IndexError, ValueError) as error:
        raise UsageError(f"its packets cannot be read ({error})") from error
    return {at for at, (_, key) in enumerate(sorted(packets)[:frames]) if key}
