"""The section of the HTML report about the cameras of a live run."""

from __future__ import annotations

from detector.core.analysis.summary import live_memory_text
from detector.core.session.document import LiveMemory, SessionDocument, StreamSummary
from detector.core.tables import Curve, Rounded, Section, Share, TextTable

SHOWN = 50  # cameras shown before "show all"


def cameras(document: SessionDocument) -> Section | None:
    streams = document.streams
    if not isinstance(streams, list):
        return None
    rows = [
        [
            stream.name,
            stream.url,
            stream.size,
            _rounded(stream.camera_fps),
            _rounded(stream.processed_fps),
            stream.received,
            stream.processed,
            Share(stream.dropped_share),
            ", ".join(f"{count} {why}" for why, count in stream.dropped.items()),
            stream.reconnects,
            stream.stalls,
        ]
        for stream in streams
    ]
    columns = (
        *("camera", "address", "size", "camera FPS", "detected FPS", "received", "detected"),
        *("dropped", "why", "reconnects", "stalls"),
    )
    aged = [row for stream in streams for row in _ages(stream)]
    errors = [f"{stream.name}: {stream.error}" for stream in streams if stream.error]
    pieces: list[str | TextTable | Curve] = [
        "Rates cover only the time while the camera was live: averages exclude outages.",
        TextTable("cameras", columns, rows, most=SHOWN, rest="cameras"),
        *errors,
        "Age of frames, in milliseconds since arrival:",
        TextTable("ages", ("camera", "until", "p50", "p90", "p99", "max"), aged),
        *_memory(document),
    ]
    return Section("cameras", "Cameras", pieces, how="ages")


def _memory(document: SessionDocument) -> list[Curve]:
    memory = document.memory
    if not isinstance(memory, LiveMemory):
        return []
    points = [(one.minute / 60, one.rss_mb) for one in memory.minutes]
    text = f"Resident memory: {live_memory_text(memory)}."
    return [Curve(points, "hours since the run started", "MB", text)]


def _ages(stream: StreamSummary) -> list[list[object]]:
    rows = {"the result": stream.age_ms}
    rows |= {f"result: {part}": age for part, age in stream.parts_ms.items() if part != "writing"}
    rows |= {f"written to {name}": age for name, age in stream.output_age_ms.items()}
    if stream.camera_age_ms is not None:
        rows["the result, by the camera's clock"] = stream.camera_age_ms
    return [
        [stream.name, name, *map(_rounded, (age.p50, age.p90, age.p99, age.max))]
        for name, age in rows.items()
        if age.max is not None
    ]


def _rounded(value: float | None) -> Rounded | None:
    return None if value is None else Rounded(value, 1)
